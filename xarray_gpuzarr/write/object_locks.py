"""`turns`: two writes of this process to one object run one after another, so that none is lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Lock

from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from xarray_gpuzarr.fetch.remote.clients import server_of
from xarray_gpuzarr.fetch.source import is_obstore_memory, local_folder, unwrapped
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.records import record

_LOOK_S = 2e-3
"""Interval at which a waiting write checks again."""


@record
class ArrayPlace:
    """Where the objects of an array lie: equal for arrays of the same objects, however their stores were opened.

    Two clients of one server, such as obstore and s3fs, are not known to be of the same objects.
    """

    server: Hashable
    address: str
    """Path of the array on the server, without slashes at its ends."""
    path: str
    """Path of the array in its store."""

    def names(self, keys: Sequence[str]) -> list[Hashable]:
        """Return the names of objects, given their keys in the store."""
        return [(self.server, f"{self.address}/{key[len(self.path) :].strip('/')}") for key in keys]


def place_of(store: Store, path: str) -> ArrayPlace:
    """Return where the objects of an array lie, given its path in the store; links to folders are followed."""
    path = path.strip("/")
    server, root = _root_of(unwrapped(store))
    address = os.path.realpath(f"{root}/{path}") if server == "file" else f"{root}/{path}"
    return ArrayPlace(server=server, address=address.strip("/"), path=path)


def _root_of(store: Store) -> tuple[Hashable, str]:
    """Return a server, and the path below which the objects of a store lie there."""
    folder = local_folder(store)
    if folder is not None:
        return "file", folder
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
    async def of(self, place: ArrayPlace, keys: Sequence[str]) -> AsyncIterator[None]:
        """Enter when nobody writes any of these objects of an array; others wait for the end of the block."""
        objects = place.names(keys)
        while not self._take(objects):
            _advise(place.path)
            await asyncio.sleep(_LOOK_S)
        try:
            yield
        finally:
            self._give_back(objects)

    @contextmanager
    def held(self, place: ArrayPlace, keys: Sequence[str]) -> Iterator[None]:
        """As `of`, for a thread that may wait."""
        objects = place.names(keys)
        while not self._take(objects):
            _advise(place.path)
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            self._give_back(objects)

    def _give_back(self, objects: Sequence[Hashable]) -> None:
        with self._lock:
            self._taken.difference_update(objects)

    def _take(self, objects: Sequence[Hashable]) -> bool:
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
