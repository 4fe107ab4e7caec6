"""Cores, shared by the threads that read local files: who computes holds one, who waits for a disk lends it.

More threads than cores take Python's lock from each other again and again, where chunks are short: 32 threads on two
cores needed 276 ms for the 64 shards that two threads read in 154 (32^3 uint16 chunks, November 2026). A caller that
finds no core free therefore waits for its turn. The decoder of the host holds cores, `fetch.local` lends them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Cores:
    """The cores of this process."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with nobody who computes; for a process that was forked off, where nobody does."""
        self._freed = threading.Condition()
        self._n_held = 0
        self._mine = threading.local()

    @contextmanager
    def hold(self, n_cores: int) -> Iterator[None]:
        """Wait until fewer than `n_cores` threads compute, and compute inside the ``with`` block.

        A thread that holds a core already never waits.
        """
        if self._share is not None:
            yield
            return
        self._take(n_cores)
        try:
            yield
        finally:
            self._give_back()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let another thread compute inside the ``with`` block, if the calling thread holds a core."""
        n_cores = self._share
        if n_cores is None:
            yield
            return
        self._give_back()
        try:
            yield
        finally:
            self._take(n_cores)

    @property
    def _share(self) -> int | None:
        """Among how many cores the calling thread holds one; None if it holds none."""
        share: int | None = getattr(self._mine, "share", None)
        return share

    def _take(self, n_cores: int) -> None:
        with self._freed:
            self._freed.wait_for(lambda: self._n_held < n_cores)
            self._n_held += 1
        self._mine.share = n_cores

    def _give_back(self) -> None:
        if self._share is None:  # interrupted while it waited for the core that it had lent
            return
        self._mine.share = None
        with self._freed:
            self._n_held -= 1
            self._freed.notify()


cores = Cores()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cores.restart)
