"""Reads the body of an HTTP answer, and keeps no more of it than was asked for, whatever the server sends.

A server that knows no ranges sends all of an object each time, and one that compresses says nothing of its length.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.remote.answers import Body, first_of_rest, is_whole
from xarray_gpuzarr.stored.codecs import NO_LIMIT


async def read_body(response: Any, request: ByteRequest | None, most_nbytes: int) -> Body:
    """Read what a request needs of the body of an aiohttp response.

    Of an object that is asked for to its end and is longer than `most_nbytes`, no more is read than shows that.
    """
    first, end, last = 0, NO_LIMIT, NO_LIMIT
    most = most_nbytes if first_of_rest(request) is not None else NO_LIMIT
    if is_whole(response.headers, response.status):
        if isinstance(request, RangeByteRequest):
            first, end = request.start, request.end
        elif isinstance(request, SuffixByteRequest):
            last = request.suffix
    elif isinstance(request, RangeByteRequest):
        most = request.end - request.start
    elif isinstance(request, SuffixByteRequest):
        most = request.suffix
    parts: deque[bytes] = deque()
    nbytes = n_kept = 0
    while nbytes <= most and (block := await response.content.readany()):
        part = block[max(0, first - nbytes) : max(0, end - nbytes)]
        nbytes += len(block)
        n_kept += len(part)
        parts.append(part)
        while parts and n_kept - len(parts[0]) >= last:
            n_kept -= len(parts.popleft())
    if nbytes > most:
        response.close()
    return Body(b"".join(parts), first if last == NO_LIMIT else nbytes - n_kept, nbytes)
