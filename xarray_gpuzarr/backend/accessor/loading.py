"""Lazy variables of a slow store, loaded side by side: xarray loads one after another."""

from __future__ import annotations

from collections.abc import Iterable

from xarray import Variable
from xarray.backends.zarr import ZarrArrayWrapper

from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.backend.lazy_array import LazyArray, as_caller_of, data_of, find_below
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
    waiting = [(v, find_below(data_of(v), LazyArray)) for v in variables if _takes_long(data_of(v))]
    if len(waiting) > 1:  # one is loaded by xarray
        side_by_side([v.load for v, _ in waiting], as_caller_of([lazy for _, lazy in waiting if lazy is not None]))


def _takes_long(data: object) -> bool:
    """Return whether data are read from a store that takes long to answer."""
    lazy, stock = find_below(data, LazyArray), find_below(data, ZarrArrayWrapper)
    return takes_long(stock.get_array().store) if stock is not None else lazy is not None and lazy.takes_long
