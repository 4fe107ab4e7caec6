"""Tells whether a request failed because the object ends before the range begins, which servers answer with 416.

The error's type and status say so, or else the object's length; never its words, which quote keys and addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.storage import WrapperStore

_RANGE_NOT_SATISFIABLE = 416
_LENGTH_SECONDS = 10.0
"""Longest wait for the length of an object, after a request for its bytes has failed."""


def http_status(err: BaseException) -> int | None:
    """Return the HTTP status that an error or its cause bears, as the errors of the common clients do."""
    response = getattr(err, "response", None)
    said = [getattr(err, name, None) for name in ("status", "status_code", "code")]  # aiohttp, Azure's, Google's
    said.append(getattr(response, "status_code", None))  # requests'
    if isinstance(response, dict):  # botocore's
        said.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for status in said:
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None if err.__cause__ is None else http_status(err.__cause__)


async def is_too_short(err: Exception, request: ByteRequest, ask_nbytes: Callable[[], Awaitable[int]] | None) -> bool:
    """Say whether a request failed with `err` because the object ends before the range begins.

    `ask_nbytes` asks for the length of the object; it is called only if the error bears no status.
    """
    status = http_status(err)
    if status is not None or ask_nbytes is None:
        return status == _RANGE_NOT_SATISFIABLE
    try:
        async with asyncio.timeout(_LENGTH_SECONDS):
            nbytes = await ask_nbytes()
    except Exception:  # noqa: BLE001  # then the first error is the one to tell
        return False
    if isinstance(request, SuffixByteRequest):
        return nbytes == 0
    return nbytes <= (request.start if isinstance(request, RangeByteRequest) else request.offset)


def nbytes_without_reading(store: Store, key: str) -> Callable[[], Awaitable[int]] | None:
    """Return what asks a store for the length of an object; None where that would read all of it."""
    while isinstance(store, WrapperStore) and type(store).getsize is Store.getsize:
        store = store._store  # noqa: SLF001  # zarr's wrappers hand on everything but this
    return None if type(store).getsize is Store.getsize else lambda: store.getsize(key)
