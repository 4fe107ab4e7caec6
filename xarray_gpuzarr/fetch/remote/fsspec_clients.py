"""Clients for s3fs and for fsspec's HTTP file system, which return the version and the range of their bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import FsspecStore

from xarray_gpuzarr.fetch.remote.answers import (
    OTHER_VERSION_ANSWER,
    Answer,
    Body,
    http_answer,
    is_whole,
    length_only_answer,
    open_range_start,
    range_header,
)
from xarray_gpuzarr.fetch.remote.failures import http_status
from xarray_gpuzarr.fetch.remote.servers import digest, server_of
from xarray_gpuzarr.fetch.remote.store_clients import is_too_short
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_NOT_FOUND = 404
_PRECONDITION_FAILED = 412


class _FsspecClient:
    """Base of clients for file systems of fsspec. They make the requests themselves: fsspec's methods drop headers."""

    kind: str
    """Name of the file system in `identity`."""

    def __init__(self, store: FsspecStore) -> None:
        self._fs: Any = store.fs
        self._path = store.path
        self._absent = store.allowed_exceptions
        """Classes of errors that mean a missing object, which the user may choose."""
        self.server = server_of(store)
        self.identity: Hashable = (self.kind, digest((store.path, self._fs.storage_args, self._fs.storage_options)))
        self.lost_by_fork: object = self._fs

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:  # noqa: ARG002
        """Whether the object ends before the range begins; see `Client.is_too_short`.

        fsspec's error has an HTTP status in that case, so the length is never requested.
        """
        return await is_too_short(err, request, ask_nbytes=None)


class S3fsClient(_FsspecClient):
    """A store on s3fs, with its calls and retries."""

    kind = "s3fs"

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        from s3fs.core import _error_wrapper, version_id_kw  # noqa: PLC0415  # an optional dependency

        bucket, name, version = self._fs.split_path(f"{self._path.rstrip('/')}/{key}")
        # Up to 2026.4, s3fs leaves "requester pays" to each caller. Later it adds the same options itself.
        options = {**version_id_kw(version), **range_header(request), **self._fs.req_kw}
        if if_match is not None:
            options["IfMatch"] = if_match

        await self._fs.set_session()
        s3 = await self._fs.get_s3(bucket)
        # s3fs has no public method that returns the keyword arguments without making the request.
        keywords = self._fs._get_s3_method_kwargs(s3.get_object, Bucket=bucket, Key=name, **options)  # noqa: SLF001

        async def call() -> Answer | tuple[bytes, Mapping[str, Any]]:
            response = await s3.get_object(**keywords)
            try:
                too_long = length_only_answer(request, response["ContentLength"], most_nbytes)
                if too_long is not None:
                    return too_long
                return await response["Body"].read(), response["ResponseMetadata"]
            finally:
                response["Body"].close()

        try:
            # One retry loop for headers and body. s3fs itself nests two, which multiplies the number of requests.
            result = await _error_wrapper(call, retries=self._fs.retries)
        except Exception as err:
            if if_match is not None and http_status(err) == _PRECONDITION_FAILED:
                return OTHER_VERSION_ANSWER
            if isinstance(err, self._absent):
                return None
            raise
        if isinstance(result, Answer):
            return result
        data, metadata = result
        body = Body(data, 0, len(data))
        return http_answer(body, metadata["HTTPHeaders"], request, metadata["HTTPStatusCode"], most_nbytes)


class HttpClient(_FsspecClient):
    """A store on fsspec's HTTP file system, with its session and options."""

    kind = "http"

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        options = dict(self._fs.kwargs)
        options["headers"] = {**options.get("headers", {}), **range_header(request)}
        if if_match is not None:
            options["headers"]["If-Match"] = if_match
        session = await self._fs.set_session()
        url = f"{self._path.rstrip('/')}/{key}"
        try:
            async with session.get(self._fs.encode_url(url), **options) as response:
                # The body is read whatever the status: aiohttp closes connections with bytes that nobody has read.
                body = await read_body(response, request, most_nbytes)
                if if_match is not None and response.status == _PRECONDITION_FAILED:
                    return OTHER_VERSION_ANSWER
                if response.status == _NOT_FOUND:
                    raise FileNotFoundError(url)  # an error of the read if `_absent` lacks this class
                response.raise_for_status()
        except self._absent:
            return None
        return http_answer(body, response.headers, request, response.status, most_nbytes)


async def read_body(response: Any, request: ByteRequest | None, most_nbytes: int) -> Body:
    """Read the body of an aiohttp response, and keep only the bytes that a request needs.

    If the body is longer than it may be, reading stops when that is known. If the request goes to the end of the
    object, the limit is `most_nbytes`. A whole object that answers a request for a range is read to its end, beyond the
    range: `http_answer` needs the length of the body to tell a whole object from a range.
    """
    start, end, suffix_nbytes = _kept_range(response, request)
    if open_range_start(request) is not None:  # the request goes to the end of the object
        max_nbytes = most_nbytes
    elif is_whole(response.headers, response.status):
        max_nbytes = NO_LIMIT
    elif isinstance(request, RangeByteRequest):
        max_nbytes = request.end - request.start
    else:
        assert isinstance(request, SuffixByteRequest)
        max_nbytes = request.suffix

    parts: deque[bytes] = deque()
    nbytes = n_kept = 0
    while nbytes <= max_nbytes:
        block = await response.content.readany()
        if not block:
            break
        part = block[max(0, start - nbytes) : max(0, end - nbytes)]
        nbytes += len(block)
        n_kept += len(part)
        parts.append(part)
        while parts and n_kept - len(parts[0]) >= suffix_nbytes:  # the suffix begins after this part
            n_kept -= len(parts.popleft())
    if nbytes > max_nbytes:
        response.close()
    first = start if suffix_nbytes == NO_LIMIT else nbytes - n_kept
    return Body(b"".join(parts), first, nbytes)


def _kept_range(response: Any, request: ByteRequest | None) -> tuple[int, int, int]:
    """Return which bytes of a body are needed, as ``(start, end, suffix_nbytes)``.

    These are the last `suffix_nbytes` of the bytes ``[start, end)``. `NO_LIMIT` as `end` is the end of the body; as
    `suffix_nbytes`, it stands for all bytes of the range.
    """
    if is_whole(response.headers, response.status):
        if isinstance(request, RangeByteRequest):
            return request.start, request.end, NO_LIMIT
        if isinstance(request, SuffixByteRequest):
            return 0, NO_LIMIT, request.suffix
    return 0, NO_LIMIT, NO_LIMIT
