"""Lazy variables of a slow store, loaded side by side: xarray loads one after another."""

from __future__ import annotations

from collections.abc import Iterable

from xarray import Variable
from xarray.backends.zarr import ZarrArrayWrapper

from xarray_gpuzarr.backend.lazy_array import as_caller_of, find_below, find_lazy_array
from xarray_gpuzarr.backend.metadata_ahead import takes_long
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
    found = [(v, find_lazy_array(v._data)) for v in variables]  # noqa: SLF001
    waiting = [(v, lazy) for v, lazy in found if (_takes_long(v) if lazy is None else lazy.takes_long)]
    if len(waiting) > 1:  # one is loaded by xarray
        side_by_side([v.load for v, _ in waiting], as_caller_of([lazy for _, lazy in waiting if lazy is not None]))


def _takes_long(variable: Variable) -> bool:
    """Return whether xarray would read a variable from a store that takes long to answer."""
    stock = find_below(variable._data, ZarrArrayWrapper)  # noqa: SLF001
    return stock is not None and takes_long(stock.get_array().store)
