"""The ways to read an array that ``gpuzarr bench`` compares: with this package, and without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import xarray as xr
import zarr

from xarray_gpuzarr.cli.failures import Address
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.read import read_array

Box = tuple[slice, ...]
"""A slice of elements for each axis, with step 1."""
Read = Callable[[], Any]
"""Reads the values, from the stored bytes each time it is called."""

_NO_DASK = "no dask"
_PREFERRED_CHUNKS = "chunks={}"
_WHOLE_SHARDS = "chunks=shards"
"""How a reader divides a variable into dask tasks: not at all, as the engine prefers, or by shards. The texts are also
labels in the table."""


def reads_of(
    address: Address, group: str, variable: str, box: Box, shards: Sequence[int] | None = None
) -> dict[str, Read]:
    """Return the ways to read a variable that are compared.

    Parameters
    ----------
    address : Address
        The store.
    group, variable : str
        Path of the group in the store, and name of the variable.
    box : tuple of slice
        What is read.
    shards : sequence of int, optional
        Shape of a shard, if there are shards. Then there is one more reader: xarray's engine with one task for each
        shard. With ``chunks={}``, that engine makes a task for each inner chunk.

    Returns
    -------
    dict of str to callable
        Name of each reader -> function that reads and decodes. The first reader is xarray's own engine, without dask.
        The names of this package's readers begin with "gpuzarr", those of others with "zarr".
    """
    engines: dict[str, dict[str, Any]] = {"zarr": {"engine": "zarr"}}
    for name, device in _devices():
        engines[name] = {"engine": "gpuzarr", "device": device}

    @cache  # each reader opens the store once, during the warm-up
    def open_variable(name: str, chunks: str) -> xr.Variable:
        options = {"group": group or None, "chunks": chunk_lengths(chunks), **address.keywords, **engines[name]}
        dataset = xr.open_dataset(address.store, cache=False, **options)  # xarray's cache would keep the values
        return dataset[variable].variable

    def chunk_lengths(chunks: str) -> dict[Any, int] | None:
        if chunks == _WHOLE_SHARDS and shards is not None:
            # The names of the dimensions are those of the variable that is opened without dask.
            return dict(zip(open_variable("zarr", _NO_DASK).dims, shards, strict=True))
        return None if chunks == _NO_DASK else {}

    def read(name: str, chunks: str) -> Any:
        return open_variable(name, chunks)[box].compute().data

    readers = [(name, _NO_DASK) for name in engines]
    for name in engines:
        readers.append((name, _PREFERRED_CHUNKS))
        if name == "zarr" and shards is not None:
            readers.append((name, _WHOLE_SHARDS))
    return {f"{name}, {chunks}": partial(read, name, chunks) for name, chunks in readers}


def reads_of_array(address: Address, path: str, box: Box) -> dict[str, Read]:
    """Return the ways to read an array that xarray cannot open; see `reads_of`. The first reader is zarr-python.

    Parameters
    ----------
    address : Address
        The store.
    path : str
        Path of the array in the store.
    box : tuple of slice
        What is read.
    """
    stored = zarr.open_array(address.store, path=path, mode="r", **address.keywords)
    reads: dict[str, Read] = {"zarr-python": lambda: stored[box]}
    reads |= {name: partial(read_array, stored, box, device=device) for name, device in _devices()}
    return reads


def _devices() -> list[tuple[str, Device]]:
    """Return the name and the device of each reader of this package."""
    devices: list[tuple[str, Device]] = [("gpuzarr", "host")]
    if not missing_for_cuda():
        devices.append(("gpuzarr cuda", "cuda"))
    return devices
