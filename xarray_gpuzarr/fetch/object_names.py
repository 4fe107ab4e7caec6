"""Names of objects that are the same however their store was opened, and those that this process has written."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence

from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.clients import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.source import ObjectSource, is_obstore_memory, local_folder, unwrapped
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.process.records import record

_MOST_WRITTEN = 20_000
"""Number of names of written objects that a process remembers, some 4 MB."""


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


def place_of(store: Store | str, path: str) -> ArrayPlace:
    """Return where the objects of an array lie, given its path in the store, or in a folder; links are followed."""
    path = path.strip("/")
    server, root = ("file", store) if isinstance(store, str) else _root_of(unwrapped(store))
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


class WrittenObjects:
    """Names of the objects that this process has written, or removed, most recently."""

    def __init__(self) -> None:
        self._names: dict[Hashable, None] = {}

    def add(self, names: Iterable[Hashable]) -> None:
        """Remember objects, and forget those that were written longest ago."""
        self._names.update(dict.fromkeys(names))
        while len(self._names) > _MOST_WRITTEN:
            self._names.pop(next(iter(self._names)), None)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._names


written = WrittenObjects()


def is_written(source: ObjectSource, path: str, key: str) -> bool:
    """Whether this process has written, or removed, an object of the array at `path`, by any name of its store."""
    known = source.within if isinstance(source, StrictSource) else source
    if isinstance(known, LocalSource):
        place = place_of(known.root, path)
    elif isinstance(known, StoreSource):
        place = place_of(known.store, path)
    else:
        return False
    return place.names([key])[0] in written
