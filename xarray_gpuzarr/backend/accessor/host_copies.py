"""`bring_to_host`: arrays on a GPU, in memory, lazy or in dask, become NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
from dask.array.utils import meta_from_array
from xarray import Variable
from xarray.core import indexing

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.chunking import find_block_reader
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of, find_lazy_array
from xarray_gpuzarr.decoders.protocol import Route


def bring_to_host(variables: Iterable[Variable]) -> None:
    """Convert variables on a GPU to NumPy arrays, in place: arrays in memory now, others when they are read."""
    for variable in variables:
        data = data_of(variable)
        lazy = find_lazy_array(data)
        if lazy is not None:
            if lazy.device != "host" and hasattr(lazy.meta(), "get"):
                variable.data = _host_copies(data)
        elif hasattr(data, "dask") and (hasattr(meta_from_array(data), "get") or _may_have_device_blocks(data)):
            host_meta = np.empty((0,) * data.ndim, data.dtype)
            variable.data = data.map_blocks(to_numpy, dtype=data.dtype, meta=host_meta)
        elif hasattr(in_memory := array_in_memory(variable), "get"):
            variable.data = to_numpy(in_memory)


def _may_have_device_blocks(data: Any) -> bool:
    """Whether a dask array whose meta is NumPy's may have blocks on a GPU.

    dask falls back to NumPy's if a function fails on arrays of length zero, such as a maximum, and for blocks that are
    in memory of workers.
    """
    reader = find_block_reader(data)
    if reader is not None:
        return hasattr(reader.lazy.meta(), "get")
    mappings = (getattr(layer, "mapping", {}) for layer in getattr(data.dask, "layers", {}).values())
    firsts = (next(iter(mapping.values()), None) for mapping in mappings)
    return any(type(first).__module__.startswith("distributed.") for first in firsts)


def to_numpy(array: Any) -> Any:
    """Return an array of a GPU as a NumPy array; any other array unchanged."""
    return array.get() if hasattr(array, "get") else array


class HostCopy(LazyArray):
    """A lazy array that is decoded on its device and then copied to the host."""

    __slots__ = ()

    @property
    def route(self) -> Route:
        """Where this array is decoded and why."""
        route = super().route
        return Route(where=f"{route.where}, then copied to the host", why=route.why)

    def meta(self) -> Any:
        """Return a zero-length NumPy array."""
        return np.empty((0,) * self.ndim, self.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return to_numpy(super().__getitem__(key))


def _host_copies(data: Any) -> Any:
    """Return xarray's indexing wrappers with a `HostCopy` of the lazy array below them."""
    if isinstance(data, LazyArray):
        return HostCopy(data.stored, data.device, or_host=data.or_host)
    wrapper = copy(data)
    wrapper.array = _host_copies(data.array)
    return wrapper
