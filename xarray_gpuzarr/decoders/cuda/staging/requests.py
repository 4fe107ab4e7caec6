"""Requests of a read, in order, of which the next few are always under way, so that the store does not idle."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from xarray_gpuzarr.fetch.source import ByteSource, FetchedBytes, Pending, ReadAhead, Request


class Requests:
    """Queue of the requests of one read. Safe to use from several threads."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._max_under_way = max(1, source.lookahead)
        self._prefetch = ReadAhead(source)
        """Lets the operating system read what was started into the page cache. It takes a system call for each request,
        and is therefore called without the lock."""
        self._lock = threading.Lock()
        self._queued: deque[Request] = deque()
        """Requests that have not been started."""
        self._started: deque[Pending] = deque()
        """Requests whose answers have not been taken."""
        self._n_under_way = 0
        """Number of started requests, except those whose bytes are in memory already."""

    @property
    def is_full(self) -> bool:
        """Whether nothing is gained by adding requests before answers are taken.

        That is so if new requests would only wait in the queue, or if the source has answers in memory at once.
        """
        return bool(self._queued) or self._n_under_way < len(self._started)

    def add(self, requests: Iterable[Request]) -> None:
        """Queue requests after all others, and start as many as may be under way."""
        with self._lock:
            self._queued.extend(requests)
            started = self._start()
        self._prefetch(started)

    def clear(self) -> None:
        """Drop all requests, whether they were started or not. No other thread may use the queue meanwhile."""
        self._queued.clear()
        self._started.clear()
        self._n_under_way = 0

    def take[Place](self, places: Iterator[Place]) -> tuple[Place, Pending] | None:
        """Return the next of `places`, and the request that was started for it; None if there is no place left.

        `places` are in the order of the requests. Taking both under one lock keeps them together.
        """
        with self._lock:
            place = next(places, None)
            if place is None:
                return None
            pending = self._started.popleft()
            if not isinstance(pending, FetchedBytes):
                self._n_under_way -= 1
            started = self._start()
        self._prefetch(started)
        return place, pending

    def _start(self) -> list[Request]:
        """Start queued requests while more may be under way; return those that were started.

        The caller holds the lock.
        """
        started = []
        while self._queued and self._n_under_way < self._max_under_way:
            request = self._queued.popleft()
            pending = self._source.start([request])
            self._started.append(pending)
            if not isinstance(pending, FetchedBytes):
                self._n_under_way += 1
            started.append(request)
        return started
