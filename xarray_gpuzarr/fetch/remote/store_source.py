"""`StoreSource`: any zarr store but local files and zarr's `MemoryStore`, by requests on zarr's own event loop.

A process has one such loop, on a thread of its own. Stores bind their sessions to the loop on which they first run, and
a thread that has a running loop itself, such as a notebook's, can wait for zarr's without a deadlock. Retries and
timeouts are those of the store's client. zarr's ``async.timeout`` applies to each request, if it is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

from xarray_gpuzarr.errors import StoreReadError, masked
from xarray_gpuzarr.fetch.remote import forks
from xarray_gpuzarr.fetch.remote.answers import Answer, WrongBytesError, strong_tag
from xarray_gpuzarr.fetch.remote.clients import client_for
from xarray_gpuzarr.fetch.remote.failures import is_unanswered
from xarray_gpuzarr.fetch.remote.outstanding import OutstandingRequest, finish_edge, finish_range
from xarray_gpuzarr.fetch.remote.request_limits import MAX_OUTSTANDING, most_outstanding, server_limit
from xarray_gpuzarr.fetch.remote.store_clients import Client
from xarray_gpuzarr.fetch.remote.under_way import RequestsUnderWay, event_loop
from xarray_gpuzarr.fetch.source import (
    Allocate,
    Pending,
    PendingEdge,
    Request,
    SourceWithoutFiles,
    Version,
)
from xarray_gpuzarr.fetch.stores import store_token
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2

_RULE = CoalesceRule(
    max_gap_nbytes=_MIB,
    min_skipped_gap_nbytes=32 * 1024,
    max_nbytes=_MIB,
    max_raw_nbytes=4 * _MIB,
)
"""Rule without `n_cheap_requests`, which depends on what else is under way; see `StoreSource.rule`."""
_ROUNDS = 2
"""Number of rounds that a read may need before it reads long gaps between chunks, and so needs fewer requests. A round
is as many requests as may be outstanding at once. There is a limit because servers charge for requests, and refuse too
many of them. The limit costs time where the server is near: planes of a volume took 124 ms without a limit and 169 ms
with a limit of 1 round at a latency of 5 ms, and 174 and 183 ms at 30 ms (November 2026, two busy cores). With a limit
of 2 rounds, the times lie in between."""
_MAX_OTHER_VERSIONS = 64
"""Number of consecutive answers with another ETag after which a read stops repeating a request. If 5 servers answer at
random, that happens once in 1.6 million answers."""
_MAX_REPEATS = 2
"""Number of times that a request is repeated because the answer has other bytes than its headers say."""
_N_WAITING = 8
"""Number of answers that may wait for a thread, so that the store stays busy when threads fall behind a little."""


class StoreSource(SourceWithoutFiles):
    """Any zarr store, by byte-range requests.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store.
    client : Client, optional
        Client that sends the requests; by default, the client for the kind of the store.
    max_outstanding : int, optional
        For the source of one read: the number of its requests that may be outstanding at once. Without it, there is no
        limit.
    ask_again, most_nbytes
        See `ObjectSource.for_one_read`.
    """

    is_remote = True

    __slots__ = (
        "_ask_again",
        "_client",
        "_max_outstanding",
        "_most_nbytes",
        "_n_other_versions",
        "_read_limit",
        "_requests",
        "store",
    )

    def __init__(
        self,
        *,
        store: Store,
        client: Client | None = None,
        max_outstanding: int | None = None,
        ask_again: bool = False,
        most_nbytes: int = NO_LIMIT,
    ) -> None:
        self.store = store
        self._client: Client = client or client_for(store)
        self._max_outstanding = max_outstanding or MAX_OUTSTANDING  # `rule` and `lookahead` need a number
        self._read_limit = None if max_outstanding is None else asyncio.Semaphore(max_outstanding)
        self._ask_again = ask_again
        self._most_nbytes = most_nbytes
        self._n_other_versions = 0
        """Number of consecutive answers without an object of the requested version. Used on the event loop only."""
        self._requests = RequestsUnderWay()

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> StoreSource:
        """Return a source with a limit of its own on outstanding requests; see `ObjectSource.for_one_read`."""
        return StoreSource(
            store=self.store,
            client=self._client,
            max_outstanding=most_outstanding(expected_nbytes),
            ask_again=ask_again,
            most_nbytes=most_nbytes,
        )

    def __repr__(self) -> str:
        return masked(f"StoreSource(store={self.store!r})")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.store,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, repr(self.identity or store_token(self.store)))

    @property
    def rule(self) -> CoalesceRule:
        """Rule with requests of 1 MiB, whose chunks are decoded while others arrive.

        Long gaps are read if a read would need more than `_ROUNDS` times as many requests as it may have outstanding.
        Requests of other reads of the process leave fewer for this one, whatever server they go to.
        """
        options = fetch_options()
        n_free = max(1, options.max_requests - RequestsUnderWay.n_in_process)
        n_cheap_requests = _ROUNDS * min(n_free, self._max_outstanding)
        return coalesce_rule(options, replace(_RULE, n_cheap_requests=n_cheap_requests))

    @property
    def lookahead(self) -> int:
        """Number of requests worth starting early: 32 for one read, of which 24 are outstanding at once, by default.

        Both are larger, up to 56 and 48, for a read whose requests are expected to be short; see `most_outstanding`.
        """
        return self._max_outstanding + _N_WAITING

    @property
    def name(self) -> str:
        """Name of the store, as errors show it: on one line, without secrets."""
        return _shown(str(self.store))

    @property
    def identity(self) -> Hashable:
        """Identity of the store, as its client knows it; None if answers have no versions."""
        return self._client.identity

    @property
    def cuts_objects(self) -> bool:
        """Whether long chunks may be requested in pieces: only if answers tell the version, to compare the pieces.

        The answers of clients with an identity do.
        """
        return self.identity is not None

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Send requests now; the returned function waits for the answers. See `ObjectSource.start`."""
        most_nbytes = self._most_nbytes
        store_requests = [(key, _store_request(byte_range)) for key, byte_range in requests]
        outstanding = self._send_all(store_requests, version, most_nbytes)

        def finish(_allocate: Allocate) -> list[memoryview | None]:
            return [
                finish_range(request, byte_range, version, most_nbytes)
                for request, (_, byte_range) in zip(outstanding, requests, strict=True)
            ]

        return finish

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Send a request now; the returned function waits for the answer."""
        edge = SuffixByteRequest(nbytes) if location == "end" else RangeByteRequest(0, nbytes)
        return partial(finish_edge, self._send(key, edge))

    def start_range(self, key: str, byte_range: ByteRange) -> PendingEdge:
        """Send a request now; the returned function waits for the answer."""
        return partial(finish_edge, self._send(key, _store_request(byte_range)))

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:
        """Send a request now; the returned function waits for the answer."""
        return partial(finish_edge, self._send(key, None, most_nbytes))

    def give_up(self) -> None:
        """Cancel requests that have not been answered."""
        self._requests.give_up()

    def require_usable(self, name: str = "") -> None:
        """Remember that this process uses the client. Raises `StoreReadError` if the parent of a fork has used it."""
        if self._client.lost_by_fork is not None:
            forks.check_usable(self._client.lost_by_fork, name or self.name)

    def _send(self, key: str, request: ByteRequest | None, most_nbytes: int = NO_LIMIT) -> OutstandingRequest:
        return self._send_all([(key, request)], None, most_nbytes)[0]

    def _send_all(
        self, requests: Sequence[tuple[str, ByteRequest | None]], version: Version, most_nbytes: int
    ) -> list[OutstandingRequest]:
        """Send requests, each with the key of its object; None stands for all bytes of it."""
        if not requests:
            return []
        name = self._name(requests[0][0])
        loop = event_loop(name)
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # get_running_loop() raises where there is none
            raise StoreReadError(
                f"cannot read {name} here",
                tried="a read from inside zarr's own event loop, which would wait for itself",
                found="a coroutine that zarr runs called a blocking read",
                do="read from another thread: await asyncio.to_thread(...)",
            )
        self.require_usable(name)
        required_version = version if self._ask_again else None
        coroutines = [
            partial(self._answer, loop, key, request, required_version, most_nbytes) for key, request in requests
        ]
        replies = self._requests.start(loop, coroutines)
        return [
            OutstandingRequest(reply=reply, key=key, name=self._name(key), request=request)
            for reply, (key, request) in zip(replies, requests, strict=True)
        ]

    async def _answer(
        self, loop: asyncio.AbstractEventLoop, key: str, request: ByteRequest | None, version: Version, most_nbytes: int
    ) -> Answer | None:
        """Request bytes of an object, once the limits of this read and of the server have room for a request.

        If a version is given, the request is repeated until an answer has it, or until `_MAX_OTHER_VERSIONS`
        consecutive answers to this read have another one. A range that begins behind the end of the object gets an
        answer without bytes.
        """
        async with self._read_limit or nullcontext(), server_limit(loop, self._client.server):
            tag = strong_tag(version)  # dropped below if the server does not support If-Match
            while True:
                try:
                    answer = await self._get(key, request, tag, most_nbytes)
                except Exception as err:  # a store may raise anything
                    if tag is not None and not is_unanswered(err):
                        tag = None
                        continue
                    # The error may mean that the range begins behind the end of the object, unless the whole object was
                    # requested or wrong bytes have arrived.
                    if request is None or isinstance(err, WrongBytesError):
                        raise
                    if not await self._client.is_too_short(err, key, request):
                        raise
                    answer = Answer(data=memoryview(b""))
                if answer is None and version is None:  # there is no such object, of whichever version
                    return None
                if answer is not None and answer.is_of(version):
                    self._n_other_versions = 0
                    return answer
                self._n_other_versions += 1
                if self._n_other_versions >= _MAX_OTHER_VERSIONS:
                    return answer

    async def _get(self, key: str, request: ByteRequest | None, tag: str | None, most_nbytes: int) -> Answer | None:
        """Request bytes from the client, up to `_MAX_REPEATS` times more while answers have wrong bytes.

        Raises `WrongBytesError` if the last answer has, too.
        """
        for _ in range(_MAX_REPEATS):
            with suppress(WrongBytesError):
                return await self._client.get(key, request, tag, most_nbytes)
        return await self._client.get(key, request, tag, most_nbytes)

    def _name(self, key: str) -> str:
        return f"{self.name}/{key}"


@lru_cache(maxsize=64)  # each request has the name of its store
def _shown(store: str) -> str:
    """Return the name of a store on one line, without secrets."""
    return masked(" ".join(store.split()))


def _rebuild(store: Store) -> StoreSource:
    return StoreSource(store=store)


def _store_request(byte_range: ByteRange) -> ByteRequest | None:
    """Return a byte range as zarr's stores take it. That is None for a whole object."""
    if byte_range.nbytes != WHOLE_OBJECT:
        return RangeByteRequest(byte_range.offset, byte_range.offset + byte_range.nbytes)
    return OffsetByteRequest(byte_range.offset) if byte_range.offset else None
