"""`check_of`: the check that values fit the dtype in which they are stored. `ValueCheck` is the one for numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.backend.accessor.fit_check import FitCheck, Misfit
from xarray_gpuzarr.backend.accessor.time_check import TIMES, TimeCheck
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

NUMBERS = "biufc"
"""Kinds of dtypes whose elements xarray packs one by one."""
_PRECISION = 1e-6
"""Relative difference that is allowed between a value and what is read back, in addition to rounding to the stored
dtype: about eight roundings in float32, in which xarray may pack and unpack."""
_MISSING_KEYS = ("_FillValue", "missing_value")
"""Keys of an encoding with the number that stands for missing values. xarray refuses two that differ."""
_TIME_ATTRS = ("units", "calendar", "dtype", "scale_factor", "add_offset", "_Unsigned")
"""Stored attributes by which times are decoded."""


@record
class ValueCheck(FitCheck):
    """Compares numbers with what is stored for them.

    What is read back is ``stored * scale + offset``.
    """

    read_dtype: np.dtype[Any]
    """Dtype in which the stored numbers are read. It differs from `dtype` for those with the attribute `_Unsigned`."""
    scale: float
    offset: float
    missing: int | float | None
    """The number, as it is read, that is stored in place of NaN; None if there is none."""

    @classmethod
    def of(
        cls, name: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> Self | None:
        """Return the check of a variable.

        Parameters
        ----------
        name : hashable
            Name of the variable.
        dtype : numpy.dtype
            Stored dtype.
        encoding : mapping
            The encoding with which xarray packs the variable.
        attrs : mapping, optional
            The attributes that are stored with it.

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
        # `_Unsigned` is looked for in the stored attributes, since xarray only stores it beside a `_FillValue`.
        read_dtype = _read_dtype(dtype, (attrs or {}).get("_Unsigned"))
        return cls(
            name=name,
            dtype=dtype,
            read_dtype=read_dtype,
            scale=float(scale.reshape(-1)[0].real),
            offset=float(offset.reshape(-1)[0].real),
            missing=_missing_number(encoding, dtype, read_dtype),
        )

    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a value that is stored as another one, or as the fill value; None if all fit.

        NaN, the smallest and the largest value are checked: if these fit, all others do, unless they may be stored as
        the fill value. Only integers and floats that are stored as numbers are checked.
        """
        if values.dtype.kind not in "iuf" or self.dtype.kind not in "biuf" or not values.size:
            return None
        values, stored = values.reshape(-1), stored.reshape(-1).astype(self.read_dtype, copy=False)
        lowest_index, highest_index = values.argmin(), values.argmax()
        if np.isnan(values[lowest_index]):  # `argmin` finds NaN, if there is one
            number = stored[lowest_index]
            if not np.isnan(number) and number != self.missing:
                fate = "and no _FillValue to store it as" if self.missing is None else f"which is stored as {number}"
                return Misfit(value=math.nan, found=f"NaN, {fate}")
            low, high = np.fmin.reduce(values), np.fmax.reduce(values)
            if np.isnan(low):  # all are NaN
                return None
            # `nanargmin` takes a hundred times as long: it copies the values.
            lowest_index, highest_index = (values == low).argmax(), (values == high).argmax()
        for position in (lowest_index, highest_index):
            value = float(values[position])
            number = float(stored[position])
            if not self._fits(value, number, values.dtype):
                return Misfit(value=value, found=f"the value {value}, {self._fate(value, number)}")
        if not self.may_be_missing(values[lowest_index], values[highest_index]):
            return None
        return self._find_missing(values, stored)

    def _find_missing(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a number that is stored as the one that stands for NaN; None if there is none.

        Values that are equal to the fill value are meant to be missing.
        """
        is_lost = (stored == self.missing) & (values != self.missing) & ~np.isnan(values)
        if not is_lost.any():
            return None
        value = values[is_lost.argmax()]
        return Misfit(value=value, found=f"the value {value}, which is stored as {self.missing}, the _FillValue")

    def may_be_missing(self, low: Any, high: Any) -> bool:
        """Whether values from `low` to `high` may be stored as the integer that stands for missing ones."""
        if self.missing is None or self.dtype.kind == "f":
            return False
        value = self.missing * self.scale + self.offset
        tolerance = self._tolerance(value, np.asarray(low).dtype)
        return bool(low - tolerance <= value <= high + tolerance)

    def _fits(self, value: float, number: float, values_dtype: np.dtype[Any]) -> bool:
        """Whether a value is nearly what is read back from the stored number."""
        decoded = number * self.scale + self.offset
        if not math.isfinite(value):
            return decoded == value
        return abs(decoded - value) <= self._tolerance(value, values_dtype)

    def _tolerance(self, value: float, values_dtype: np.dtype[Any]) -> float:
        """Return the difference that is allowed between a value and what is read back.

        Rounding to the nearest integer changes a value by half a step. A whole step is allowed, since numbers that wrap
        around are off by far more. The steps between floats are relative, apart from the smallest.
        """
        floats = [np.finfo(dtype) for dtype in (values_dtype, self.dtype) if dtype.kind == "f"]
        # Eight roundings make a larger difference in half precision.
        precision = max([_PRECISION, *[8 * float(info.eps) for info in floats]])
        step = float(np.finfo(self.dtype).smallest_subnormal) if self.dtype.kind == "f" else 1.0
        return abs(self.scale) * step + precision * (abs(value) + abs(self.offset))

    def _fate(self, value: float, number: float) -> str:
        """Return what becomes of a value that is stored as another number."""
        # With a scale of 0, no number would be read back as the value.
        if self.read_dtype.kind not in "iu" or not math.isfinite(value) or not self.scale:
            return f"which is stored as {number}"
        limits = np.iinfo(self.read_dtype)
        needed = (value - self.offset) / self.scale
        return f"which has to be stored as {needed:.0f}, but only {limits.min} to {limits.max} fit"

    def misfit_error(self, misfit: Misfit, position: tuple[int, ...]) -> OptionError:
        """Return the error for a value at an index of what is written."""
        is_nan = math.isnan(misfit.value)
        change = "fill these values (ds.fillna)" if is_nan else "correct or mask these values"
        return OptionError(
            f"values of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, scale_factor {self.scale}, add_offset {self.offset}",
            found=f"{misfit.found}, at {position} of what is written",
            do=f"{change}; or write a new store with another dtype, scale_factor, add_offset or _FillValue; if the "
            "encoding is that of a source, leave it out with ds.drop_encoding(); check_values=False lets xarray store "
            "other numbers",
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
        None if the encoding packs values in a way that is not known here.
    """
    if values_dtype.kind in TIMES or (values_dtype.kind == "O" and "calendar" in attrs):  # dates of cftime
        decoding = {key: attrs[key] for key in _TIME_ATTRS if key in attrs}
        missing = {key: encoding[key] for key in _MISSING_KEYS if encoding.get(key) is not None}
        return TimeCheck(name=name, dtype=dtype, attrs=decoding | missing)
    return ValueCheck.of(name, dtype, encoding, attrs)


def _read_dtype(dtype: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the dtype in which xarray reads stored numbers, given their attribute `_Unsigned`."""
    kinds = {("true", "i"): "u", ("false", "u"): "i"}
    kind = kinds.get((unsigned, dtype.kind))
    return np.dtype(f"{kind}{dtype.itemsize}") if kind else dtype


def _missing_number(encoding: Mapping[str, Any], dtype: np.dtype[Any], read_dtype: np.dtype[Any]) -> int | float | None:
    """Return the number, as it is read, that xarray stores in place of NaN; None if there is none.

    A fill value that the stored dtype cannot hold does not count, because no number that is read is equal to it.
    """
    numbers = [np.asarray(encoding[key]) for key in _MISSING_KEYS if encoding.get(key) is not None]
    if not numbers or numbers[0].size != 1 or not {numbers[0].dtype.kind, dtype.kind} <= {*NUMBERS}:
        return None
    number = numbers[0].reshape(())
    with np.errstate(invalid="ignore", over="ignore"):
        stored = number.astype(dtype)
    if dtype.kind in "iu" and stored != number and stored.astype(read_dtype) != number:
        return None
    missing: int | float = stored.astype(read_dtype).item()
    return missing
