"""`open_contents`: the variables at an address, which is a dataset, a group whose arrays are no dataset, or an array.

If xarray cannot make a dataset of the arrays, such as the levels of an OME-Zarr pyramid, each is a variable by itself
with its stored values. `list_groups` lists the groups of a tree, and `larger_group` finds one worth a look.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import xarray as xr
import zarr
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from xarray_gpuzarr.backend.groups import open_group
from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.backend.open_options import Place
from xarray_gpuzarr.cli.failures import Address, dims_of, naming_failures, why_no_dataset
from xarray_gpuzarr.errors import masked
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS

_MOST_LISTED = 100
"""Number of groups of a local store whose members are listed, so that `info` answers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The variables at an address."""

    node: zarr.Group | zarr.Array[Any]
    """Group or array at the address."""
    variables: Mapping[Any, xr.Variable]
    """Name -> variable, lazy or in memory. Data variables precede coordinates."""
    why_no_dataset: str = ""
    """Why the variables are not a dataset. Empty if they are."""


def open_contents(address: Address, device: str) -> Contents:
    """Open the dataset or the arrays at an address.

    Parameters
    ----------
    address : Address
        Store and group.
    device : str
        Device that the dataset is opened for, such as ``"auto"``.

    Raises
    ------
    GpuZarrError
        Nothing can be opened; see `naming_failures`.
    """
    group_argument = f", group={address.group!r}" if address.group else ""
    with naming_failures(address, f"xarray.open_dataset({address.store!r}{group_argument}, engine='gpuzarr')"):
        try:
            # Opened here rather than by xarray, because `Contents.node` is its zarr group. With `store=`, xarray does
            # not open it again.
            opened = open_group(address.store, group=address.group or None, **address.keywords)
            dataset = xr.open_dataset(address.store, engine="gpuzarr", store=opened, device=device)
        except Exception:
            arrays = _open_arrays(address, Place.of(device, storage="auto"))
            if arrays is None:  # then the error of opening the dataset is the one to report
                raise
            return arrays
    order = [*dataset.data_vars, *dataset.coords]
    return Contents(node=opened.zarr_group, variables={name: dataset.variables[name] for name in order})


def _open_arrays(address: Address, place: Place) -> Contents | None:
    """Return the arrays at an address, each as a variable by itself, if they are no dataset.

    None if nothing can be opened, or if the arrays may be a dataset as far as metadata tell.
    """
    node = address.open(address.group)
    if node is None:
        return None
    if isinstance(node, zarr.Array):
        arrays = {address.name: node}
        why = "This is a single array"
    else:
        try:
            arrays = dict(sorted(node.arrays()))
        except Exception:  # noqa: BLE001  # the caller raises the earlier error
            return None
        why = why_no_dataset(arrays)
    if not why:
        return None
    variables = {}
    for name, array in arrays.items():
        backend_array: Any
        if array.dtype.kind in NUMERIC_KINDS:
            stored = stored_array(array, storage=place.storage)
            backend_array = LazyArray(stored, place.device, or_host=place.or_host)
        else:
            backend_array = ZarrArrayWrapper(array)
        dims = dims_of(array) or [f"dim_{axis}" for axis in range(array.ndim)]
        variables[name] = xr.Variable(dims, indexing.LazilyIndexedArray(backend_array))
    return Contents(node=node, variables=variables, why_no_dataset=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBelow:
    """One group of a tree."""

    path: str
    """Path from the root of the store, without a slash at either end."""
    n_arrays: int | None = None
    """Number of arrays directly in the group. None if its members were not listed."""
    decompressed_nbytes: int | None = None
    """Decompressed size of these arrays in bytes."""
    failure: str = ""
    """Why its members could not be listed. Empty if they could."""

    @property
    def option(self) -> str:
        """The option that selects the group, for a shell."""
        return f"--group {shlex.quote(self.path)}"


def list_groups(root: zarr.Group, *, is_local: bool = False, list_all: bool = False) -> tuple[GroupBelow, ...]:
    """Return the groups below a group, sorted by path.

    Parameters
    ----------
    root : zarr.Group
        If its metadata are consolidated, the members of all groups are listed without reading anything else.
    is_local : bool
        Whether the store is a folder or a zip file. Then the members of up to `_MOST_LISTED` groups are listed. For
        other stores, the groups directly in `root` are returned, and their members are not listed.
    list_all : bool
        Whether the members of all groups are listed, however many requests that takes.
    """
    n_left: float = _MOST_LISTED if is_local else 0  # groups whose members may still be listed
    if list_all or root.metadata.consolidated_metadata is not None:
        n_left = float("inf")
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
            nbytes = sum(array.nbytes for array in arrays)
        except Exception as err:  # noqa: BLE001  # damaged metadata raise anything, and it is printed
            groups.append(GroupBelow(path=path, failure=masked(f"{type(err).__name__}: {err}")))
            continue
        groups.append(GroupBelow(path=path, n_arrays=len(arrays), decompressed_nbytes=nbytes))
        waiting.extend(member for _, member in members if isinstance(member, zarr.Group))
    return tuple(sorted(groups, key=lambda group: group.path.split("/")))


def groups_below(address: Address, contents: Contents) -> tuple[GroupBelow, ...]:
    """Return the groups below the one at an address. Empty if there are none, or if the store cannot list them."""
    if isinstance(contents.node, zarr.Group):
        with suppress(Exception):  # stores raise anything, and what is said of groups is only a hint
            return list_groups(contents.node, is_local=address.is_local)
    return ()


def larger_group(groups: Sequence[GroupBelow], nbytes: int) -> GroupBelow | None:
    """Return the group whose arrays are the largest together, if they have more than `nbytes` bytes.

    Otherwise, return the first group whose members were not listed; None if there is none.
    """
    largest = max(groups, key=lambda group: group.decompressed_nbytes or 0, default=None)
    if largest is not None and (largest.decompressed_nbytes or 0) > nbytes:
        return largest
    return next((group for group in groups if group.n_arrays is None and not group.failure), None)
