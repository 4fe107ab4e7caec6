"""`require_another_store`: refuses to erase a store from which values of the dataset have not been read yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import zarr
from xarray import Dataset, IndexVariable, Variable
from xarray.backends.zarr import ZarrArrayWrapper
from zarr.abc.store import Store
from zarr.storage import StorePath

from xarray_gpuzarr.backend.caching_store import store_path_of
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of
from xarray_gpuzarr.errors import OptionError, masked
from xarray_gpuzarr.fetch.object_names import ArrayPlace, place_of, place_of_source
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.read.stored_array import StoredArray
from xarray_gpuzarr.stored.array_spec import Unplanned


def require_another_store(store: Any, datasets: Iterable[Dataset], options: Mapping[str, Any]) -> None:
    """Raise `OptionError` if ``mode="w"`` would erase arrays that a dataset is still to be read from.

    Parameters
    ----------
    store
        The store, as for `xarray.Dataset.to_zarr`.
    datasets : iterable of xarray.Dataset
        The datasets that are written. Only arrays that this engine, xarray's engine "zarr" or `dask.array.from_zarr`
        reads are considered.
    options : mapping
        The options of `xarray.Dataset.to_zarr`.
    """
    if options.get("mode") != "w":
        return
    unread = [
        (name, place)
        for dataset in datasets
        for name, variable in dataset.variables.items()
        for place in _unread_places(variable)
    ]
    erased = _erased_group(store, options) if unread else None
    if erased is None:
        return
    for name, place in unread:
        if place.is_below(erased):
            raise OptionError(
                "the dataset is read from the store that mode='w' erases",
                tried=f"to write it to {masked(str(store))}",
                found=f"variable {name!r}, whose values have not been read yet",
                do="write to another store; or change single variables by mode='a' or region=; or load() the dataset",
            )


def _unread_places(variable: Variable) -> list[ArrayPlace]:
    """Return the places of the stored arrays that a variable is still to be read from."""
    if isinstance(variable, IndexVariable):  # in the memory of pandas
        return []
    data = data_of(variable)
    if variable.chunks is None:
        place = _place_below(data)
        return [] if place is None else [place]
    from xarray_gpuzarr.backend.block_reader import find_in_layers  # noqa: PLC0415  # imports dask

    return [*find_in_layers(data, _place_below)]


def _place_below(data: object) -> ArrayPlace | None:
    """Return the place of the stored array below the wrappers of xarray and dask.

    None if there is none, or if its place is unknown. This engine's arrays, those of xarray's engine "zarr", and arrays
    of zarr-python are found.
    """
    while data is not None:
        if isinstance(data, LazyArray):
            return _array_place(data.stored)
        if isinstance(data, ZarrArrayWrapper):
            array = data.get_array()
            return place_of(array.store, array.path)
        if isinstance(data, zarr.Array):  # of dask's `from_zarr`
            return place_of(data.store, data.path)
        data = getattr(data, "array", None)
    return None


def _erased_group(store: Any, options: Mapping[str, Any]) -> ArrayPlace | None:
    """Return where the group lies that a write with ``mode="w"`` erases.

    None if it is unknown, such as for chains of fsspec ("simplecache::s3://...") and for what is neither a path, a
    URL nor a store of zarr-python.
    """
    path = ""
    if isinstance(store, str) and "://" in store:
        if "::" in store:
            return None
        url = store
        store = run_on_loop(masked(url), partial(store_path_of, url, options.get("storage_options")))
    if isinstance(store, StorePath):
        store, path = store.store, store.path
    group = str(options.get("group") or "").strip("/")
    return place_of(store, f"{path}/{group}") if isinstance(store, str | Store) else None


def _array_place(array: StoredArray) -> ArrayPlace | None:
    """Return where a stored array lies; None if it is unknown."""
    if isinstance(array.spec, Unplanned):
        assert array.zarr_array is not None  # zarr-python reads an `Unplanned` array
        return place_of(array.zarr_array.store, array.zarr_array.path)
    assert array.source is not None  # this package plans the reads of all other arrays
    return place_of_source(array.source, array.spec.path)
