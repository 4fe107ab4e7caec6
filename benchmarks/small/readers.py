"""Readers of little, with caches of decoded chunks and without; each is the shipped one of its library."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing

from benchmarks.runner.readers import PIPELINES, Box
from benchmarks.runner.results import Side
from xarray_gpuzarr import configure, read_array, zarr_pipeline

CACHE_NBYTES = 256 * 1024**2
"""What each cache may hold: the default of this package."""
VARIABLE = "v"
Read = Callable[[Box], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of a case."""

    name: str
    side: Side = "peer"
    open: Callable[[Path], Read]
    before: Callable[[], object] = lambda: None
    """Called before each measurement: settings are those of the process."""
    needs: str = ""
    """Module that has to be installed."""


class _InMemory(BackendArray):
    """A NumPy array as a lazy one: what xarray itself needs for a read."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        outer = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._values.__getitem__)


def _array(path: Path, settings: AbstractContextManager[Any] | None = None) -> zarr.Array[Any]:
    with settings or nullcontext():
        return zarr.open_array(path, path=VARIABLE, mode="r")


def _by_zarr(pipeline: str) -> Callable[[Path], Read]:
    def open_zarr(path: Path) -> Read:
        settings = {"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}
        array = _array(path, zarr.config.set(settings))
        return lambda box: array[box]

    return open_zarr


def _by_read_array(path: Path) -> Read:
    array = _array(path)
    return lambda box: read_array(array, box, device="host")


def _by_pipeline(path: Path) -> Read:
    array = _array(path, zarr_pipeline())
    return lambda box: array[box]


def _by_engine(path: Path) -> Read:
    options: dict[str, Any] = {"engine": "gpuzarr", "device": "host", "cache": False, "consolidated": False}
    variable = xr.open_dataset(path, **options)[VARIABLE]
    return lambda box: variable[box].values


def _by_xarray_alone(path: Path) -> Read:
    values = np.asarray(_array(path)[...])
    lazy = xr.DataArray(xr.Variable(("z", "y", "x"), indexing.LazilyIndexedArray(_InMemory(values))))
    return lambda box: lazy[box].values


def _by_tensorstore(cache_nbytes: int) -> Callable[[Path], Read]:
    def open_tensorstore(path: Path) -> Read:
        spec: dict[str, Any] = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path / VARIABLE}/"}}
        spec["context"] = {"cache_pool": {"total_bytes_limit": cache_nbytes}}
        store = importlib.import_module("tensorstore").open(spec, open=True, read=True).result()
        return lambda box: np.asarray(store[box].read(order="C").result())

    return open_tensorstore


def _by_hdf5(path: Path) -> Read:
    """Read the same values from a file of HDF5, in chunks of the same shape, compressed by gzip."""
    h5py = importlib.import_module("h5py")
    array, file = _array(path), path.with_suffix(".h5")
    if not file.exists():
        with h5py.File(file, "w") as new:
            new.create_dataset(VARIABLE, data=array[...], chunks=array.chunks, compression=1, shuffle=True)
    dataset = h5py.File(file, "r", rdcc_nbytes=CACHE_NBYTES)[VARIABLE]
    return lambda box: dataset[box]


def with_cache() -> None:
    """Let this package keep decoded chunks."""
    configure(cache_nbytes=CACHE_NBYTES)


def without_cache() -> None:
    """Let this package keep none."""
    configure(cache_nbytes=0)


READERS = (
    Reader(name="zarr default", open=_by_zarr("default")),
    Reader(name="zarr Fused", open=_by_zarr("Fused")),
    Reader(name="zarrs", open=_by_zarr("zarrs"), needs="zarrs"),
    Reader(name="TensorStore", open=_by_tensorstore(0), needs="tensorstore"),
    Reader(name="TensorStore, cache", open=_by_tensorstore(CACHE_NBYTES), needs="tensorstore"),
    Reader(name="HDF5, chunk cache", side="bare", open=_by_hdf5, needs="h5py"),  # another format, for comparison
    Reader(name="xarray alone", side="bare", open=_by_xarray_alone),
    Reader(name="gpuzarr", side="ours", open=_by_read_array, before=without_cache),
    Reader(name="gpuzarr, cache", side="ours", open=_by_read_array, before=with_cache),
    Reader(name="gpuzarr pipeline, cache", side="ours", open=_by_pipeline, before=with_cache),
    Reader(name="xarray gpuzarr, cache", side="ours", open=_by_engine, before=with_cache),
)
