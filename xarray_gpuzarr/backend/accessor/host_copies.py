"""`bring_to_host`: converts arrays on a GPU to NumPy arrays, whether they are in memory, lazy or dask arrays.

An array on a GPU is one with a method ``get``: a CuPy array, or the `CupyStandIn` that takes its place on a client.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
from dask.array.utils import meta_from_array
from xarray import Variable
from xarray.core import indexing

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.block_reader import find_block_reader
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of, find_lazy_array
from xarray_gpuzarr.decoders.protocol import Route


def bring_to_host(variables: Iterable[Variable]) -> None:
    """Convert variables to NumPy arrays, in place: those in GPU memory now, lazy and dask arrays when read."""
    for variable in variables:
        data = data_of(variable)
        lazy = find_lazy_array(data)
        if lazy is not None:
            if lazy.device != "host" and hasattr(lazy.meta(), "get"):
                variable.data = _with_host_copy(data)
        elif hasattr(data, "dask") and (hasattr(meta_from_array(data), "get") or _may_have_device_blocks(data)):
            host_meta = np.empty((0,) * data.ndim, data.dtype)
            variable.data = data.map_blocks(to_numpy, dtype=data.dtype, meta=host_meta)
        else:
            array = array_in_memory(variable)
            if hasattr(array, "get"):
                variable.data = to_numpy(array)


def _may_have_device_blocks(data: Any) -> bool:
    """Whether a dask array with a NumPy meta may have blocks on a GPU.

    dask gives a NumPy meta to the results of functions that fail on arrays of length zero, such as a maximum, and to
    blocks in the memory of workers.
    """
    reader = find_block_reader(data)
    if reader is not None:
        return hasattr(reader.lazy.meta(), "get")
    mappings = (getattr(layer, "mapping", {}) for layer in getattr(data.dask, "layers", {}).values())
    first_tasks = (next(iter(mapping.values()), None) for mapping in mappings)
    # A persisted array has futures of dask's workers in place of tasks.
    return any(type(task).__module__.startswith("distributed.") for task in first_tasks)


def to_numpy(array: Any) -> Any:
    """Return an array on a GPU as a NumPy array, and any other array unchanged."""
    return array.get() if hasattr(array, "get") else array


class HostCopy(LazyArray):
    """A lazy array that is decoded on its device and then copied to the host."""

    __slots__ = ()

    @property
    def route(self) -> Route:
        """Where this array is decoded, and why. The place names the copy to the host."""
        route = super().route
        return Route(where=f"{route.where}, then copied to the host", why=route.why)

    def meta(self) -> Any:
        """Return a NumPy array without elements."""
        return np.empty((0,) * self.ndim, self.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return to_numpy(super().__getitem__(key))


def _with_host_copy(data: Any) -> Any:
    """Return a copy of xarray's indexing wrappers in which a `HostCopy` replaces the lazy array."""
    if isinstance(data, LazyArray):
        return HostCopy(data.stored, data.device, or_host=data.or_host)
    wrapper = copy(data)
    wrapper.array = _with_host_copy(data.array)
    return wrapper
