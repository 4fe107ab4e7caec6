"""A client for each kind of store: asks for bytes, and for what the store says of their object.

obstore, and fsspec's S3 and HTTP, say with each answer which version of an object it is, and which of its bytes; so a
replaced object and a server that sends other bytes are noticed. All other stores are asked through zarr's interface,
which says nothing. Credentials, options, retries and time-outs are those of the store that the user opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import cpu
from zarr.storage import FsspecStore, ObjectStore, WrapperStore, ZipStore

from xarray_gpuzarr.fetch.remote import forks
from xarray_gpuzarr.fetch.remote.answers import (
    OTHER,
    Answer,
    Body,
    Marks,
    WrongBytesError,
    first_of_rest,
    http_answer,
    is_whole,
    length_alone,
    range_header,
    version_of,
)
from xarray_gpuzarr.fetch.remote.failures import RANGE_NOT_SATISFIABLE, http_status, is_unanswered
from xarray_gpuzarr.fetch.source import is_obstore_memory, wrapped
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_LENGTH_SECONDS = 10.0
"""Longest wait for the length of an object, after a request for its bytes has failed."""


async def is_too_short(err: Exception, request: ByteRequest, ask_nbytes: Callable[[], Awaitable[int]] | None) -> bool:
    """Say whether a request failed with `err` because the object ends before the range begins: status 416 of HTTP.

    The words of an error are not searched: they quote keys and addresses.

    `ask_nbytes` asks for the length of the object; it is called only if the error bears no status, and there was an
    answer: a server that has just fallen silent is not asked once more.
    """
    status = http_status(err)
    if status is not None or ask_nbytes is None or is_unanswered(err):
        return status == RANGE_NOT_SATISFIABLE
    try:
        async with asyncio.timeout(_LENGTH_SECONDS):
            nbytes = await ask_nbytes()
    except Exception:  # noqa: BLE001  # then the first error is the one to tell
        return False
    if isinstance(request, SuffixByteRequest):
        return nbytes == 0
    return nbytes <= (request.start if isinstance(request, RangeByteRequest) else request.offset)


async def read_body(response: Any, request: ByteRequest | None, most_nbytes: int) -> Body:
    """Read what a request needs of the body of an aiohttp response, and keep no more, whatever the server sends.

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


_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""What zarr's `ObjectStore` takes for a missing object; an `FsspecStore` has its own ``allowed_exceptions``."""


class Client(Protocol):
    """One way to ask a store."""

    @property
    def identity(self) -> Hashable:
        """What the client reads from, equal for equal stores; None if its answers bear no version."""

    @property
    def server(self) -> Hashable:
        """What answers, equal for stores that wait for each other's requests, see `server_of`."""

    @property
    def lost_by_fork(self) -> object:
        """What a forked process cannot use if its parent has, see `forks.note`; None if there is nothing."""

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """Ask for bytes of an object, all of them if `request` is None; return None if there is no such object.

        With `if_match`, an ETag, an answer may come without bytes and be of the version `ANOTHER`. Of an object that is
        asked for to its end and is longer than `most_nbytes`, it may tell the length alone.
        """

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """Say whether `get` failed because the object ends before the range begins."""


def client_for(store: Store) -> Client:
    """Return the way to ask a store; for subclasses and wrappers, which may do anything, zarr's own."""
    if type(store) is ObjectStore:
        return ObstoreClient(store.store)
    if type(store) is ZipStore:
        return ZipClient(store)
    kind = type(store.fs if type(store) is FsspecStore else store)
    return _CLIENTS.get(f"{kind.__module__}.{kind.__name__}", StoreClient)(store)


def server_of(store: Store) -> Hashable:
    """Return what is equal for stores of one server; for the same store only, where no host is known."""
    if isinstance(store, FsspecStore):
        url = urlsplit(store.fs.unstrip_protocol(store.path))
        return url.scheme, url.netloc, _digest((store.fs.storage_args, store.fs.storage_options))
    if isinstance(store, ObjectStore):
        return _obstore_server(store.store)
    return str(store)


def _obstore_server(store: Any) -> Hashable:
    options = [getattr(store, name, None) for name in ("config", "client_options")]  # their order says nothing
    said = json.dumps(options, sort_keys=True, default=str)
    return type(store).__name__, urlsplit(getattr(store, "url", "")).netloc, _digest(said)


_NOT_FOUND, _PRECONDITION_FAILED = 404, 412


class StoreClient:
    """Any store, through zarr's interface."""

    identity: Hashable = None
    lost_by_fork: object = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self.server = server_of(store)

    async def get(
        self,
        key: str,
        request: ByteRequest | None,
        if_match: str | None = None,  # noqa: ARG002  # zarr asks for any
        most_nbytes: int = NO_LIMIT,  # noqa: ARG002  # zarr asks for no lengths
    ) -> Answer | None:
        """See `Client.get`."""
        # The host prototype is named, so that zarr.config.enable_gpu() does not move encoded bytes to a device.
        buffer = await self._store.get(key, cpu.buffer_prototype, request)
        if buffer is None:
            return None
        return Answer(data=memoryview(np.ascontiguousarray(buffer.as_numpy_array()).view(np.uint8)))

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """See `Client.is_too_short`; no length is asked for where that would read all of the object."""
        store = self._store
        while isinstance(store, WrapperStore) and type(store).getsize is Store.getsize:
            store = wrapped(store)  # which hands on everything but this
        reads_all = type(store).getsize is Store.getsize
        return await is_too_short(err, request, None if reads_all else lambda: store.getsize(key))


class AdlfsClient(StoreClient):
    """adlfs: Azure knows no suffix ranges, and adlfs sends them all the same."""

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        if not isinstance(request, SuffixByteRequest):
            return await super().get(key, request, if_match, most_nbytes)
        for _ in range(_SUFFIX_TRIES):
            try:
                object_nbytes = await self._store.getsize(key)
            except _ABSENT:
                return None
            suffix = _last_bytes(request, object_nbytes)
            # One byte more than the object should have shows that it has become longer since.
            answer = await super().get(key, RangeByteRequest(suffix.start, suffix.end + 1))
            if answer is None or len(answer.data) == suffix.end - suffix.start:
                return answer
        raise OSError(f"the length of the object changed between {_SUFFIX_TRIES} pairs of requests")


_SUFFIX_TRIES = 3
"""Attempts to read the last bytes of an object in two requests, for its length and for a range."""


def _last_bytes(request: SuffixByteRequest, object_nbytes: int) -> RangeByteRequest:
    """Return a suffix of an object of a known length as a range."""
    return RangeByteRequest(max(0, object_nbytes - request.suffix), object_nbytes)


class ZipClient(StoreClient):
    """A zip file: processes that have it open in common would move each other's place in it."""

    def __init__(self, store: ZipStore) -> None:
        super().__init__(store)
        self.lost_by_fork = store
        forks.note(store)

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`; an entry of a few bytes may stand for gigabytes."""
        first = first_of_rest(request)
        if first is None or most_nbytes == NO_LIMIT:
            return await super().get(key, request, if_match)
        answer = await super().get(key, RangeByteRequest(first, max(first, most_nbytes) + 1), if_match)
        return answer and (length_alone(request, len(answer.data), most_nbytes) or answer)


_ICECHUNK_KEY = re.compile(r"(?:(.+)/)?c((?:/\d+)*)")
"""The key of a chunk or a shard: the array and the coordinate."""


class IcechunkClient(StoreClient):
    """An icechunk session.

    A session that only reads is of one snapshot. The snapshot fixes the bytes of the chunks that icechunk stores; of a
    virtual chunk it fixes the address, not what lies there. That the store only reads proves nothing: zarr makes such
    stores of sessions that write.
    """

    lost_by_fork: object = "icechunk"

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._session = store.session
        self.identity = ("icechunk", str(self._session.snapshot_id)) if self._session.read_only else None
        self._knows_virtual = bool(self._session.config.virtual_chunk_containers)

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        answer = await super().get(key, request, if_match, most_nbytes)
        if answer is None or self.identity is None or (self._knows_virtual and await self._may_be_virtual(key)):
            return answer
        return Answer(data=answer.data, version=self.identity, settled=True)

    async def _may_be_virtual(self, key: str) -> bool:
        """Ask for the kind of a chunk; whether a virtual one bears a checksum cannot be asked."""
        from icechunk import ChunkType  # noqa: PLC0415  # not everyone has it

        match = _ICECHUNK_KEY.fullmatch(key)
        if match is None:
            return True
        coord = [int(n) for n in match[2].split("/")[1:]]
        kind = await self._session.chunk_type_async(f"/{match[1] or ''}", coord)
        return kind not in (ChunkType.native, ChunkType.inline)


class ObstoreClient:
    """An obstore store: S3, GCS, Azure, HTTP, local or in memory. obstore itself refuses other bytes than asked for."""

    lost_by_fork: object = "obstore"

    def __init__(self, store: Any) -> None:
        self._store = store
        self.server = _obstore_server(store)
        place = (self.server, getattr(store, "url", None), str(getattr(store, "prefix", None)))
        self.identity: Hashable = None if is_obstore_memory(store) else ("obstore", _digest(place))

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        import obstore  # noqa: PLC0415  # not everyone has it

        try:
            result = await self._request(key, request, if_match)
            first, end = result.range
            refused = length_alone(request, end - first, most_nbytes)
            if refused is not None:
                return refused
            data = memoryview(await result.bytes_async())
        except _ABSENT:
            return None
        except obstore.exceptions.PreconditionError:
            return OTHER
        if len(data) != end - first:
            raise WrongBytesError(f"the server sent {len(data)} bytes, and said that they are {first} to {end - 1}")
        meta = result.meta
        version, settled = version_of(
            Marks(meta["e_tag"], meta["version"], meta["size"], meta["last_modified"]), datetime.now(UTC)
        )
        return Answer(data=data, object_nbytes=meta["size"], version=version, settled=settled)

    async def _request(self, key: str, request: ByteRequest | None, if_match: str | None) -> Any:
        """Return obstore's answer; see `Client.get`."""
        import obstore  # noqa: PLC0415  # not everyone has it

        try:
            return await obstore.get_async(self._store, key, options=_obstore_options(request, if_match))
        except obstore.exceptions.NotSupportedError:
            if not isinstance(request, SuffixByteRequest):
                raise
        # Azure knows no suffix ranges. The range is requested of the version whose length was asked for.
        for n_left in reversed(range(_SUFFIX_TRIES)):
            meta = await obstore.head_async(self._store, key)
            options = _obstore_options(_last_bytes(request, meta["size"]), if_match or meta["e_tag"])
            try:
                return await obstore.get_async(self._store, key, options=options)
            except obstore.exceptions.PreconditionError:
                if if_match is not None or not n_left:
                    raise
        raise AssertionError

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """See `Client.is_too_short`; obstore's errors bear no status."""
        import obstore  # noqa: PLC0415  # not everyone has it

        async def ask_nbytes() -> int:
            return int((await obstore.head_async(self._store, key))["size"])

        return await is_too_short(err, request, ask_nbytes)


def _obstore_options(request: ByteRequest | None, if_match: str | None) -> Any:
    options: dict[str, Any] = {} if if_match is None else {"if_match": if_match}
    if isinstance(request, RangeByteRequest):
        options["range"] = (request.start, request.end)
    elif isinstance(request, SuffixByteRequest):
        options["range"] = {"suffix": request.suffix}
    elif request is not None:
        options["range"] = {"offset": request.offset}
    return options


class _FsspecClient:
    """A file system of fsspec that is asked past its own methods, which keep headers to themselves."""

    kind: str

    def __init__(self, store: FsspecStore) -> None:
        self._fs: Any = store.fs
        self._path = store.path
        self._absent = store.allowed_exceptions
        self.server = server_of(store)
        self.identity: Hashable = (self.kind, _digest((store.path, self._fs.storage_args, self._fs.storage_options)))
        self.lost_by_fork: object = self._fs

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:  # noqa: ARG002
        """See `Client.is_too_short`."""
        return await is_too_short(err, request, None)


class S3fsClient(_FsspecClient):
    """s3fs: its own calls and retries, for the headers that its `cat_file` keeps to itself."""

    kind = "s3fs"

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        from s3fs.core import _error_wrapper, version_id_kw  # noqa: PLC0415  # not everyone has it

        bucket, name, version = self._fs.split_path(f"{self._path.rstrip('/')}/{key}")
        # Up to 2026.4, s3fs leaves it to each caller to say who pays; later it says so itself, in the same words.
        options = {**version_id_kw(version), **range_header(request), **self._fs.req_kw}
        if if_match is not None:
            options["IfMatch"] = if_match

        await self._fs.set_session()
        s3 = await self._fs.get_s3(bucket)
        # fsspec's coroutines and their parts bear names behind an underscore.
        keywords = self._fs._get_s3_method_kwargs(s3.get_object, Bucket=bucket, Key=name, **options)  # noqa: SLF001

        async def call() -> tuple[bytes | Answer, Mapping[str, Any]]:
            response = await s3.get_object(**keywords)
            try:
                refused = length_alone(request, response["ContentLength"], most_nbytes)
                return refused or await response["Body"].read(), response["ResponseMetadata"]
            finally:
                response["Body"].close()

        try:
            # Around headers and body together: s3fs itself repeats the repetitions of one in those of the other.
            data, said = await _error_wrapper(call, retries=self._fs.retries)
        except Exception as err:
            if if_match is not None and http_status(err) == _PRECONDITION_FAILED:
                return OTHER
            if isinstance(err, self._absent):
                return None
            raise
        if isinstance(data, Answer):
            return data
        body = Body(data, 0, len(data))
        return http_answer(body, said["HTTPHeaders"], request, said["HTTPStatusCode"], most_nbytes)


class HttpClient(_FsspecClient):
    """fsspec's HTTP: its own session and options."""

    kind = "http"

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        options = dict(self._fs.kwargs)
        options["headers"] = {**options.get("headers", {}), **range_header(request)}
        if if_match is not None:
            options["headers"]["If-Match"] = if_match
        session, url = await self._fs.set_session(), f"{self._path.rstrip('/')}/{key}"
        try:
            async with session.get(self._fs.encode_url(url), **options) as response:
                body = await read_body(response, request, most_nbytes)
                if if_match is not None and response.status == _PRECONDITION_FAILED:
                    return OTHER
                if response.status == _NOT_FOUND:
                    raise FileNotFoundError(url)
                response.raise_for_status()
        except self._absent:
            return None
        return http_answer(body, response.headers, request, response.status, most_nbytes)


def _digest(place: object) -> str:
    """Return a short name for what a store reads from now; secrets among its options stay out of it."""
    surroundings = [os.environ.get(name) for name in _ENDPOINTS]
    return hashlib.sha256(repr((place, surroundings)).encode()).hexdigest()


_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Where the environment says which server is meant."""


_CLIENTS: dict[str, Callable[[Any], Client]] = {
    "s3fs.core.S3FileSystem": S3fsClient,
    "fsspec.implementations.http.HTTPFileSystem": HttpClient,
    "adlfs.spec.AzureBlobFileSystem": AdlfsClient,
    "icechunk.store.IcechunkStore": IcechunkClient,
}
"""By the names of stores and file systems, which not everyone has."""
