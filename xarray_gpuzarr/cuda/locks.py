"""`SharedLock`, which lets reads of several threads run together, or one thread alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident

from xarray_gpuzarr.process.waiting import Bell


@dataclass(slots=True, eq=False)
class _Read:
    """A read that is under way, or waits for its turn."""

    thread: int
    """Id of the thread that reads."""
    is_under_way: bool = False


class SharedLock:
    """Lets up to `n_together` threads read at the same time, or one thread alone.

    Waiting reads begin in the order in which they came. A signal may interrupt a thread that holds the lock or waits
    for it, and leaves the lock usable. Therefore the lock counts no reads, but keeps a record of each; see
    `process.waiting`.
    """

    def __init__(self, n_together: int = sys.maxsize) -> None:
        self._n_together = n_together
        self._lock = Lock()
        self._changed = Bell()
        self._reads: dict[_Read, None] = {}
        """Reads that are under way or wait, in the order in which they came."""
        self._exclusive_thread: int | None = None
        """Id of the thread that reads alone, or waits until no other thread reads."""

    @property
    def n_reading(self) -> int:
        """Number of reads that are under way."""
        return sum(read.is_under_way for read in list(self._reads))

    @property
    def is_alone(self) -> bool:
        """Whether the calling thread reads alone."""
        return self._exclusive_thread == get_ident()

    def shared[*Arguments, Result](self, read: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return what `read` returns, called beside other reads.

        Waits while `n_together` threads came earlier and have not finished, or while another thread reads alone or
        waits to do so.

        A read inside a read of the same thread never waits.
        """
        own_read = _Read(get_ident())
        try:
            self._reads[own_read] = None
            if not self._try_begin(own_read):
                self._changed.wait_until(lambda: self._try_begin(own_read))
            return read(*arguments)
        finally:
            self._reads.pop(own_read, None)
            if self._changed.waiting:
                self._changed.ring_for_all()

    def exclusive[Result](self, read: Callable[[], Result]) -> Result:
        """Return what `read` returns, called once no other thread reads. Other threads begin no read until it returns.

        Reads of the calling thread that are under way do not count. Must not be called inside `exclusive`: the inner
        call would end the turn of the outer one.
        """
        thread = get_ident()
        try:
            self._changed.wait_until(lambda: self._try_claim(thread))
            self._changed.wait_until(lambda: self._no_other_reads(thread))
            return read()
        finally:
            if self._exclusive_thread == thread:  # not so if a signal interrupted the first wait
                self._exclusive_thread = None
            self._changed.ring_for_all()

    def _try_begin(self, own_read: _Read) -> bool:
        """Mark a read as under way if it may begin now; return whether it may."""
        thread = own_read.thread
        with self._lock:
            reads = list(self._reads)
            earlier = reads[: reads.index(own_read)]
            is_inside = thread in [read.thread for read in earlier if read.is_under_way]
            n_earlier_threads = len({read.thread for read in earlier})
            has_turn = self._exclusive_thread is None and n_earlier_threads < self._n_together
            # The thread that reads alone may also call `shared`. It goes before all reads that wait.
            if not (is_inside or has_turn or self._exclusive_thread == thread):
                return False
            own_read.is_under_way = True
            return True

    def _try_claim(self, thread: int) -> bool:
        """Make `thread` the one that reads alone next, unless another thread is; return whether `thread` is."""
        with self._lock:
            if self._exclusive_thread not in (None, thread):
                return False
            self._exclusive_thread = thread
            return True

    def _no_other_reads(self, thread: int) -> bool:
        """Whether no thread but `thread` has a read under way."""
        return all(read.thread == thread for read in list(self._reads) if read.is_under_way)
