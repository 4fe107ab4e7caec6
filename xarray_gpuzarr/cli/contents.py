"""Contents of an address: a dataset, a group whose arrays form no dataset, or a single array.

Where xarray makes no dataset of the arrays, as with the levels of an OME-Zarr pyramid, each stands for itself, with its
stored values.
"""

from __future__ import annotations

from collections import deque
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
from xarray_gpuzarr.errors import masked
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS

_MOST_LOOKED_INTO = 100
"""So many groups are looked into where each takes requests: `info` should answer at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The variables at an address."""

    node: zarr.Group | zarr.Array[Any]
    """Group or array that is stored there."""
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
        except Exception:  # noqa: BLE001  # one failure is being named already
            return None
        why = why_apart(arrays)
    variables = {}
    for name, array in arrays.items():
        lazily: Any = ZarrArrayWrapper(array)
        if array.dtype.kind in NUMERIC_KINDS:
            lazily = LazyArray(stored_array(array, storage=place.storage), place.device, or_host=place.or_host)
        dims = dims_of(array) or [f"dim_{axis}" for axis in range(array.ndim)]
        variables[name] = xr.Variable(dims, indexing.LazilyIndexedArray(lazily))
    return Contents(node=node, variables=variables, why_apart=why) if why else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBelow:
    """One group of a tree."""

    path: str
    """From the store's root, without a slash at either end."""
    n_arrays: int | None = None
    """Arrays directly in it; None if it was not looked into."""
    decompressed_nbytes: int | None = None
    """Bytes of their elements before compression."""
    failure: str = ""
    """Why it could not be looked into."""


def groups_below(root: zarr.Group, *, is_local: bool = False, whole: bool = False) -> tuple[GroupBelow, ...]:
    """List all groups below one, by path.

    If its metadata are consolidated, nothing else is read. Otherwise local stores (`is_local`: a folder or a zip file)
    are listed, and others only asked for the groups right below it. `whole` looks into all groups of any store.
    """
    is_quick = root.metadata.consolidated_metadata is not None
    n_left: float = float("inf") if whole or is_quick else _MOST_LOOKED_INTO if is_local else 0
    groups: list[GroupBelow] = []
    waiting = deque(group for _, group in root.groups())
    while waiting:
        group = waiting.popleft()
        path = group.path.strip("/")
        n_left -= 1
        if n_left < 0:
            groups.append(GroupBelow(path=path))
            continue
        try:
            members = group.members()
            arrays = [member for _, member in members if isinstance(member, zarr.Array)]
            looked = GroupBelow(
                path=path, n_arrays=len(arrays), decompressed_nbytes=sum(array.nbytes for array in arrays)
            )
        except Exception as err:  # noqa: BLE001  # damaged metadata raise anything; the line of the group names it
            groups.append(GroupBelow(path=path, failure=masked(f"{type(err).__name__}: {err}")))
            continue
        groups.append(looked)
        waiting.extend(member for _, member in members if isinstance(member, zarr.Group))
    return tuple(sorted(groups, key=lambda group: group.path.split("/")))
