"""`TimeCheck`: whether times and durations fit the dtype, and the units, in which they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder

from xarray_gpuzarr.backend.accessor.fit_check import FitCheck, Misfit
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

_TIME_ATTRS = ("units", "calendar")
"""Attributes by which a number is decoded. Without `_FillValue`, a number that equals it is decoded like any other."""
_GREGORIAN = np.datetime64("1582-10-15")
"""The first day of the Gregorian calendar. The standard calendar counts the days before in another way than NumPy."""
USUAL_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
"""Calendars that have the days of NumPy's datetimes, apart from those before `_GREGORIAN`."""
TIMES = "mM"
"""Kinds of dtypes of which xarray packs each element by itself only in dask arrays. In a NumPy array, the units with
which it packs an element depend on all of them."""


@record
class TimeCheck(FitCheck):
    """Compares times and durations with the numbers that are stored for them, by decoding these."""

    attrs: Mapping[str, Any]
    """Stored attributes, such as units and calendar."""

    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a time that is stored as another one; None if all fit.

        The first and the last one are compared, unless they lie before `_GREGORIAN` or xarray cannot decode the number.
        """
        is_time = ~np.isnat(values)
        # Encoded dask blocks of times have 8 bytes, whatever dtype they are stored in.
        values, stored = values[is_time], stored[is_time].astype(self.dtype)
        if not values.size:
            return None
        for position in (values.argmin(), values.argmax()):
            value = values[position]
            if value.dtype.kind == "M" and value.astype("M8[D]") < _GREGORIAN:
                continue
            time_unit, _ = np.datetime_data(value.dtype)
            decoded = self._decode(stored[position], time_unit)
            if decoded is not None and decoded != value:
                return Misfit(value=value, found=f"{value}, which is stored as {stored[position]}")
        return None

    def _decode(self, number: np.integer[Any], time_unit: Any) -> Any:
        """Return the time that is read back for a number, in a unit of NumPy; None if xarray cannot decode it."""
        attrs = {key: self.attrs[key] for key in _TIME_ATTRS if key in self.attrs}
        encoded = Variable("time", [number], attrs)
        try:
            if " since " in str(attrs["units"]):
                return CFDatetimeCoder(use_cftime=False, time_unit=time_unit).decode(encoded).values[0]
            return CFTimedeltaCoder(decode_via_units=True, time_unit=time_unit).decode(encoded).values[0]
        except Exception:  # noqa: BLE001  # xarray may raise anything
            return None

    def misfit_error(self, misfit: Misfit, position: tuple[int, ...]) -> OptionError:
        """Return the error for a time at an index of what is written."""
        return OptionError(
            f"times of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, in {self.attrs['units']!r}",
            found=f"{misfit.found}, at {position} of what is written",
            do="write a new store with a longer dtype, or with coarser or later units; "
            "check_values=False lets xarray store other times",
        )


def is_narrow_integer(dtype: Any) -> bool:
    """Whether a dtype, or what NumPy takes for one, has integers of less than 8 bytes.

    xarray itself raises an error for times that do not fit 8 bytes.
    """
    dtype = np.dtype(dtype)
    return dtype.kind in "iu" and dtype.itemsize < np.dtype(np.int64).itemsize


def units_error(name: Any, dtype: np.dtype[Any], stored_units: Any, needed_units: Any) -> OptionError:
    """Return the error for times that cannot be stored in the units of an array."""
    return OptionError(
        f"times of variable {name!r} do not fit the units in which they are stored",
        tried=f"to store them as {dtype} in {stored_units!r}",
        found=f"times that need {needed_units!r}",
        do=f"write the store anew with finer units, such as encoding={{{name!r}: {{'units': {needed_units!r}}}}}; "
        "check_values=False lets xarray store other times",
    )
