"""How xarray encodes the variables of a group, which is found out by letting it encode samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import IndexVariable, Variable, conventions
from xarray.backends import ZarrStore

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.accessor.time_check import has_times, units_error
from xarray_gpuzarr.backend.accessor.value_check import ValueCheck, check_of, extremes


def decode_stored(stored: Variable) -> Variable:
    """Return a stored variable as xarray decodes it, without reading it.

    Its encoding is the one with which xarray encodes values that are added to the stored array.
    """
    decoded, _, _ = conventions.decode_cf_variables({"stored": stored}, {})
    variable: Variable = decoded["stored"]
    return variable


def one_element(variable: Variable, encoding: Mapping[str, Any]) -> Variable:
    """Return a variable with one NumPy element, and the dimensions, dtype and attributes of another variable."""
    zeros = np.zeros((1,) * variable.ndim, variable.dtype)
    return Variable(variable.dims, zeros, variable.attrs, dict(encoding))


def try_encode(target: ZarrStore, name: Any, variable: Variable) -> Variable | None:
    """Return a variable as xarray encodes it for a group; None if xarray raises an error."""
    try:
        encoded: Variable = target.encode_variable(variable, name)
    except Exception:  # noqa: BLE001  # xarray raises it again when it encodes the whole variable
        return None
    return encoded


def check_encodable(target: ZarrStore, name: Any, variable: Variable) -> None:
    """Raise what xarray raises for a variable that it cannot encode.

    One element of a NumPy array is enough. If xarray does not encode it, all elements are encoded, which may succeed.
    """
    if variable.chunks is None and try_encode(target, name, one_element(variable, variable.encoding)) is not None:
        return
    target.encode_variable(variable, name)


def check_numpy_values(target: ZarrStore, name: Any, variable: Variable, encoding: Mapping[str, Any]) -> bool:
    """Check the smallest and the largest value of a variable, or all of its times, before the store is touched.

    Returns
    -------
    bool
        Whether all values fit the stored dtype. False if that is not known, such as for dask arrays.

    Raises
    ------
    OptionError
        If a value does not fit the stored dtype.
    """
    # `array_in_memory` does not find the values of an index, which pandas holds. Scalars are checked when they are
    # written.
    values = variable.values if isinstance(variable, IndexVariable) else array_in_memory(variable)
    if not isinstance(values, np.ndarray) or not values.ndim or not values.size:
        return False
    if values.dtype.kind in "iuf":
        if encoding.get("dtype", values.dtype) == values.dtype and not {"scale_factor", "add_offset"} & encoding.keys():
            return True  # such numbers are stored as they are
        return _check_extremes(target, name, variable, values, encoding)
    if has_times(values):
        return _check_times(target, name, variable, values, encoding)
    return False  # such as text, which is not checked here


def _check_extremes(
    target: ZarrStore, name: Any, variable: Variable, values: npt.NDArray[Any], encoding: Mapping[str, Any]
) -> bool:
    """Check the smallest and the largest number of a variable; see `check_numpy_values`."""
    sample = extremes(values).reshape(-1, *(1,) * (values.ndim - 1))
    encoded = try_encode(target, name, Variable(variable.dims, sample, variable.attrs, dict(encoding)))
    # An `add_offset` that is an array is broadcast, which gives the encoded sample another shape.
    if encoded is None or encoded.shape != sample.shape:
        return False
    check = ValueCheck.of(name, encoded.dtype, encoding, encoded.attrs)
    if check is None:
        return False
    check.require_fit(sample, encoded.values, block=values)  # the error names the position in `values`
    # A number between the extremes may be packed as the fill value, and would be read as missing. Only the packing of
    # all numbers shows this.
    return not check.may_be_missing(np.nanmin(sample), np.nanmax(sample))


def _check_times(
    target: ZarrStore, name: Any, variable: Variable, values: npt.NDArray[Any], encoding: Mapping[str, Any]
) -> bool:
    """Check all times of a variable, since xarray chooses their units by all of them; see `check_numpy_values`."""
    encoded = _encode_times(target, name, variable, encoding)
    if encoded is None:
        return False
    check = check_of(name, values.dtype, encoded.dtype, encoding, encoded.attrs)
    if check is None:
        return False
    check.require_fit(values, encoded.values)
    return True


def check_units(
    target: ZarrStore, name: Any, variable: Variable, encoding: Mapping[str, Any], stored_units: Any
) -> None:
    """Raise `OptionError` if xarray encodes times in other units than those of the stored array.

    xarray takes finer units where those of `encoding` are too coarse, or absent. The stored array keeps
    `stored_units`, or stays without units if they are None, so other values would be read back.
    """
    if not variable.size or not has_times(variable.values):
        return
    encoded = _encode_times(target, name, variable, encoding)
    if encoded is None:
        return
    needed_units = str(encoded.attrs["units"])
    if _unit_of_time(needed_units) != _unit_of_time(str(stored_units)):
        raise units_error(name, encoded.dtype, stored_units, needed_units)


def _encode_times(target: ZarrStore, name: Any, variable: Variable, encoding: Mapping[str, Any]) -> Variable | None:
    """Return times as xarray encodes them; None if xarray raises an error."""
    with warnings.catch_warnings():  # xarray warns again when it encodes them for the store
        warnings.simplefilter("ignore")
        return try_encode(target, name, Variable(variable.dims, variable.values, variable.attrs, dict(encoding)))


def _unit_of_time(units: str) -> str:
    """Return "hour" for "hours since 2000-01-01". xarray may write the date in another way, but does not change it."""
    return units.split(" since ", maxsplit=1)[0].strip().lower().removesuffix("s")
