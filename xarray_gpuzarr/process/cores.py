"""Cores, shared by the threads that read local files: who computes holds one, who waits for a disk lends it.

More threads than cores take Python's lock from each other again and again, where chunks are short: 32 threads on two
cores needed 276 ms for the 64 shards that two threads read in 154 (32^3 uint16 chunks, November 2026). A caller that
finds no core free therefore waits for its turn. The decoder of the host holds cores, `fetch.local` lends them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock, get_ident

from xarray_gpuzarr.process.waiting import Bell


class Cores:
    """The cores of this process."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with nobody who computes; for a process that was forked off, where nobody does."""
        self._lock = Lock()
        self._freed = Bell()
        self._held: dict[int, int] = {}
        """Threads that hold a core, and among how many each of them does."""

    @property
    def n_held(self) -> int:
        """Threads that hold a core."""
        return len(self._held)

    def hold[Result](self, n_cores: int, compute: Callable[[], Result]) -> Result:
        """Wait until fewer than `n_cores` threads compute; return what `compute` does.

        A thread that holds a core already never waits.
        """
        me = get_ident()
        if me in self._held:
            return compute()
        try:
            if not self._took(me, n_cores):
                self._freed.wait_until(lambda: self._took(me, n_cores))
            return compute()
        finally:
            self._held.pop(me, None)
            self._freed.ring()

    def lend[Result](self, wait: Callable[[], Result]) -> Result:
        """Let another thread compute while `wait` runs, if the calling thread holds a core; return what it does."""
        me = get_ident()
        n_cores = self._held.get(me)
        if n_cores is None:
            return wait()
        try:
            self._held.pop(me, None)
            self._freed.ring()
            return wait()
        finally:  # who is interrupted while it waits for the core that it had lent holds none: `hold` minds neither
            self._freed.wait_until(lambda: self._took(me, n_cores))

    def _took(self, me: int, n_cores: int) -> bool:
        with self._lock:
            if len(self._held) >= n_cores:
                return False
            self._held[me] = n_cores
            return True


cores = Cores()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cores.restart)
