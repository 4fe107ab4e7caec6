"""`require_another_store`: refuses to erase a store that the dataset to be written is still to be read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from xarray import Dataset, Variable
from zarr.abc.store import Store
from zarr.storage import StorePath

from xarray_gpuzarr.backend.caching_store import store_path_of
from xarray_gpuzarr.backend.lazy_array import data_of, find_lazy_selection
from xarray_gpuzarr.errors import OptionError, masked
from xarray_gpuzarr.fetch.object_names import ArrayPlace, place_of, place_of_source
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.read.stored_array import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec


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
    erased = _erased_group(store, options) if unread else None
    if erased is None:
        return
    for name, array in unread:
        place = _array_place(array)
        if place is not None and place.is_below(erased):
            raise OptionError(
                "the dataset is read from the store that mode='w' erases",
                tried=f"to write it to {masked(str(store))}",
                found=f"variable {name!r}, whose values have not been read yet",
                do="write to another store; or change single variables by mode='a' or region=; or load() the dataset",
            )


def _unread_arrays(variable: Variable) -> Iterator[StoredArray]:
    """Yield the stored arrays that a variable is still to be read from."""
    data = data_of(variable)
    selection = find_lazy_selection(data)
    if selection is not None:
        yield selection.array.stored
    elif variable.chunks is not None:
        from xarray_gpuzarr.backend.chunking import find_block_readers  # noqa: PLC0415  # imports dask

        for reader in find_block_readers(data):
            yield reader.lazy.stored


def _erased_group(store: Any, options: Mapping[str, Any]) -> ArrayPlace | None:
    """Return where the group lies that a write with ``mode="w"`` erases.

    None if it is unknown, such as for chains of fsspec ("simplecache::s3://...") and for what is neither a path, a
    URL nor a store of zarr-python.
    """
    path = ""
    if isinstance(store, str) and "://" in store:
        if "::" in store:
            return None
        store = run_on_loop(store, partial(store_path_of, store, options.get("storage_options")))
    if isinstance(store, StorePath):
        store, path = store.store, store.path
    group = str(options.get("group") or "").strip("/")
    return place_of(store, f"{path}/{group}") if isinstance(store, str | Store) else None


def _array_place(array: StoredArray) -> ArrayPlace | None:
    """Return where a stored array lies; None if it is unknown."""
    if isinstance(array.spec, ArraySpec):
        assert array.source is not None
        return place_of_source(array.source, array.spec.path)
    assert array.zarr_array is not None
    return place_of(array.zarr_array.store, array.zarr_array.path)
