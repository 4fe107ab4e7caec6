"""Names of dask tasks. Dashboards show them, and two opens of one store get the same names.

dask shows a name up to its first token, and merges tasks that have the same name. Names depend on the times and sizes
of the files of a local store, so that a cluster does not return values from before a change. A limited number of files
is examined. Stores behind a network are not examined.
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
from xarray_gpuzarr.fetch.stores import innermost_store, local_folder
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec

_GENERIC_PREFIXES = ("open_dataset-", "xarray-")
"""Prefixes that xarray adds to names if the user has not chosen one."""
_WITH_TOKEN = re.compile(r"(.+)-[0-9a-f]{32}", re.DOTALL)
"""A name that xarray has made: prefix and variable, then a token."""
Mark = tuple[int, ...] | None
"""Inode, size and times of a file or a directory; None if it does not exist."""

_METADATA_V3 = ("zarr.json",)
_METADATA = (*_METADATA_V3, ".zmetadata", ".zattrs", ".zarray")
"""Names of the files that hold metadata in format 3, and in either format."""
_N_SHARDS = 8
"""Number of shards that are examined. They are evenly spaced from the first to the last."""


def task_name(stored: StoredArray, name: str | None, *content: Any) -> str:
    """Return the name of the tasks that read an array: ``gpuzarr-<variable>-<token>``.

    Parameters
    ----------
    stored : StoredArray
        The array.
    name : str, optional
        Name that xarray passes. If the user has chosen it, it is returned unchanged; if the user has chosen its prefix,
        the prefix stays.
    content
        Everything else that the values depend on. The token depends on it, on `name`, and on the files of a local
        store.

    Notes
    -----
    Underscores replace the hyphens in front of the token if dask would show only a part of the name otherwise.
    """
    parts = _WITH_TOKEN.fullmatch(name or "")
    if name is not None and parts is None:
        return name
    if parts is None or parts[1].startswith(_GENERIC_PREFIXES):
        variable = visible(array_path(stored).rpartition("/")[2]) or "array"
        prefix = f"gpuzarr-{variable}"
        if key_split(f"{prefix}-0") != prefix:
            prefix = f"gpuzarr_{variable.replace('-', '_')}"
    else:
        prefix = parts[1]
    text = repr((name, array_path(stored), file_marks(stored), normalize_token(content)))
    # This token serves as well as one of dask's `tokenize`, and takes a third of the time.
    return f"{prefix}-{md5(text.encode(), usedforsecurity=False).hexdigest()}"


def file_marks(stored: StoredArray) -> tuple[Mark, ...]:
    """Return the marks of an array's files, which are equal for the same files in any process.

    For a zip file, that is its mark. For a directory, the marks are those of the directories and metadata of the array,
    of its group and of the root, and those of up to eight shards and their directories. The mark of a directory changes
    if a file in it is created, deleted or replaced. Other stores have no marks.
    """
    folder_or_zip = _folder_or_zip(stored)
    if isinstance(folder_or_zip, ZipStore):
        return (_mark(str(folder_or_zip.path)),)
    if folder_or_zip is None:
        return ()
    return tuple(_mark(f"{folder_or_zip}/{key}") for key in dict.fromkeys(_keys(stored)))


def _folder_or_zip(stored: StoredArray) -> str | ZipStore | None:
    """Return the directory or the zip file of an array's store; None if the store is neither."""
    source = stored.store_source
    if isinstance(source, LocalSource):
        return source.root
    store: Store | None = source.store if isinstance(source, StoreSource) else None
    if stored.zarr_array is not None:
        store = stored.zarr_array.store
    store = None if store is None else innermost_store(store)
    return store if store is None or isinstance(store, ZipStore) else local_folder(store)


def array_path(stored: StoredArray) -> str:
    """Return the path of an array inside its store, without a leading slash."""
    if isinstance(stored.spec, ArraySpec):
        return stored.spec.path.strip("/")
    assert stored.zarr_array is not None
    return stored.zarr_array.path


def _keys(stored: StoredArray) -> Iterator[str]:
    """Yield the keys of the files and directories that are examined."""
    path = array_path(stored)
    spec = stored.spec
    # "default" is the key encoding of most arrays in format 3. For any other, the names of both formats are examined.
    is_v3 = isinstance(spec, ArraySpec) and spec.keys.style == "default"
    metadata_names = _METADATA_V3 if is_v3 else _METADATA
    for folder in ("", path.rpartition("/")[0], path):
        yield folder
        for name in metadata_names:
            yield f"{folder}/{name}".lstrip("/")
    yield f"{path}/c"  # in format 3, the directory with all shards
    if isinstance(spec, ArraySpec):
        for coord in _examined_shards(spec.grid.n_shards):
            key = spec.keys.key(coord)
            yield key.rpartition("/")[0]
            yield key


def _examined_shards(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of up to `_N_SHARDS` evenly spaced shards, given the `shape` of the grid of shards."""
    n_shards = prod(shape)  # Python's integers, since there may be more than 2**63 shards
    n_examined = min(n_shards, _N_SHARDS)
    for i in range(n_examined):
        number = i * (n_shards - 1) // max(1, n_examined - 1)
        coord: list[int] = []
        for length in reversed(shape):
            number, position = divmod(number, length)
            coord.insert(0, position)
        yield tuple(coord)


def _mark(path: str) -> Mark:
    try:
        stat = os.stat(path)  # noqa: PTH116  # takes a third of the time of Path.stat
    except (OSError, ValueError):  # a ValueError means a name with a zero byte
        return None
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
