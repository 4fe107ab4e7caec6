"""Reads of one device take turns where memory does not suffice for all of them at once: then one reads alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets any number of reads run together, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_reading = 0
        self._alone: int | None = None
        self._mine = threading.local()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Read beside others; waits while somebody reads alone. A read inside a read never waits."""
        me, depth = threading.get_ident(), self._depth
        with self._changed:
            self._changed.wait_for(lambda: depth > 0 or self._alone in (None, me))
            self._n_reading += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            with self._changed:
                self._n_reading -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody else reads, and let nobody else begin."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone is None)
            self._alone = me
            self._changed.wait_for(lambda: self._n_reading == self._depth)
        try:
            yield
        finally:
            with self._changed:
                self._alone = None
                self._changed.notify_all()

    @property
    def _depth(self) -> int:
        """Reads of the calling thread that are under way."""
        depth: int = getattr(self._mine, "depth", 0)
        return depth
