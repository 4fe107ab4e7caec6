"""`check_names_and_changes`: finds names and encodings that cannot be stored, before a store is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray import Dataset, Variable
from zarr.storage import MemoryStore

from xarray_gpuzarr.errors import OptionError, similar_name_hint


def check_names_and_changes(
    dataset: Dataset, changes: Mapping[Any, Mapping[str, Any]], zarr_format: int | None
) -> None:
    """Raise an error for names and encodings that cannot be stored. To find out, xarray writes samples to memory.

    `changes` are entries that replace those in the encoding of variables. Raises `OptionError` for an unknown variable,
    and otherwise what xarray raises.
    """
    # xarray accepts every name that is a text of at least one character.
    odd_names = [name for name in dataset.variables if not isinstance(name, str) or not name]
    if not odd_names and not changes:
        return
    for name in changes:
        if name not in dataset.variables:
            raise OptionError(
                f"unknown variable {name!r}",
                tried=f"encoding= of variable {name!r}",
                found=f"variables {', '.join(map(repr, dataset.variables))}"[:200],  # there may be many
                do=f"name one of these{similar_name_hint(str(name), dataset.variables)}",
            )
    samples = {name: _samples(dataset.variables[name]) for name in [*odd_names, *changes]}
    try:
        _write_to_memory({name: variables[0] for name, variables in samples.items()}, changes, zarr_format)
    except Exception:  # noqa: BLE001  # xarray may raise anything; each variable is then tried by itself
        for name, variables in samples.items():
            _check_samples(name, variables, changes, zarr_format)


def _check_samples(
    name: Any, samples: Sequence[Variable], changes: Mapping[Any, Mapping[str, Any]], zarr_format: int | None
) -> None:
    """Raise what xarray raises for the last sample of a variable, unless it can write one of them."""
    for number, sample in enumerate(samples, 1):
        try:
            _write_to_memory({name: sample}, changes, zarr_format)
            break
        except Exception:  # xarray may raise anything
            if number == len(samples):
                raise


def _write_to_memory(
    samples: Mapping[Any, Variable], changes: Mapping[Any, Mapping[str, Any]], zarr_format: int | None
) -> None:
    """Let xarray write samples of variables to a store in memory."""
    encoding = {name: dict(changes[name]) for name in samples if name in changes}
    xr.Dataset(samples).to_zarr(MemoryStore(), encoding=encoding, zarr_format=zarr_format, consolidated=False)


def _samples(variable: Variable) -> list[Variable]:
    """Return samples of a variable: one with at most one element and, unless it is a scalar, one without any."""
    if variable.dtype.kind == "O":  # its first element tells whether it has dates, text or numbers
        first = variable.isel(dict.fromkeys(variable.dims, slice(1))).values
    else:
        first = np.zeros((1,) * variable.ndim, variable.dtype)
    dims = [f"dim_{axis}" for axis in range(variable.ndim)]
    arrays = [first]
    # xarray may refuse this one element, such as a missing value, but accept the whole variable. A sample without
    # elements then still shows whether name and encoding can be stored.
    if variable.ndim:
        arrays.append(np.zeros((0,) * variable.ndim, variable.dtype))
    return [Variable(dims, array) for array in arrays]
