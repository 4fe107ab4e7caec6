"""What is stored at an address: a dataset, a group whose arrays form no dataset, or a single array.

Where xarray makes no dataset of the arrays, as with the levels of an OME-Zarr pyramid, each stands for itself, with its
stored values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr
import zarr
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from xarray_gpuzarr.backend.groups import open_group
from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.backend.open_options import Place
from xarray_gpuzarr.cli.failures import Address, dims_of, naming_failures, why_apart
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The variables at an address."""

    node: zarr.Group | zarr.Array[Any]
    """What is stored there."""
    variables: Mapping[Any, xr.Variable]
    """By name, those that are data before coordinates; in memory or lazy."""
    why_apart: str = ""
    """Why xarray makes no dataset of them; empty if it does."""


def open_contents(address: Address, device: str) -> Contents:
    """Open a dataset, or arrays that form none; errors of stores and codecs become a `StoreReadError`."""
    of_group = f", group={address.group!r}" if address.group else ""
    with naming_failures(address, f"xarray.open_dataset({address.store!r}{of_group}, engine='gpuzarr')"):
        try:
            opened = open_group(address.store, group=address.group or None, **address.given)
            dataset = xr.open_dataset(address.store, engine="gpuzarr", store=opened, device=device)
        except Exception:
            apart = _apart(address, Place.of(device, "auto"))
            if apart is None:
                raise
            return apart
    order = [*dataset.data_vars, *dataset.coords]
    return Contents(node=opened.zarr_group, variables={name: dataset.variables[name] for name in order})


def _apart(address: Address, place: Place) -> Contents | None:
    """Return arrays that form no dataset, each by itself; None if nothing can be opened, or if they form one."""
    node = address.open(address.group)
    if node is None:
        return None
    if isinstance(node, zarr.Array):
        arrays, why = {address.name: node}, "This is a single array"
    else:
        try:
            arrays = dict(sorted(node.arrays()))
        except Exception:  # noqa: BLE001  # as in `Address.open`
            return None
        why = why_apart(arrays)
    variables = {name: _as_stored(array, place) for name, array in arrays.items()}
    return Contents(node=node, variables=variables, why_apart=why) if why else None


def _as_stored(array: zarr.Array[Any], place: Place) -> xr.Variable:
    """Return an array as a lazy variable with its stored values; this engine reads it if it is numeric."""
    lazily: Any = ZarrArrayWrapper(array)
    if array.dtype.kind in NUMERIC_KINDS:
        lazily = LazyArray(stored_array(array, storage=place.storage), place.device, or_host=place.or_host)
    dims = dims_of(array) or [f"dim_{axis}" for axis in range(array.ndim)]
    return xr.Variable(dims, indexing.LazilyIndexedArray(lazily))
