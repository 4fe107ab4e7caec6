"""The requests of one read, in order: while the bytes of one are waited for, the next few are under way.

What is wanted is known a batch ahead, so that a store does not rest while one batch ends and the next begins.
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
        self._ahead = source.lookahead + 1
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._wanted: deque[Request] = deque()
        self._started: deque[Pending] = deque()

    def expect(self, requests: Iterable[Request]) -> None:
        """Take in what will be wanted after all that is wanted already."""
        self._wanted.extend(requests)

    def forget(self) -> None:
        """Want nothing any more."""
        self._wanted.clear()
        self._started.clear()

    def next[Place](self, places: Iterator[Place]) -> tuple[Place, Pending] | None:
        """Return the next place and what was started to fill it; None if there is no place left."""
        with self._lock:
            place = next(places, None)
            if place is None:
                return None
            queued = self._start()
            started = self._started.popleft()
        self._read_ahead(queued)
        return place, started

    def _start(self) -> list[Request]:
        """Start what may be under way; return it."""
        queued = []
        while self._wanted and len(self._started) < self._ahead:
            if self._started and isinstance(self._started[-1], AtHand):
                break
            request = self._wanted.popleft()
            self._started.append(self._source.start(*request))
            queued.append(request)
        return queued
