"""`Turns`: callers that read short chunks take turns, as many at a time as there are cores.

More threads would keep taking the GIL from each other. On two cores, 32 threads needed 276 ms for 64 shards that two
threads read in 154 ms (32^3 uint16 chunks, November 2026). A caller that waits for a disk gives its turn away until it
has waited.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock, get_ident

from xarray_gpuzarr.process.waiting import Bell


class Turns:
    """The turns of the threads of this process."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all threads. Called in a process that was forked off, which has only one."""
        self._lock = Lock()
        self.holders: dict[int, Callable[[], int]] = {}
        """Id of a thread that has its turn -> its `max_turns`, see `begin`."""
        self.ended = Bell()
        """Rings when a turn has ended."""

    def begin(self, max_turns: Callable[[], int]) -> None:
        """Wait until fewer than ``max_turns()`` threads have their turn, and let the calling thread have its own.

        Call this in a ``try`` whose ``finally`` removes the thread from `holders` and rings `ended`. One thread may
        always have its turn, whatever ``max_turns()`` returns.
        """
        thread = get_ident()
        if not self._take(thread, max_turns):
            self.ended.wait_until(lambda: self._take(thread, max_turns))

    def run_without[Result](self, wait: Callable[[], Result]) -> Result:
        """Return the result of `wait`. If the calling thread has its turn, another thread may have it meanwhile.

        The calling thread then waits for its turn again. If a signal interrupts that, it is left without one, which
        the ``finally`` that `begin` describes allows for.
        """
        thread = get_ident()
        max_turns = self.holders.get(thread)
        if max_turns is None:
            return wait()
        try:
            self.holders.pop(thread, None)
            self.ended.ring()
            return wait()
        finally:
            self.ended.wait_until(lambda: self._take(thread, max_turns))

    def _take(self, thread: int, max_turns: Callable[[], int]) -> bool:
        """Give a thread its turn, unless ``max_turns()`` threads have theirs already. Return whether it has it now."""
        with self._lock:
            if self.holders and len(self.holders) >= max_turns():
                return False
            self.holders[thread] = max_turns
            return True


turns = Turns()
"""The turns of this process."""

os.register_at_fork(after_in_child=turns.restart)
