"""Any zarr store that is not a directory of local files: requests under way on zarr's own event loop.

There is one loop in a process, zarr's, on a thread of its own: stores bind their sessions to the loop that they first
ran on, and waiting for it from another running loop, a notebook's for one, cannot lock up. Retries and time-outs are
those of the store's client; zarr's ``async.timeout`` holds for every request where it is set.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

from xarray_gpuzarr.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch import forks
from xarray_gpuzarr.fetch.answers import Asked, UnderWay, event_loop
from xarray_gpuzarr.fetch.clients import Answer, Client, client_for
from xarray_gpuzarr.fetch.options import fetch_options
from xarray_gpuzarr.fetch.source import (
    Allocate,
    ByteStream,
    Edge,
    MemoryStream,
    Pending,
    PendingEdge,
    PendingObjects,
    PendingStream,
    Storage,
    Version,
    changed,
    failed,
    short,
)

_MIB = 1024**2

_UNDER_WAY = 24
"""Requests of one read that may be under way (decision 13)."""
_WAITING = 8
"""Answers that may wait for a thread before requests have to: the store is not held up by who falls behind a little."""


class StoreSource:
    """Any zarr store, through byte-range requests.

    Parameters
    ----------
    store : zarr.abc.store.Store
    client : Client or None
        How to ask it, if that is known.
    gate : asyncio.Semaphore or None
        Passed by every request that is under way.
    """

    __slots__ = ("_client", "_gate", "_under_way", "store")

    def __init__(self, *, store: Store, client: Client | None = None, gate: asyncio.Semaphore | None = None) -> None:
        self.store = store
        self._client: Client = client or client_for(store)
        self._gate = gate
        self._under_way = UnderWay()

    def for_one_read(self) -> StoreSource:
        """Return this source with a bound of its own on the requests under way."""
        return StoreSource(store=self.store, client=self._client, gate=asyncio.Semaphore(_UNDER_WAY))

    def __repr__(self) -> str:
        return f"StoreSource(store={self.store!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.store,)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self.identity or self.store)

    @property
    def rule(self) -> CoalesceRule:
        """1 MiB gaps, since a round trip costs more, and 4 MiB requests: many connections together are quick."""
        return fetch_options().rule(max_gap_nbytes=_MIB, max_nbytes=4 * _MIB, max_raw_nbytes=4 * _MIB)

    @property
    def lookahead(self) -> int:
        """32 requests of up to 4 MiB for one read, of which 24 are under way."""
        return _UNDER_WAY + _WAITING

    @property
    def is_remote(self) -> bool:
        """True: what is started is under way."""
        return True

    @property
    def identity(self) -> Hashable:
        """What the client says of the store."""
        return self._client.identity

    @property
    def storage(self) -> Storage:
        """``posix``: answers come to the host."""
        return "posix"

    def local_path(self, key: str) -> str:
        """Raise: there is none."""
        raise ValueError(self._name(key))

    def check(self, key: str, version: Version = None) -> None:
        """Raise: there is no local file."""
        raise ValueError(self._name(key), version)

    def prefetch(self, key: str, wanted: ByteRange) -> bool:  # noqa: ARG002  # starting is reading ahead
        """Do nothing: requests are started early instead."""
        return False

    def start(self, key: str, wanted: ByteRange, version: Version = None) -> Pending:
        """Ask the store now; the returned object waits for the answer."""
        return _PendingRange(self._ask(key, _request(wanted)), wanted, version)

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Ask the store now; the returned object waits for the answer."""
        return _PendingEdge(
            self._ask(key, SuffixByteRequest(nbytes) if location == "end" else RangeByteRequest(0, nbytes))
        )

    def start_whole(self, key: str) -> PendingEdge:
        """Ask the store now; the returned object waits for the answer."""
        return _PendingEdge(self._ask(key, None))

    def start_stream(self, key: str, wanted: ByteRange, version: Version = None) -> PendingStream:
        """Ask the store for the whole range now; what it returns is held as it is."""
        return _PendingStream(self._ask(key, _request(wanted)), wanted, version)

    def start_objects(self, keys: Sequence[str], nbytes: int) -> PendingObjects:  # noqa: ARG002  # answers have a length
        """Ask the store for all objects now; the returned object waits for the answers."""
        whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
        return _PendingObjects([_PendingRange(self._ask(key, None), whole, None) for key in keys])

    def give_up(self) -> None:
        """Give up requests that have not been answered."""
        self._under_way.give_up()

    def _ask(self, key: str, request: ByteRequest | None) -> _Asked:
        name = self._name(key)
        loop = event_loop(name)
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # get_running_loop() raises where there is none
            raise StoreReadError(
                f"cannot read {name} here",
                tried="a read from inside zarr's own event loop, which would wait for itself",
                found="a coroutine that zarr runs called a blocking read",
                do="read from another thread: await asyncio.to_thread(...)",
            )
        if self._client.lost_by_fork is not None:
            forks.use(self._client.lost_by_fork, name)
        asked = self._under_way.ask(loop, lambda: _gated(loop, self._gate, self._client.get(key, request)))
        return _Asked(asked=asked, name=name, request=request)

    def _name(self, key: str) -> str:
        return f"{' '.join(str(self.store).split())}/{key}"


def _rebuild(store: Store) -> StoreSource:
    return StoreSource(store=store)


def _request(wanted: ByteRange) -> ByteRequest | None:
    if wanted.nbytes != WHOLE_OBJECT:
        return RangeByteRequest(wanted.offset, wanted.offset + wanted.nbytes)
    return OffsetByteRequest(wanted.offset) if wanted.offset else None


_PAST_THE_END = re.compile(r"\b416\b|not satisfiable|InvalidRange|but object was only", re.IGNORECASE)
"""What servers and clients say of a range that begins behind the last byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request that is under way."""

    asked: Asked[Answer | None]
    name: str
    request: ByteRequest | None

    def answer(self) -> Answer | None:
        limit_s = zarr.config.get("async.timeout", None)
        try:
            return self.asked.result(limit_s)
        except Exception as err:  # a store may raise anything; it is named in the message
            if limit_s is not None and isinstance(err, TimeoutError) and not self.asked.is_answered:
                self.asked.cancel()
                err = TimeoutError(f"no answer in {limit_s} s, zarr's async.timeout")
            elif _PAST_THE_END.search(str(err)):
                return Answer(data=memoryview(b""))
            raise failed(self.name, f"read {_words(self.request)}", err) from err


def _words(request: ByteRequest | None) -> str:
    if isinstance(request, RangeByteRequest):
        return f"{request.end - request.start} bytes at {request.start}"
    if isinstance(request, SuffixByteRequest):
        return f"the last {request.suffix} bytes"
    return "the whole object" if request is None else f"all bytes from {request.offset} on"


class _Pending:
    """A request that waits to be finished."""

    __slots__ = ("asked",)

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked


class _PendingRange(_Pending):
    __slots__ = ("_version", "_wanted")

    def __init__(self, asked: _Asked, wanted: ByteRange, version: Version) -> None:
        super().__init__(asked)
        self._wanted, self._version = wanted, version

    def __call__(self, _allocate: Allocate) -> memoryview | None:
        return _checked(self.asked, self._wanted, self._version)


class _PendingObjects:
    """Several requests that wait to be finished together."""

    __slots__ = ("requests",)

    def __init__(self, requests: Sequence[_PendingRange]) -> None:
        self.requests = requests

    def __call__(self, allocate: Allocate) -> list[memoryview | None]:
        return [request(allocate) for request in self.requests]


class _PendingStream(_Pending):
    __slots__ = ("_version", "_wanted")

    def __init__(self, asked: _Asked, wanted: ByteRange, version: Version) -> None:
        super().__init__(asked)
        self._wanted, self._version = wanted, version

    def __call__(self) -> ByteStream | None:
        data = _checked(self.asked, self._wanted, self._version)
        return None if data is None else MemoryStream(data)


def _checked(asked: _Asked, wanted: ByteRange, version: Version) -> memoryview | None:
    """Wait for a range; refuse one of another version or of another length."""
    answer = asked.answer()
    if version is not None and (answer is None or answer.version != version):
        raise changed(asked.name, version, answer and answer.version)
    if answer is None:
        return None
    if wanted.nbytes not in (WHOLE_OBJECT, len(answer.data)):
        raise short(asked.name, wanted.offset, wanted.nbytes, len(answer.data))
    return answer.data


class _PendingEdge(_Pending):
    __slots__ = ()

    def __call__(self) -> Edge | None:
        answer = self.asked.answer()
        if answer is None:
            return None
        return Edge(
            data=answer.data, object_nbytes=answer.object_nbytes, version=answer.version, settled=answer.settled
        )


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, asyncio.Semaphore]] = WeakKeyDictionary()


async def _gated[T](
    loop: asyncio.AbstractEventLoop, of_read: asyncio.Semaphore | None, coroutine: Coroutine[Any, Any, T]
) -> T:
    """Run a request once no more than ``max_requests`` of this process, nor too many of its read, are under way."""
    limit = fetch_options().max_requests
    gate = _gates.get(loop)
    if gate is None or gate[0] != limit:
        gate = _gates[loop] = (limit, asyncio.Semaphore(limit))
    try:
        async with of_read or nullcontext(), gate[1]:
            return await coroutine
    finally:
        coroutine.close()
