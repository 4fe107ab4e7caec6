"""Writes to one object, one after another: of two that change parts of it at once, one would be lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from threading import Lock

from xarray_gpuzarr.process.advice import advise

_LOOK_S = 2e-3
"""After this time who waits looks again."""


class Turns:
    """The objects that are being written in this process, on any thread and any event loop."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with nobody writing; for a process that was forked off, where there are no other threads."""
        self._lock = Lock()
        self._taken: set[Hashable] = set()

    @asynccontextmanager
    async def of(self, objects: Sequence[Hashable], name: str) -> AsyncIterator[None]:
        """Wait until nobody writes any of some objects, and let others wait while the block runs.

        Parameters
        ----------
        objects : sequence of hashable
        name : str
            Of the array, for the advice of who has to wait.
        """
        while not self._take(objects):
            advise(
                "two writes of a shard",
                f"two tasks write parts of one shard or chunk of array '{name}' at once",
                found="tasks whose borders lie inside of a shard or chunk; in this process, one waits for the other",
                do="give each task whole shards, with ds.chunk(...) of multiples of their shape: of two processes that "
                "write one shard at once, one loses what it wrote",
            )
            await asyncio.sleep(_LOOK_S)
        try:
            yield
        finally:
            with self._lock:
                self._taken.difference_update(objects)

    def _take(self, objects: Sequence[Hashable]) -> bool:
        with self._lock:
            if not self._taken.isdisjoint(objects):
                return False
            self._taken.update(objects)
            return True


turns = Turns()

os.register_at_fork(after_in_child=turns.restart)
