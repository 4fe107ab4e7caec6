"""`ValueCheck`: whether the values of a variable fit the dtype in which they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

NUMBERS = "biufc"
"""Kinds of dtypes whose elements xarray packs one by one."""
_PRECISION = 1e-6
"""Relative difference that is allowed between a value and what is read back, beside rounding to the stored dtype: about
eight roundings in float32, in which xarray may pack and unpack."""


@record
class Misfit:
    """A value that the stored dtype cannot hold."""

    value: float
    found: str
    """Description of the value, and of the number that is stored for it."""


@record
class ValueCheck:
    """Compares values with what is stored for them.

    What is read back is ``stored * scale + offset``.
    """

    name: Any
    """Name of the variable."""
    dtype: np.dtype[Any]
    """Stored dtype."""
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
        if encoding.get("_Unsigned") is not None:
            return None
        if any(number.size != 1 or number.dtype.kind not in NUMBERS for number in (scale, offset)):
            return None
        return cls(
            name=name,
            dtype=dtype,
            scale=float(scale.reshape(-1)[0].real),
            offset=float(offset.reshape(-1)[0].real),
            has_fill_value=any(encoding.get(key) is not None for key in ("_FillValue", "missing_value")),
        )

    def require_fit(
        self,
        values: npt.NDArray[Any],
        stored: npt.NDArray[Any],
        block: npt.NDArray[Any] | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        """Raise `OptionError` if a value is stored as another one.

        Parameters
        ----------
        values, stored : numpy.ndarray
            As for `find_misfit`.
        block : numpy.ndarray, optional
            The array that `values` are a part of, in which the value is looked for. By default `values` itself.
        first : sequence of int, optional
            The indices of the block's first element. By default zeros.
        """
        misfit = self.find_misfit(values, stored)
        if misfit is not None:
            block = values if block is None else block
            raise self.misfit_error(misfit, block, (0,) * block.ndim if first is None else first)

    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a value that is stored as another one; None if all fit.

        NaN, the smallest and the largest value are checked: if these fit, all others do. Only integers and floats that
        are stored as integers or floats are checked.

        Parameters
        ----------
        values, stored : numpy.ndarray
            The values, and the numbers that are stored for them. Both have the same shape and order.
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
                return Misfit(value=value, found=f"the value {value}, which is stored as {number}")
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

    def misfit_error(self, misfit: Misfit, block: npt.NDArray[Any], first: Sequence[int]) -> OptionError:
        """Return the error for a value of a block, with the index at which the value stands in what is written.

        `first` are the indices of the block's first element.
        """
        is_value = np.isnan(block) if math.isnan(misfit.value) else block == misfit.value
        inside = np.unravel_index(int(is_value.argmax()), block.shape)
        position = tuple([start + int(i) for start, i in zip(first, inside, strict=True)])
        return OptionError(
            f"values of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, scale_factor {self.scale}, add_offset {self.offset}",
            found=f"{misfit.found}, at {position} of what is written",
            do="choose another dtype, scale_factor or add_offset, give a _FillValue, or mask these values; "
            "check_values=False lets xarray store other numbers",
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


def units_error(name: Any, dtype: np.dtype[Any], stored_units: Any, needed_units: Any) -> OptionError:
    """Return the error for times that cannot be stored in the units of an array."""
    return OptionError(
        f"times of variable {name!r} do not fit the units in which they are stored",
        tried=f"to store them as {dtype} in {stored_units!r}",
        found=f"times that need {needed_units!r}",
        do=f"write the store anew with finer units, such as encoding={{{name!r}: {{'units': {needed_units!r}}}}}; "
        "check_values=False lets xarray store other times",
    )
