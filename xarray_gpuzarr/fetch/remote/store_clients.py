"""Clients that request bytes through zarr's interface, for any store.

Through this interface, answers have no version and no range. Only icechunk's sessions have versions.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import cpu
from zarr.storage import WrapperStore, ZipStore

from xarray_gpuzarr.fetch.remote import forks
from xarray_gpuzarr.fetch.remote.answers import Answer, length_only_answer, open_range_start
from xarray_gpuzarr.fetch.remote.failures import RANGE_NOT_SATISFIABLE, http_status, is_unanswered
from xarray_gpuzarr.fetch.remote.servers import server_of
from xarray_gpuzarr.fetch.stores import inner_store
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_LENGTH_TIMEOUT_S = 10.0
"""Time limit of a request for the length of an object, after a request for its bytes has failed."""
ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of obstore and adlfs that mean a missing object: those that zarr's `ObjectStore` treats as such. The
clients in `fsspec_clients` go by the store's ``allowed_exceptions`` instead."""
SUFFIX_ATTEMPTS = 3
"""Number of attempts to read the last bytes of an object with two requests, for its length and for a range."""


class Client(Protocol):
    """Sends requests to one store."""

    @property
    def identity(self) -> Hashable:
        """Value that all clients of one store share, and that differs between stores.

        None if the client's answers have no versions.
        """

    @property
    def server(self) -> Hashable:
        """The server, as `server_of` returns it."""

    @property
    def lost_by_fork(self) -> object:
        """What a forked process cannot use if its parent has used it; None if there is nothing.

        It is an object, or the name of a library whose clients share their threads; see `forks.remember`.
        """

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """Request bytes of an object.

        Parameters
        ----------
        key : str
            Key of the object.
        request : zarr.abc.store.ByteRequest or None
            The bytes; None for all of them.
        if_match : str, optional
            An ETag. If the object has another one, the answer may be `OTHER_VERSION_ANSWER`.
        most_nbytes : int
            Length in bytes above which an object is too long to be read to its end. The answer to a request for all
            bytes from some byte on may then have no bytes. Its `object_nbytes` is the length of the object, or a lower
            bound of it that exceeds the limit.

        Returns
        -------
        Answer or None
            None if there is no such object.
        """

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """Whether `get` raised `err` because the object ends before the range begins."""


async def is_too_short(err: Exception, request: ByteRequest, ask_nbytes: Callable[[], Awaitable[int]] | None) -> bool:
    """Whether a request failed because the object ends before the range begins (HTTP status 416).

    The text of the error is not searched, since it quotes keys and addresses.

    Parameters
    ----------
    err : Exception
        What the client raised.
    request : zarr.abc.store.ByteRequest
        The requested bytes.
    ask_nbytes : callable, optional
        Requests the length of the object. It is called only if the error has no status and there was an answer: a
        server that has stopped answering gets no more requests.
    """
    status = http_status(err)
    if status is not None:
        return status == RANGE_NOT_SATISFIABLE
    if ask_nbytes is None or is_unanswered(err):
        return False
    try:
        async with asyncio.timeout(_LENGTH_TIMEOUT_S):
            nbytes = await ask_nbytes()
    except Exception:  # noqa: BLE001  # the first error is the one to raise
        return False
    if isinstance(request, SuffixByteRequest):
        return nbytes == 0
    return nbytes <= (request.start if isinstance(request, RangeByteRequest) else request.offset)


def suffix_range(request: SuffixByteRequest, object_nbytes: int) -> RangeByteRequest:
    """Return the range that a request for the last bytes means in an object of `object_nbytes` bytes."""
    return RangeByteRequest(max(0, object_nbytes - request.suffix), object_nbytes)


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
        if_match: str | None = None,  # noqa: ARG002  # zarr has no conditional requests
        most_nbytes: int = NO_LIMIT,  # noqa: ARG002  # zarr does not tell lengths
    ) -> Answer | None:
        """See `Client.get`."""
        # The prototype is explicit, so that zarr.config.enable_gpu() does not move encoded bytes to a device.
        buffer = await self._store.get(key, cpu.buffer_prototype, request)
        if buffer is None:
            return None
        return Answer(data=memoryview(np.ascontiguousarray(buffer.as_numpy_array()).view(np.uint8)))

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """See `Client.is_too_short`. The length is not requested if the store would read the whole object for it."""
        store = self._store
        while isinstance(store, WrapperStore) and type(store).getsize is Store.getsize:
            store = inner_store(store)  # the wrapper does not forward `getsize`
        reads_all = type(store).getsize is Store.getsize
        return await is_too_short(err, request, None if reads_all else lambda: store.getsize(key))


class AdlfsClient(StoreClient):
    """A store on adlfs, which sends suffix ranges although Azure does not support them."""

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        if not isinstance(request, SuffixByteRequest):
            return await super().get(key, request, if_match, most_nbytes)
        for _ in range(SUFFIX_ATTEMPTS):
            try:
                object_nbytes = await self._store.getsize(key)
            except ABSENT:
                return None
            last_bytes = suffix_range(request, object_nbytes)
            # One byte more is requested, which shows whether the object has become longer meanwhile.
            answer = await super().get(key, RangeByteRequest(last_bytes.start, last_bytes.end + 1))
            if answer is None or len(answer.data) == last_bytes.end - last_bytes.start:
                return answer
        raise OSError(f"the length of the object changed between {SUFFIX_ATTEMPTS} pairs of requests")


class ZipClient(StoreClient):
    """A zip file. A fork shares its open file, and with it the position, so both processes would read wrong bytes."""

    def __init__(self, store: ZipStore) -> None:
        super().__init__(store)
        self.lost_by_fork = store
        # zarr-python may have opened the file already. So the store is remembered now, while other clients are at their
        # first request.
        forks.remember(store)

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`. A compressed entry of a few bytes may expand to gigabytes: reading stops at the limit."""
        start = open_range_start(request)
        if start is None or most_nbytes == NO_LIMIT:
            return await super().get(key, request, if_match)
        # One byte more than the limit shows that the entry is longer. The answer's `object_nbytes` is then only a lower
        # bound.
        answer = await super().get(key, RangeByteRequest(start, max(start, most_nbytes) + 1), if_match)
        if answer is None:
            return None
        return length_only_answer(request, len(answer.data), most_nbytes) or answer


_ICECHUNK_KEY = re.compile(r"(?:(.+)/)?c((?:/\d+)*)")
"""Key of a chunk or a shard: path of the array, and coordinates."""


class IcechunkClient(StoreClient):
    """An icechunk session.

    A read-only session has one snapshot, which determines the bytes of the chunks that icechunk stores. For a virtual
    chunk it determines the address, but not the bytes there. A read-only store is not enough: zarr makes read-only
    stores of writable sessions.
    """

    lost_by_fork: object = "icechunk"

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._session = store.session
        self.identity = ("icechunk", str(self._session.snapshot_id)) if self._session.read_only else None
        self._may_have_virtual_chunks = bool(self._session.config.virtual_chunk_containers)

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        answer = await super().get(key, request, if_match, most_nbytes)
        if answer is None or self.identity is None:
            return answer
        if self._may_have_virtual_chunks and await self._may_be_virtual(key):
            return answer
        return Answer(data=answer.data, version=self.identity, settled=True)

    async def _may_be_virtual(self, key: str) -> bool:
        """Whether an object may be a virtual chunk.

        True also for a chunk that has been deleted meanwhile, and for a key that is not recognised as a chunk's, about
        which icechunk cannot be asked. The bytes of a virtual chunk with a checksum would be certain, too, but icechunk
        does not tell which have one.
        """
        from icechunk import ChunkType  # noqa: PLC0415  # an optional dependency

        match = _ICECHUNK_KEY.fullmatch(key)
        if match is None:
            return True
        coord = [int(n) for n in match[2].split("/")[1:]]
        kind = await self._session.chunk_type_async(f"/{match[1] or ''}", coord)
        return kind not in (ChunkType.native, ChunkType.inline)
