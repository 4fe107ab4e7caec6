"""The requests of one read, in order: while the bytes of one are waited for, the next few are under way.

What is wanted is known a while before it is staged, so that a store does not rest between segments and batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator

from xarray_gpuzarr.fetch import AtHand, ByteSource, Pending, ReadAhead, Request


class Requests:
    """Requests in order, the next few already under way. Threads take turns.

    Parameters
    ----------
    source : ByteSource
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._ahead = max(1, source.lookahead)
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._expected: deque[Request] = deque()
        self._started: deque[Pending] = deque()
        self._n_under_way = 0
        """Of those that are started, all but those whose bytes were at hand."""

    @property
    def are_enough(self) -> bool:
        """Whether no more would be under way if more were expected, or bytes that are at hand take memory."""
        return bool(self._expected) or self._n_under_way < len(self._started)

    def expect(self, requests: Iterable[Request]) -> None:
        """Take in what will be wanted after all that is wanted already."""
        with self._lock:
            self._expected.extend(requests)
            queued = self._start()
        self._read_ahead(queued)

    def forget(self) -> None:
        """Want nothing any more."""
        self._expected.clear()
        self._started.clear()
        self._n_under_way = 0

    def next[Place](self, places: Iterator[Place]) -> tuple[Place, Pending] | None:
        """Return the next place and what was started to fill it; None if there is no place left."""
        with self._lock:
            place = next(places, None)
            if place is None:
                return None
            started = self._started.popleft()
            self._n_under_way -= not isinstance(started, AtHand)
            queued = self._start()
        self._read_ahead(queued)
        return place, started

    def _start(self) -> list[Request]:
        """Start what may be under way; return it."""
        queued = []
        while self._expected and self._n_under_way < self._ahead:
            request = self._expected.popleft()
            pending = self._source.start([request])
            self._started.append(pending)
            self._n_under_way += not isinstance(pending, AtHand)
            queued.append(request)
        return queued
