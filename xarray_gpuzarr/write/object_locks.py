"""`turns`: two writes of this process to one object run one after another, so that none is lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import Lock

from xarray_gpuzarr.fetch.object_names import ArrayPlace
from xarray_gpuzarr.process.advice import advise

_LOOK_S = 2e-3
"""Interval at which a waiting write checks again."""
_HELD: ContextVar[frozenset[Hashable] | set[Hashable]] = ContextVar("held", default=frozenset())
"""Objects that the caller holds; zarr-python, which writes them for it, may do so by this package's codec pipeline."""


class Turns:
    """The objects that this process is writing, on any thread and any event loop."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all writes; for a forked process, which has no other threads."""
        self._lock = Lock()
        self._taken: set[Hashable] = set()

    @asynccontextmanager
    async def of(self, place: ArrayPlace, keys: Sequence[str]) -> AsyncIterator[Sequence[Hashable]]:
        """Enter when nobody writes any of these objects of an array, and yield their names.

        Others wait for the end of the block.
        """
        names = place.names(keys)
        objects = frozenset(names) - _HELD.get()
        while not self._take(objects):
            _advise(place.path)
            await asyncio.sleep(_LOOK_S)
        try:
            yield names
        finally:
            self._give_back(objects)

    @contextmanager
    def held(self, place: ArrayPlace, keys: Sequence[str]) -> Iterator[Sequence[Hashable]]:
        """Enter as `of` does, for a thread that may wait; yield the names of the objects."""
        names = place.names(keys)
        objects = frozenset(names) - _HELD.get()
        while not self._take(objects):
            _advise(place.path)
            time.sleep(_LOOK_S)
        own = {*_HELD.get(), *objects}
        token = _HELD.set(own)
        try:
            yield names
        finally:
            _HELD.reset(token)
            own.clear()  # threads that were started meanwhile may keep it
            self._give_back(objects)

    def _give_back(self, objects: frozenset[Hashable]) -> None:
        with self._lock:
            self._taken.difference_update(objects)

    def _take(self, objects: frozenset[Hashable]) -> bool:
        with self._lock:
            if not self._taken.isdisjoint(objects):
                return False
            self._taken.update(objects)
            return True


def _advise(name: str) -> None:
    advise(
        "two writes of a shard",
        f"two tasks write parts of one shard or chunk of array '{name}' at once",
        found="tasks whose borders lie inside of a shard or chunk; in this process, one waits for the other",
        do="give each task whole shards, with ds.chunk(...) of multiples of their shape: of two processes that "
        "write one shard at once, one loses what it wrote",
    )


turns = Turns()

os.register_at_fork(after_in_child=turns.restart)
