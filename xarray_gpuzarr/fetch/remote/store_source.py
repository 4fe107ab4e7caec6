"""Any zarr store that is not a directory of local files: requests under way on zarr's own event loop.

There is one loop in a process, zarr's, on a thread of its own: stores bind their sessions to the loop that they first
ran on, and waiting for it from another running loop, a notebook's for one, cannot lock up. Retries and time-outs are
those of the store's client; zarr's ``async.timeout`` holds for every request where it is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

from xarray_gpuzarr.errors import StoreReadError, masked
from xarray_gpuzarr.fetch.remote import forks
from xarray_gpuzarr.fetch.remote.answers import Answer, WrongBytesError, strong_tag
from xarray_gpuzarr.fetch.remote.clients import Client, client_for
from xarray_gpuzarr.fetch.remote.failures import is_unanswered
from xarray_gpuzarr.fetch.remote.under_way import Reply, UnderWay, event_loop
from xarray_gpuzarr.fetch.source import (
    UNTAGGED,
    Edge,
    ObjectTooLongError,
    Pending,
    PendingEdge,
    Request,
    SourceWithoutFiles,
    Version,
    changed,
    failed,
    short,
    store_token,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that is under way."""

    reply: Reply[Answer | None]
    key: str
    name: str
    request: ByteRequest | None

    def answer(self) -> Answer | None:
        """Wait for the answer; None if there is no such object."""
        limit_s = zarr.config.get("async.timeout", None)
        try:
            return self.reply.result(limit_s)
        except Exception as err:  # a store may raise anything; it is named in the message
            if limit_s is not None and isinstance(err, TimeoutError) and not self.reply.is_answered:
                self.reply.cancel()
                err = TimeoutError(f"no answer in {limit_s} s, zarr's async.timeout")
            raise failed(self.name, f"read {_words(self.request)}", err) from err


def _words(request: ByteRequest | None) -> str:
    if isinstance(request, RangeByteRequest):
        return f"{request.end - request.start} bytes at {request.start}"
    if isinstance(request, SuffixByteRequest):
        return f"the last {request.suffix} bytes"
    return "the whole object" if request is None else f"all bytes from {request.offset} on"


def range_of(asked: Asked, byte_range: ByteRange, version: Version, most_nbytes: int) -> memoryview | None:
    """Wait for a range; refuse one of another version or of another length, and an object that is too long."""
    answer = asked.answer()
    if answer is None:
        if version is None or version == UNTAGGED:
            return None
        raise changed(asked.name, version, None, asked.key)
    if not answer.is_of(version):
        raise changed(asked.name, version, answer.version or UNTAGGED, asked.key)
    if byte_range.nbytes == WHOLE_OBJECT:
        nbytes = max(answer.object_nbytes or 0, byte_range.offset + len(answer.data))
        if nbytes > most_nbytes:
            raise ObjectTooLongError(asked.key, nbytes)
    elif byte_range.nbytes != len(answer.data):
        raise short(asked.name, byte_range.offset, byte_range.nbytes, len(answer.data))
    return answer.data


def edge_of(asked: Asked) -> Edge | None:
    """Wait for the first or last bytes of an object, or for all of it."""
    answer = asked.answer()
    if answer is None:
        return None
    return Edge(data=answer.data, object_nbytes=answer.object_nbytes, version=answer.version, settled=answer.settled)


_MIB = 1024**2

_UNDER_WAY, _SHORT_UNDER_WAY = 24, 48
"""Requests of one read that may be under way, and that many if all of them are short (decision 13)."""
UNDER_WAY_NBYTES = 96 * _MIB
_RULE = CoalesceRule(
    max_gap_nbytes=_MIB, spared_gap_nbytes=32 * 1024, max_nbytes=_MIB, max_raw_nbytes=4 * _MIB, n_requests=_UNDER_WAY
)
_ROUNDS = 2
"""Times that all requests which may be under way are made before gaps are read to have fewer: planes of a volume at
5 ms of latency took 169 ms with one and 124 with as many as needed, at 30 ms 183 and 174 (November 2026, two busy
cores)."""
_TRIES = 64
"""Answers of other tags in a row after which a read asks no more for one of several: of 5 servers at random, that many
come after one in 1.6 million answers."""
_WRONG_ANSWERS = 2
"""Answers that are not the bytes that they say they are, after which a request is made once more."""
_WAITING = 8
"""Answers that may wait for a thread before requests have to: the store is not held up by who falls behind a little."""


class StoreSource(SourceWithoutFiles):
    """Any zarr store, through byte-range requests.

    As the source of one read, it has at most `n_under_way` requests under way at once, asks again while answers are of
    another version than the one wanted if `ask_again`, and takes objects of at most `most_nbytes` for chunks.
    """

    is_remote = True

    __slots__ = ("_ask_again", "_client", "_gate", "_most_nbytes", "_n_in_vain", "_n_under_way", "_under_way", "store")

    def __init__(
        self,
        *,
        store: Store,
        client: Client | None = None,
        n_under_way: int | None = None,
        ask_again: bool = False,
        most_nbytes: int = NO_LIMIT,
    ) -> None:
        self.store = store
        self._client: Client = client or client_for(store)
        self._n_under_way = n_under_way or _UNDER_WAY
        self._gate = None if n_under_way is None else asyncio.Semaphore(n_under_way)
        self._ask_again, self._most_nbytes = ask_again, most_nbytes
        self._n_in_vain = 0
        """Number of answers, since the last one of the right version, that were of another. On the event loop."""
        self._under_way = UnderWay()

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> StoreSource:
        """Return this source with bounds of its own, on the requests under way and on objects that are chunks."""
        n = _UNDER_WAY
        if expected_nbytes is not None:
            n = min(max(n, UNDER_WAY_NBYTES // max(1, expected_nbytes)), _SHORT_UNDER_WAY)
        n = max(1, min(n, fetch_options().max_requests - 1))  # no read alone keeps others of its server waiting
        return StoreSource(
            store=self.store, client=self._client, n_under_way=n, ask_again=ask_again, most_nbytes=most_nbytes
        )

    def __repr__(self) -> str:
        return masked(f"StoreSource(store={self.store!r})")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.store,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, repr(self.identity or store_token(self.store)))

    @property
    def rule(self) -> CoalesceRule:
        """1 MiB requests, whose chunks are decoded while others come, and gaps as short as what is under way allows."""
        n_free = max(1, fetch_options().max_requests - UnderWay.n_of_process)
        n_requests = _ROUNDS * min(n_free, self._n_under_way)
        return coalesce_rule(fetch_options(), replace(_RULE, n_requests=n_requests))

    @property
    def lookahead(self) -> int:
        """Return 32 requests of up to 4 MiB for one read, of which 24 are under way; 56 short ones, of which 48 are."""
        return self._n_under_way + _WAITING

    @property
    def name(self) -> str:
        """What the store says of itself, on one line, without secrets."""
        return _shown(str(self.store))

    @property
    def identity(self) -> Hashable:
        """What the client says of the store."""
        return self._client.identity

    @property
    def cuts_objects(self) -> bool:
        """Whether answers bear the version of their object, as those of clients with an identity do."""
        return self.identity is not None

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Ask the store for everything now; the returned function waits for the answers."""
        most, ranges = self._most_nbytes, [byte_range for _, byte_range in requests]
        all_asked = self._ask_all([(key, _request(byte_range)) for key, byte_range in requests], version, most)
        return lambda _allocate: [range_of(*each, version, most) for each in zip(all_asked, ranges, strict=True)]

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Ask the store now; the returned object waits for the answer."""
        edge = SuffixByteRequest(nbytes) if location == "end" else RangeByteRequest(0, nbytes)
        return partial(edge_of, self._ask(key, edge))

    def start_range(self, key: str, byte_range: ByteRange) -> PendingEdge:
        """Ask the store now; the returned object waits for the answer."""
        return partial(edge_of, self._ask(key, _request(byte_range)))

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:
        """Ask the store now; the returned object waits for the answer."""
        return partial(edge_of, self._ask(key, None, most_nbytes))

    def give_up(self) -> None:
        """Give up requests that have not been answered."""
        self._under_way.give_up()

    def _ask(self, key: str, request: ByteRequest | None, most_nbytes: int = NO_LIMIT) -> Asked:
        return self._ask_all([(key, request)], None, most_nbytes)[0]

    def _ask_all(
        self, questions: Sequence[tuple[str, ByteRequest | None]], version: Version, most_nbytes: int
    ) -> list[Asked]:
        if not questions:
            return []
        name = self._name(questions[0][0])
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
        of_version = version if self._ask_again else None
        requests = [partial(self._answer, loop, *each, of_version, most_nbytes) for each in questions]
        replies = self._under_way.ask(loop, requests)
        return [
            Asked(reply=reply, key=key, name=self._name(key), request=request)
            for reply, (key, request) in zip(replies, questions, strict=True)
        ]

    async def _answer(
        self, loop: asyncio.AbstractEventLoop, key: str, request: ByteRequest | None, version: Version, most_nbytes: int
    ) -> Answer | None:
        """Ask once no more than ``max_requests`` to this server, nor too many of this read, are under way.

        If a version is given, ask until an answer is of it, or `_TRIES` answers in a row to this read are of others.
        """
        async with self._gate or nullcontext(), _gate(loop, self._client.server):
            tag = strong_tag(version)
            while True:
                try:
                    answer = await self._get(key, request, tag, most_nbytes)
                except Exception as err:  # of any kind: it is looked at
                    if tag is not None and not is_unanswered(err):  # by a server that knows no If-Match, perhaps
                        tag = None
                        continue
                    if request is None or isinstance(err, WrongBytesError):
                        raise
                    if not await self._client.is_too_short(err, key, request):
                        raise
                    answer = Answer(data=memoryview(b""))
                if answer is not None and answer.is_of(version):
                    self._n_in_vain = 0
                    return answer
                self._n_in_vain += 1
                if version is None or self._n_in_vain >= _TRIES:
                    return answer

    async def _get(self, key: str, request: ByteRequest | None, tag: str | None, most_nbytes: int) -> Answer | None:
        """Ask the client, and again if the bytes are not those that the answer says they are."""
        for _ in range(_WRONG_ANSWERS):
            with suppress(WrongBytesError):
                return await self._client.get(key, request, tag, most_nbytes)
        return await self._client.get(key, request, tag, most_nbytes)

    def _name(self, key: str) -> str:
        return f"{self.name}/{key}"


@lru_cache(maxsize=64)  # every request has a name
def _shown(store: str) -> str:
    """Return how a store is named, on one line."""
    return masked(" ".join(store.split()))


def _rebuild(store: Store) -> StoreSource:
    return StoreSource(store=store)


def _request(byte_range: ByteRange) -> ByteRequest | None:
    if byte_range.nbytes != WHOLE_OBJECT:
        return RangeByteRequest(byte_range.offset, byte_range.offset + byte_range.nbytes)
    return OffsetByteRequest(byte_range.offset) if byte_range.offset else None


_Gates = WeakValueDictionary[tuple[Hashable, int], asyncio.Semaphore]
_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gates] = WeakKeyDictionary()
"""What requests that are under way have passed, by server and limit: a silent server holds up none of another."""


def requests_at_once() -> int:
    """Return how many requests for metadata may be under way: zarr's ``async.concurrency`` where it was changed."""
    chosen: int | None = zarr.config.get("async.concurrency")  # None bounds nothing where zarr-python takes it
    usual: int = zarr.config.defaults[0]["async"]["concurrency"]
    return fetch_options().max_requests if chosen in (None, usual) else chosen


def _gate(loop: asyncio.AbstractEventLoop, server: Hashable) -> asyncio.Semaphore:
    """Return what lets ``max_requests`` to a server pass at once. On the event loop."""
    limit = fetch_options().max_requests
    of_loop = _gates.setdefault(loop, WeakValueDictionary())
    return of_loop.setdefault((server, limit), asyncio.Semaphore(limit))
