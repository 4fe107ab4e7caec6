"""Names of objects that do not depend on how their store was opened, and the names of those that were written."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress

from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from xarray_gpuzarr.fetch.in_memory import MemorySource
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.servers import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.fetch.stores import innermost_store, is_obstore_memory, local_folder
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.process.records import record

_MAX_WRITTEN = 20_000
"""Number of written objects whose names a process remembers, which takes about 4 MB."""


@record
class ArrayPlace:
    """Where the objects of an array or a group lie, independent of how their store was opened.

    Two clients of one server, such as obstore and s3fs, count as two places.
    """

    server: Hashable
    """Server that holds the objects: "file" for local files, else a value that all stores on one server share."""
    address: str
    """Path of the node on the server, without slashes at its ends."""
    path: str
    """Path of the node in its store."""

    def is_below(self, group: ArrayPlace) -> bool:
        """Whether this node lies in a group, or is the group."""
        if self.server != group.server:
            return False
        if not group.address:  # the group is the root of the server
            return True
        return f"{self.address}/".startswith(f"{group.address}/")

    def names(self, keys: Sequence[str]) -> list[Hashable]:
        """Return the names of objects of this node, given their keys in the store, which begin with `path`."""
        return [(self.server, f"{self.address}/{key[len(self.path) :].strip('/')}") for key in keys]


def place_of(store: Store | str, path: str) -> ArrayPlace:
    """Return where the objects of a node lie, given its path in a store or a directory. Local paths are resolved."""
    path = path.strip("/")
    if isinstance(store, str):
        server: Hashable = "file"
        root = store
    else:
        server, root = _root_of(innermost_store(store))
    address = f"{root}/{path}"
    if server == "file":
        address = os.path.realpath(address)
    return ArrayPlace(server=server, address=address.strip("/"), path=path)


def place_of_source(source: ObjectSource, path: str) -> ArrayPlace | None:
    """Return where the objects of a node lie, given a source of its store; None for a source of another kind."""
    if isinstance(source, StrictSource):
        source = source.inner
    if isinstance(source, LocalSource):
        return place_of(source.root, path)
    return place_of(source.store, path) if isinstance(source, StoreSource | MemorySource) else None


def _root_of(store: Store) -> tuple[Hashable, str]:
    """Return the server of a store, and the path on the server below which its objects lie."""
    folder = local_folder(store)
    if folder is not None:
        return "file", folder
    if isinstance(store, FsspecStore):
        return server_of(store), store.path.strip("/")
    if isinstance(store, ObjectStore):
        if is_obstore_memory(store.store):
            return id(store.store), ""
        return server_of(store), str(getattr(store.store, "prefix", None) or "").strip("/")
    if isinstance(store, MemoryStore):
        return str(store), ""  # the text has the address of the dictionary that holds the objects
    return id(store), ""  # nothing is known that another store on the same server would share


class WrittenObjects:
    """Names of objects that this process has written or removed."""

    def __init__(self) -> None:
        self._names: dict[Hashable, None] = {}

    def add(self, names: Iterable[Hashable]) -> None:
        """Remember objects. If there are too many, forget those that were first added longest ago."""
        self._names.update(dict.fromkeys(names))
        while len(self._names) > _MAX_WRITTEN:
            with suppress(RuntimeError):  # another thread has changed the dictionary meanwhile
                self._names.pop(next(iter(self._names)), None)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._names


written = WrittenObjects()
"""The objects that this process has written or removed."""


def is_written(source: ObjectSource, path: str, key: str) -> bool:
    """Whether this process has written or removed an object of the array at `path`, through any store object."""
    place = place_of_source(source, path)
    return place is not None and place.names([key])[0] in written
