"""What the file system says of a stored array without a byte being read: other marks, other values.

Names of tasks hold the marks, so that a cluster does not take values that it keeps for those that have replaced them. A
bounded number of files is looked at, whatever the size of the array; no store behind a network is asked. Called by
`names`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore, ZipStore

from xarray_gpuzarr.fetch import LocalSource, StoreSource
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec

Mark = tuple[int, ...] | None
"""Inode, bytes and times of a file or a directory; None if there is none."""

_METADATA_V3 = ("zarr.json",)
_METADATA = (*_METADATA_V3, ".zmetadata", ".zattrs", ".zarray")
_FSSPEC_LOCAL = "fsspec.implementations.local.LocalFileSystem"
_N_SHARDS = 8
"""Shards that are looked at, the first, the last and others between them at equal distances."""


def file_marks(stored: StoredArray) -> tuple[Mark, ...]:
    """Return the marks of the files that hold an array, and of the groups that it is in.

    Parameters
    ----------
    stored : StoredArray

    Returns
    -------
    tuple
        The same for the same files, in any process; empty if the store is not local, which fsspec's and obstore's may
        be, too. These are looked at: the directories and the metadata of the array, of its group and of the root; eight
        shards and their directories, which show that another shard beside one of them was made, deleted or replaced by
        renaming; and a zip file.
    """
    place = _place(stored)
    if isinstance(place, ZipStore):
        return (_mark(str(place.path)),)
    if place is None:
        return ()
    return tuple(_mark(f"{place}/{key}") for key in dict.fromkeys(_keys(stored)))


def _place(stored: StoredArray) -> str | ZipStore | None:
    """Return the directory or the zip file that holds an array, None if it is in neither."""
    source = stored.place
    if isinstance(source, LocalSource):
        return source.root
    store = source.store if isinstance(source, StoreSource) else None
    return _place_of(store if stored.zarr_array is None else stored.zarr_array.store)


def _place_of(store: Store | None) -> str | ZipStore | None:
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001  # which wrappers have no public name for
    if isinstance(store, ZipStore):
        return store
    if isinstance(store, LocalStore):
        return os.fspath(store.root)
    if isinstance(store, FsspecStore):
        fs = type(getattr(store.fs, "sync_fs", store.fs))  # zarr wraps those that are not asynchronous
        return store.path if f"{fs.__module__}.{fs.__name__}" == _FSSPEC_LOCAL else None
    if isinstance(store, ObjectStore) and type(store.store).__name__ == "LocalStore":
        return os.fspath(getattr(store.store, "prefix", None) or "/")
    return None


def array_path(stored: StoredArray) -> str:
    """Return the path of an array inside its store, without a leading slash."""
    if isinstance(stored.spec, ArraySpec):
        return stored.spec.path.strip("/")
    assert stored.zarr_array is not None
    return stored.zarr_array.path


def _keys(stored: StoredArray) -> Iterator[str]:
    path, spec = array_path(stored), stored.spec
    is_v3 = isinstance(spec, ArraySpec) and spec.keys.style == "default"
    for folder in ("", path.rpartition("/")[0], path):
        yield folder
        yield from (f"{folder}/{name}".lstrip("/") for name in (_METADATA_V3 if is_v3 else _METADATA))
    yield f"{path}/c"
    if isinstance(spec, ArraySpec):
        for coord in _spread(spec.grid.n_shards):
            key = spec.keys.key(coord)
            yield key.rpartition("/")[0]
            yield key


def _spread(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Give coordinates at equal distances in a grid, in Python's integers: its product may exceed 64 bits."""
    total = prod(counts)
    for n in range(min(total, _N_SHARDS)):
        place, coord = n * (total - 1) // (min(total, _N_SHARDS) - 1 or 1), []
        for count in reversed(counts):
            place, at = divmod(place, count)
            coord.append(at)
        yield tuple(reversed(coord))


def _mark(path: str) -> Mark:
    try:
        stat = os.stat(path)  # noqa: PTH116  # a third of the time of Path.stat, thirty times a variable
    except (OSError, ValueError):  # the latter: no file can have such a name
        return None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
