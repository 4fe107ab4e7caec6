"""`turns`: two writes of this process to one object run one after another, so that none is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from threading import Lock

from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from xarray_gpuzarr.fetch.remote.clients import server_of
from xarray_gpuzarr.fetch.source import is_obstore_memory, local_folder, unwrapped
from xarray_gpuzarr.process.advice import advise

_LOOK_S = 2e-3
"""Interval at which a waiting write checks again."""


def root_of(store: Store) -> tuple[Hashable, str]:
    """Return a server and a path below which the objects of a store lie: the same however the store was opened."""
    store = unwrapped(store)
    folder = local_folder(store)
    if folder is not None:
        return "file", os.path.realpath(folder)
    if isinstance(store, FsspecStore):
        return server_of(store), store.path.strip("/")
    if isinstance(store, ObjectStore):
        if is_obstore_memory(store.store):
            return id(store.store), ""
        return server_of(store), str(getattr(store.store, "prefix", None) or "").strip("/")
    return (str(store) if isinstance(store, MemoryStore) else id(store)), ""  # the text of one in memory names its dict


class Turns:
    """The objects that this process is writing, on any thread and any event loop."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all writes; for a forked process, which has no other threads."""
        self._lock = Lock()
        self._taken: set[Hashable] = set()

    @asynccontextmanager
    async def of(self, root: tuple[Hashable, str], keys: Sequence[str], name: str) -> AsyncIterator[None]:
        """Enter when nobody writes any of the objects below a root; others wait for the end of the block.

        `name` is the array's.
        """
        objects = [(root[0], f"{root[1]}/{key}") for key in keys]
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
