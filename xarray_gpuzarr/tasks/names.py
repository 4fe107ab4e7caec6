"""Names of dask tasks: what dashboards show, and what makes two opens of one store the same tasks.

dask shows a name up to its first token, and merges tasks of the same name. Names depend on the marks of the files of a
local store, so that a cluster does not return values from before a change. A bounded number of files is examined, and
no store behind a network. Called by `backend.chunking`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import md5
from math import prod
from typing import Any

from dask.base import normalize_token
from dask.utils import key_split
from zarr.abc.store import Store
from zarr.storage import ZipStore

from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.source import local_folder, unwrapped
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec

_GENERIC_PREFIXES = ("open_dataset-", "xarray-")
"""What xarray writes before names that the user has not chosen."""
_WITH_TOKEN = re.compile(r"(.+)-[0-9a-f]{32}", re.DOTALL)
"""A name that xarray has made: prefix, variable and token."""
Mark = tuple[int, ...] | None
"""Inode, size and times of a file or a directory; None if there is none."""

_METADATA_V3 = ("zarr.json",)
_METADATA = (*_METADATA_V3, ".zmetadata", ".zattrs", ".zarray")
_N_SHARDS = 8
"""Shards that are examined, evenly spaced from the first to the last."""


def task_name(stored: StoredArray, chosen: str | None, *content: Any) -> str:
    """Return the name of the tasks that read an array: ``gpuzarr-<variable>-<token>``.

    A name that the user has chosen is returned as it is, and the user's prefix of a name by xarray stays. An underscore
    takes the place of a hyphen if dask would not show the variable otherwise. The token depends on that of xarray, on
    `content`, which is everything else that the values depend on, and on the files of a local store.
    """
    made = _WITH_TOKEN.fullmatch(chosen or "")
    if chosen is not None and made is None:
        return chosen
    if made is None or made[1].startswith(_GENERIC_PREFIXES):
        variable = visible(array_path(stored).rpartition("/")[2]) or "array"
        shown = f"gpuzarr-{variable}"
        if key_split(f"{shown}-0") != shown:
            shown = f"gpuzarr_{variable.replace('-', '_')}"
    else:
        shown = made[1]
    as_text = repr((chosen, array_path(stored), file_marks(stored), normalize_token(content)))
    return f"{shown}-{md5(as_text.encode(), usedforsecurity=False).hexdigest()}"  # as dask does, in a third of its time


def file_marks(stored: StoredArray) -> tuple[Mark, ...]:
    """Return the marks of files of an array; the same for the same files in any process, empty if the store is remote.

    These are examined: directories and metadata of the array, of its group and of the root; eight shards and their
    directories, which show that a shard beside them was created, deleted or replaced; and a zip file.
    """
    place = _folder_or_zip(stored)
    if isinstance(place, ZipStore):
        return (_mark(str(place.path)),)
    if place is None:
        return ()
    return tuple(_mark(f"{place}/{key}") for key in dict.fromkeys(_keys(stored)))


def _folder_or_zip(stored: StoredArray) -> str | ZipStore | None:
    """Return the directory or the zip file of an array, or None."""
    source = stored.store_source
    if isinstance(source, LocalSource):
        return source.root
    store: Store | None = source.store if isinstance(source, StoreSource) else None
    if stored.zarr_array is not None:
        store = stored.zarr_array.store
    store = None if store is None else unwrapped(store)
    return store if store is None or isinstance(store, ZipStore) else local_folder(store)


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
        total = prod(spec.grid.n_shards)  # with Python's integers: it may exceed 64 bits
        for n in range(min(total, _N_SHARDS)):
            place, coord = n * (total - 1) // (min(total, _N_SHARDS) - 1 or 1), list[int]()
            for count in reversed(spec.grid.n_shards):
                place, at = divmod(place, count)
                coord.insert(0, at)
            key = spec.keys.key(tuple(coord))
            yield key.rpartition("/")[0]
            yield key


def _mark(path: str) -> Mark:
    try:
        stat = os.stat(path)  # noqa: PTH116  # a third of the time of Path.stat, thirty times a variable
    except (OSError, ValueError):  # the latter: no file can have such a name
        return None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
