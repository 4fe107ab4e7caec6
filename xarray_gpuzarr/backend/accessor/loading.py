"""Lazy variables of a slow store, loaded side by side: xarray loads one after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xarray import Variable
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from xarray_gpuzarr.backend.lazy_array import LazyArray, as_caller_of, find_lazy_array
from xarray_gpuzarr.backend.metadata_ahead import is_worth_it
from xarray_gpuzarr.process.side_by_side import side_by_side


def load_together(variables: Iterable[Variable]) -> None:
    """Load variables that are lazy and lie in a slow store, in place and several at once.

    Parameters
    ----------
    variables : iterable of xarray.Variable

    Raises
    ------
    Exception
        Whatever a read raises; variables that nobody has begun to read stay lazy.
    """
    waiting = [v for v in variables if _takes_long(v)]
    if len(waiting) > 1:  # one is loaded by xarray
        lazies = (find_lazy_array(v._data) for v in waiting)  # noqa: SLF001
        side_by_side([v.load for v in waiting], as_caller_of([lazy for lazy in lazies if lazy is not None]))


def _takes_long(variable: Variable) -> bool:
    """Return whether a variable is still in a store that takes long to answer."""
    data: Any = variable._data  # noqa: SLF001
    while isinstance(data, indexing.ExplicitlyIndexed) and not isinstance(data, LazyArray | ZarrArrayWrapper):
        data = getattr(data, "array", None)
    if isinstance(data, LazyArray):
        return data.takes_long
    return isinstance(data, ZarrArrayWrapper) and is_worth_it(data.get_array().store)
