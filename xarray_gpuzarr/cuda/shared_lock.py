"""A lock that any number of reads of a device share; or one has it alone, where memory does not suffice for all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident

from xarray_gpuzarr.process.waiting import Bell


@dataclass(slots=True, eq=False)
class _Read:
    """One that is under way, or waits for its turn."""

    thread: int
    is_under_way: bool = False


class SharedLock:
    """Lets reads of several threads run together, or one alone; those that wait begin in the order in which they came.

    Signals may interrupt whoever holds it or waits for it.

    Parameters
    ----------
    n_together : int
        Threads that may read at once.
    """

    def __init__(self, n_together: int = sys.maxsize) -> None:
        self._n_together = n_together
        self._lock = Lock()
        self._changed = Bell()
        self._reads: dict[_Read, None] = {}
        """In the order in which they came."""
        self._alone: int | None = None
        """The thread that reads alone, or waits until it does."""

    @property
    def n_reading(self) -> int:
        """Reads that are under way."""
        return sum(read.is_under_way for read in list(self._reads))

    @property
    def is_alone(self) -> bool:
        """Whether the calling thread reads alone."""
        return self._alone == get_ident()

    def shared[*Arguments, Result](self, read: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Read beside others; waits while too many do, or one alone. A read inside a read never waits."""
        mine = _Read(get_ident())
        try:
            self._reads[mine] = None
            self._changed.wait_until(lambda: self._begins(mine))
            return read(*arguments)
        finally:
            self._reads.pop(mine, None)
            self._changed.ring_for_all()

    def exclusive[Result](self, read: Callable[[], Result]) -> Result:
        """Wait until nobody else reads, and let nobody else begin."""
        me = get_ident()
        try:
            self._changed.wait_until(lambda: self._claims(me))
            self._changed.wait_until(lambda: all(r.thread == me for r in list(self._reads) if r.is_under_way))
            return read()
        finally:
            if self._alone == me:
                self._alone = None
            self._changed.ring_for_all()

    def _begins(self, mine: _Read) -> bool:
        me = mine.thread
        with self._lock:
            reads = list(self._reads)
            earlier = reads[: reads.index(mine)]
            is_inside = any(read.thread == me and read.is_under_way for read in earlier)
            may_begin = self._alone is None and len({read.thread for read in earlier}) < self._n_together
            if not (is_inside or may_begin or self._alone == me):  # whoever is alone comes before all that wait
                return False
            mine.is_under_way = True
            return True

    def _claims(self, me: int) -> bool:
        with self._lock:
            if self._alone not in (None, me):
                return False
            self._alone = me
            return True
