"""`array_in_memory`: the array that a variable holds, if it is in memory."""

from __future__ import annotations

from typing import Any

from xarray import Variable
from xarray.core import indexing

from xarray_gpuzarr.backend.lazy_array import data_of

_ADAPTERS = (indexing.NumpyIndexingAdapter, indexing.NdArrayLikeIndexingAdapter, indexing.ArrayApiIndexingAdapter)
"""Classes of xarray that hold an array in memory."""
_WRAPPERS = (indexing.MemoryCachedArray, indexing.CopyOnWriteArray, *_ADAPTERS)
"""Classes of xarray below which there may be an array in memory, or one that has not been read."""


def array_in_memory(variable: Variable) -> Any:
    """Return the array that a variable holds in memory; None if it has not been read or computed."""
    data = data_of(variable)
    while isinstance(data, _WRAPPERS):
        data = data.array
    return None if isinstance(data, indexing.ExplicitlyIndexed) or hasattr(data, "dask") else data
