"""`check_of`: the check that the values of a variable fit the dtype in which they are stored, and that of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.backend.accessor.fit_check import FitCheck, Misfit
from xarray_gpuzarr.backend.accessor.time_check import TIMES, USUAL_CALENDARS, TimeCheck, is_narrow_integer
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

NUMBERS = "biufc"
"""Kinds of dtypes whose elements xarray packs one by one."""
_PRECISION = 1e-6
"""Relative difference that is allowed between a value and what is read back, beside rounding to the stored dtype: about
eight roundings in float32, in which xarray may pack and unpack."""


@record
class ValueCheck(FitCheck):
    """Compares numbers with what is stored for them.

    What is read back is ``stored * scale + offset``.
    """

    scale: float
    offset: float
    has_fill_value: bool
    """Whether a number is stored in place of NaN."""

    @classmethod
    def of(cls, name: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> Self | None:
        """Return the check of a variable.

        Parameters
        ----------
        name : hashable
            Name of the variable.
        dtype : numpy.dtype
            Stored dtype.
        encoding : mapping
            The encoding with which xarray packs the variable.

        Returns
        -------
        ValueCheck or None
            None if the encoding packs values in a way that is not known here.
        """
        scale = np.asarray(encoding.get("scale_factor", 1))
        offset = np.asarray(encoding.get("add_offset", 0))
        unknown = [number for number in (scale, offset) if number.size != 1 or number.dtype.kind not in NUMBERS]
        if unknown:
            return None
        return cls(
            name=name,
            dtype=dtype,
            scale=float(scale.reshape(-1)[0].real),
            offset=float(offset.reshape(-1)[0].real),
            has_fill_value=any(encoding.get(key) is not None for key in ("_FillValue", "missing_value")),
        )

    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a value that is stored as another one; None if all fit.

        NaN, the smallest and the largest value are checked: if these fit, all others do. Only integers and floats that
        are stored as integers or floats are checked.
        """
        if values.dtype.kind not in "iuf" or self.dtype.kind not in "iuf" or not values.size:
            return None
        values, stored = values.reshape(-1), stored.reshape(-1)
        lowest_index = values.argmin()
        if np.isnan(values[lowest_index]):  # `argmin` finds NaN, if there is one
            if self.dtype.kind != "f" and not self.has_fill_value:
                return Misfit(value=math.nan, found="NaN, and no _FillValue to store it as")
            is_number = ~np.isnan(values)
            values, stored = values[is_number], stored[is_number]
            if not values.size:
                return None
            lowest_index = values.argmin()
        precision = _PRECISION
        if values.dtype.kind == "f":
            # Eight roundings make a larger difference in half precision.
            precision = max(precision, 8 * float(np.finfo(values.dtype).eps))
        for position in (lowest_index, values.argmax()):
            value = float(values[position])
            number = float(stored[position])
            if not self._fits(value, number, precision):
                return Misfit(value=value, found=f"the value {value}, {self._fate(value, number)}")
        return None

    def _fits(self, value: float, number: float, precision: float) -> bool:
        """Whether a value is nearly what is read back from the stored number.

        For stored floats it is enough that a finite value has become a finite number.
        """
        if self.dtype.kind == "f":
            return math.isfinite(number) or not math.isfinite(value)
        # Rounding to the nearest number changes a value by half a step. A whole step is allowed, since numbers that
        # wrap around are off by far more.
        tolerance = abs(self.scale) + precision * (abs(value) + abs(self.offset))
        return math.isfinite(value) and abs(number * self.scale + self.offset - value) <= tolerance

    def _fate(self, value: float, number: float) -> str:
        """Return what becomes of a value that is stored as another number."""
        # With a scale of 0, no number would be read back as the value.
        if self.dtype.kind == "f" or not math.isfinite(value) or not self.scale:
            return f"which is stored as {number}"
        limits = np.iinfo(self.dtype)
        return (
            f"which takes the number {(value - self.offset) / self.scale:.0f}, while {limits.min} to {limits.max} fit"
        )

    def misfit_error(self, misfit: Misfit, position: tuple[int, ...]) -> OptionError:
        """Return the error for a value at an index of what is written."""
        return OptionError(
            f"values of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, scale_factor {self.scale}, add_offset {self.offset}",
            found=f"{misfit.found}, at {position} of what is written",
            do="mask these values; or write a new store with another dtype, scale_factor or add_offset, or with a "
            "_FillValue; check_values=False lets xarray store other numbers",
        )


def extremes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the smallest and the largest value of a NumPy array, and NaN if there is one, as a 1-D array.

    `values` must not be empty. If the result fits a dtype, all values do. No array as large as `values` is allocated.
    """
    low = values.min()
    if np.isnan(low):  # one value is NaN
        numbers = (np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None))
        return np.array([*numbers, low], values.dtype)
    return np.array([low, values.max()], values.dtype)


def check_of(
    name: Any,
    values_dtype: np.dtype[Any],
    dtype: np.dtype[Any],
    encoding: Mapping[str, Any],
    attrs: Mapping[str, Any],
) -> FitCheck | None:
    """Return the check of a variable.

    Parameters
    ----------
    name : hashable
        Name of the variable.
    values_dtype, dtype : numpy.dtype
        Dtype of the values, and that of the stored numbers.
    encoding : mapping
        The encoding with which xarray encodes the variable.
    attrs : mapping
        The attributes that are stored with it.

    Returns
    -------
    FitCheck or None
        None if every value fits, if xarray itself refuses those that do not, or if what is read back is not known here.
    """
    if values_dtype.kind in TIMES:
        # Times may be stored in a calendar that has other days.
        has_usual_days = str(attrs.get("calendar", "standard")) in USUAL_CALENDARS
        return (
            TimeCheck(name=name, dtype=dtype, attrs=attrs)
            if is_narrow_integer(dtype) and has_usual_days and "units" in attrs
            else None
        )
    # With this attribute, signed numbers are read back as unsigned ones. It is looked for in the stored attributes, not
    # in `encoding`, because xarray only stores it beside a `_FillValue`.
    return None if "_Unsigned" in attrs else ValueCheck.of(name, dtype, encoding)
