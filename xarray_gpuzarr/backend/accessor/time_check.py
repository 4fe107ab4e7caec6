"""`TimeCheck`: whether times and durations are read back from the numbers that are stored for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable, conventions
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder

from xarray_gpuzarr.backend.accessor.fit_check import FitCheck, Misfit
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record

TIMES = "mM"
"""Kinds of dtypes of durations and times. xarray packs those in dask arrays one by one. It may choose the units of a
NumPy array by all of its elements, so these are packed together."""


@record
class TimeCheck(FitCheck):
    """Compares times and durations with the numbers that are stored for them, by decoding these."""

    attrs: Mapping[str, Any]
    """Attributes by which the numbers are decoded, such as units, calendar and `_FillValue`."""

    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a time that is stored as another one; None if all fit, or if xarray cannot decode the numbers.

        A time that is stored as a float is found only if NaN or infinity is stored for it.
        """
        # Encoded dask blocks of times have elements of 8 bytes, whatever the stored dtype is. They are converted to it
        # when they are written.
        values, stored = values.reshape(-1), stored.reshape(-1).astype(self.dtype)
        if self.dtype.kind == "f":
            is_lost = Variable("time", values).notnull().to_numpy() & ~np.isfinite(stored)
        else:
            try:
                is_lost = ~_are_equal(values, self._decode(stored, values.dtype))
            except Exception:  # noqa: BLE001  # xarray may raise anything
                return None
        if not is_lost.any():
            return None
        position = int(is_lost.argmax())
        return Misfit(value=values[position], found=f"{values[position]}, which is stored as {stored[position]}")

    def _decode(self, stored: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the times that are read back for numbers, in the unit of a dtype; as dates of cftime for objects."""
        use_cftime = True if dtype.kind == "O" else None
        time_unit: Any = "ns" if use_cftime else np.datetime_data(dtype)[0]
        decoded = conventions.decode_cf_variable(
            self.name,
            Variable("time", stored, dict(self.attrs)),
            decode_times=CFDatetimeCoder(use_cftime=use_cftime, time_unit=time_unit),
            decode_timedelta=CFTimedeltaCoder(time_unit=time_unit, decode_via_units=True),
        )
        times: npt.NDArray[Any] = decoded.to_numpy()
        return times

    def misfit_error(self, misfit: Misfit, position: tuple[int, ...]) -> OptionError:
        """Return the error for a time at an index of what is written."""
        return OptionError(
            f"times of variable {self.name!r} do not fit the dtype in which they are stored",
            tried=f"to store them as {self.dtype}, with units {self.attrs.get('units')!r}",
            found=f"{misfit.found}, at {position} of what is written",
            do="write a new store with other units, an integer dtype that is long enough, or a _FillValue; for units "
            "finer than those of the times, convert these to datetime64[ns]; check_values=False lets xarray store "
            "other times",
        )


def has_times(values: npt.NDArray[Any]) -> bool:
    """Whether an array has times, durations or dates of cftime."""
    return values.dtype.kind in TIMES or (values.dtype.kind == "O" and hasattr(next(values.flat, None), "calendar"))


def _are_equal(values: npt.NDArray[Any], decoded: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each time whether it is the decoded one. Dates of cftime are compared by year, month, and so on."""
    is_equal: npt.NDArray[np.bool_]
    if "O" in (values.dtype.kind, decoded.dtype.kind):
        is_equal = _texts(values) == _texts(decoded)
    elif values.dtype.kind != decoded.dtype.kind:  # without units, times are read back as plain numbers
        is_equal = np.zeros(values.shape, bool)
    else:
        is_equal = (values == decoded) | (np.isnat(values) & np.isnat(decoded))
    return is_equal


def _texts(times: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    """Return times as texts, whatever the calendar."""
    if times.dtype.kind == "M":
        return np.datetime_as_string(times, "us")
    return np.array(
        [time.isoformat(timespec="microseconds") if hasattr(time, "isoformat") else "NaT" for time in times]
    )


def units_error(name: Any, dtype: np.dtype[Any], stored_units: Any, needed_units: Any) -> OptionError:
    """Return the error for times that cannot be stored in the units of an array."""
    return OptionError(
        f"times of variable {name!r} do not fit the units in which they are stored",
        tried=f"to store them as {dtype} in {stored_units!r}",
        found=f"times that need {needed_units!r}",
        do=f"write the store anew with finer units, such as encoding={{{name!r}: {{'units': {needed_units!r}}}}}; "
        "check_values=False lets xarray store other times",
    )
