"""`require_another_store`: whether a dataset is read from the store that a write would erase first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from xarray import Dataset, Variable
from zarr.abc.store import Store
from zarr.storage import StorePath

from xarray_gpuzarr.backend.caching_store import store_path_of
from xarray_gpuzarr.backend.lazy_array import data_of, find_unread
from xarray_gpuzarr.errors import OptionError, masked
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.read.stored_array import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec


@record
class _Node:
    """A group or an array of a store."""

    store: tuple[object, ...]
    """Token of the store; empty for local files, which several stores may have."""
    path: str
    """Path in the store, or of the directory."""

    def is_below(self, group: _Node) -> bool:
        """Whether this node is in a group, or is the group."""
        return self.store == group.store and f"{self.path}/".startswith(f"{group.path}/".lstrip("/"))


def require_another_store(store: Any, datasets: Iterable[Dataset], options: Mapping[str, Any]) -> None:
    """Raise `OptionError` if ``mode="w"`` would erase arrays that a dataset is still to be read from.

    Parameters
    ----------
    store
        The store, as for `xarray.Dataset.to_zarr`.
    datasets : iterable of xarray.Dataset
        The datasets that are written. Arrays in memory, and arrays that other engines read, are not considered.
    options : mapping
        The options of `xarray.Dataset.to_zarr`.
    """
    if options.get("mode") != "w":
        return
    unread = [
        (name, array)
        for dataset in datasets
        for name, variable in dataset.variables.items()
        for array in _unread_arrays(variable)
    ]
    erased = _group_node(store, options) if unread else None
    if erased is None:
        return
    for name, array in unread:
        if _array_node(array).is_below(erased):
            raise OptionError(
                "the dataset is read from the store that mode='w' erases",
                tried=f"to write it to {masked(str(store))}",
                found=f"variable {name!r}, whose values have not been read yet",
                do="write to another store; or change single variables by mode='a' or region=; or load() the dataset",
            )


def _unread_arrays(variable: Variable) -> Iterator[StoredArray]:
    """Yield the stored arrays that a variable is still to be read from."""
    data = data_of(variable)
    unread = find_unread(data)
    if unread is not None:
        yield unread.array.stored
    elif variable.chunks is not None:
        from xarray_gpuzarr.backend.chunking import find_block_readers  # noqa: PLC0415  # which imports dask

        for reader in find_block_readers(data):
            yield reader.lazy.stored


def _group_node(store: Any, options: Mapping[str, Any]) -> _Node | None:
    """Return the group that a write erases; None for stores that zarr-python does not know."""
    path = ""
    if isinstance(store, str) and "://" in store:
        if "::" in store:
            return None
        store = run_on_loop(store, partial(store_path_of, store, options.get("storage_options")))
    if isinstance(store, StorePath):
        store, path = store.store, store.path
    group = "/".join(part for part in (path, str(options.get("group") or "").strip("/")) if part)
    if isinstance(store, str | os.PathLike):
        return _Node(store=(), path=_directory(os.fspath(store), group))
    return _node(object_source(store), group) if isinstance(store, Store) else None


def _array_node(array: StoredArray) -> _Node:
    """Return the node of a stored array."""
    if isinstance(array.spec, ArraySpec):
        assert array.source is not None
        return _node(array.source, array.spec.path)
    assert array.zarr_array is not None
    return _node(object_source(array.zarr_array.store), array.zarr_array.path)


def _node(source: ObjectSource, path: str) -> _Node:
    """Return the node at a path of the store that a source reads."""
    while isinstance(source, StrictSource):
        source = source.inner
    if isinstance(source, LocalSource):
        return _Node(store=(), path=_directory(source.root, path))
    return _Node(store=source.__dask_tokenize__(), path=path.strip("/"))


def _directory(root: str, path: str) -> str:
    """Return the directory of a node, without symbolic links and without the first slash."""
    return os.path.realpath(Path(root) / path.strip("/")).lstrip("/")
