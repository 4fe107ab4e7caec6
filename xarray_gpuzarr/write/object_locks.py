"""`turns`: writes of this process to one object run one after another, so that none of them is lost."""

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

_POLL_INTERVAL_S = 2e-3
"""Interval at which a waiting write checks again. Polling works alike for threads and for any event loop."""
_HELD: ContextVar[frozenset[Hashable] | set[Hashable]] = ContextVar("held", default=frozenset())
"""Objects that the caller holds already. If it lets zarr-python write them, zarr-python may do so through the codec
pipeline of this package, which must not wait for its own caller."""


class Turns:
    """The objects that this process is writing, on any thread and any event loop.

    A write takes all its objects at once, so two writes never wait for each other. A signal may interrupt it at any
    point; see `process.waiting`.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all writes. A forked process calls this, since it has none of its parent's threads."""
        self._lock = Lock()
        self._taken: dict[object, frozenset[Hashable]] = {}
        """The objects of each write, by a token of the write."""

    @asynccontextmanager
    async def hold_async(self, place: ArrayPlace, keys: Sequence[str]) -> AsyncIterator[Sequence[Hashable]]:
        """Hold objects of an array for the ``async with`` block; see `hold`.

        The block must not write through the codec pipeline of this package, which would wait for its own caller.
        """
        names = place.names(keys)
        objects = frozenset(names) - _HELD.get()
        write = object()
        try:
            while not self._take(write, objects):
                _advise(place.path)  # shown once
                await asyncio.sleep(_POLL_INTERVAL_S)
            yield names
        finally:
            self._taken.pop(write, None)

    @contextmanager
    def hold(self, place: ArrayPlace, keys: Sequence[str]) -> Iterator[Sequence[Hashable]]:
        """Hold objects of an array for the ``with`` block, so that no other write of this process touches them.

        The block begins once all objects are free.

        Parameters
        ----------
        place : ArrayPlace
            Where the array is stored.
        keys : sequence of str
            Store keys of the objects.

        Yields
        ------
        sequence of Hashable
            A name for each object, which is the same through every store object that leads to it.
        """
        names = place.names(keys)
        objects = frozenset(names) - _HELD.get()
        held = {*_HELD.get(), *objects}
        write = object()
        try:
            while not self._take(write, objects):
                _advise(place.path)  # shown once
                time.sleep(_POLL_INTERVAL_S)
            token = _HELD.set(held)
            try:
                yield names
            finally:
                _HELD.reset(token)
        finally:
            try:
                held.clear()  # threads that were started inside the block may have a copy of the context
            finally:
                self._taken.pop(write, None)

    def _take(self, write: object, objects: frozenset[Hashable]) -> bool:
        """Take objects for a write if all of them are free; return whether they were."""
        with self._lock:
            if not all(objects.isdisjoint(taken) for taken in list(self._taken.values())):
                return False
            self._taken[write] = objects
            return True


def _advise(array_path: str) -> None:
    advise(
        "two writes of a shard",
        f"two tasks write parts of one shard or chunk of array '/{array_path}' at once",
        found="tasks whose borders lie inside a shard or chunk; in this process, one waits for the other",
        do="give each task whole shards: slices at multiples of array.shards (array.chunks if there are none), or with "
        "xarray, ds.chunk(...) of multiples of it. Of two processes that write one shard, one loses what it wrote",
    )


turns = Turns()
"""The turns of this process."""

os.register_at_fork(after_in_child=turns.restart)
