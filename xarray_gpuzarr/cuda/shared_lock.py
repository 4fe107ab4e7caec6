"""A lock that any number of reads of a device share; or one has it alone, where memory does not suffice for all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock, get_ident

from xarray_gpuzarr.process.waiting import Bell


class SharedLock:
    """Lets reads of several threads run together, or one alone.

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
        self._reading: dict[object, int] = {}
        """The thread of each read that is under way."""
        self._alone: int | None = None
        """The thread that reads alone, or waits until it does."""

    @property
    def n_reading(self) -> int:
        """Reads that are under way."""
        return len(self._reading)

    def shared[Result](self, read: Callable[[], Result]) -> Result:
        """Read beside others; waits while too many do, or one alone. A read inside a read never waits."""
        mine = object()
        try:
            self._changed.wait_until(lambda: self._begins(mine))
            return read()
        finally:
            self._reading.pop(mine, None)
            self._changed.ring_for_all()

    def exclusive[Result](self, read: Callable[[], Result]) -> Result:
        """Wait until nobody else reads, and let nobody else begin."""
        me = get_ident()
        try:
            self._changed.wait_until(lambda: self._claims(me))
            self._changed.wait_until(lambda: all(reader == me for reader in list(self._reading.values())))
            return read()
        finally:
            if self._alone == me:
                self._alone = None
            self._changed.ring_for_all()

    def _begins(self, mine: object) -> bool:
        me = get_ident()
        with self._lock:
            readers = list(self._reading.values())
            others = set(readers)
            if me not in others and (self._alone not in (None, me) or len(others) >= self._n_together):
                return False
            self._reading[mine] = me
            return True

    def _claims(self, me: int) -> bool:
        with self._lock:
            if self._alone not in (None, me):
                return False
            self._alone = me
            return True
