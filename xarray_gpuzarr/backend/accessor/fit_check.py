"""`FitCheck`: a check that what is stored for values is read back as the same values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import record


@record
class Misfit:
    """A value that the stored dtype cannot hold."""

    value: Any
    """A float or, of times, a NumPy scalar."""
    found: str
    """Description of the value, and of the number that is stored for it."""


@record
class FitCheck(ABC):
    """Compares values with what is stored for them."""

    name: Any
    """Name of the variable."""
    dtype: np.dtype[Any]
    """Stored dtype."""
    group: str = ""
    """Path of the variable's group, which errors name; empty for the root, or if the caller names the group."""

    def require_fit(
        self,
        values: npt.NDArray[Any],
        stored: npt.NDArray[Any],
        *,
        block: npt.NDArray[Any] | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        """Raise `OptionError` if a value is stored as another one.

        Parameters
        ----------
        values, stored : numpy.ndarray
            As for `find_misfit`.
        block : numpy.ndarray, optional
            The array that `values` are a part of, in any order. The error names the value's position in it. By default
            `values` itself.
        first : sequence of int, optional
            The indices of the block's first element in what is written. By default zeros.
        """
        misfit = self.find_misfit(values, stored)
        if misfit is None:
            return
        block = values if block is None else block
        is_nan = misfit.value != misfit.value  # only NaN and NaT differ from themselves
        is_value = np.isnan(block) if is_nan else block == misfit.value
        in_block = np.unravel_index(int(is_value.argmax()), block.shape)
        position = tuple([start + int(i) for start, i in zip(first or (0,) * block.ndim, in_block, strict=True)])
        error = self.misfit_error(misfit, position)
        raise error.within(f"group {self.group!r}") if self.group else error

    @abstractmethod
    def find_misfit(self, values: npt.NDArray[Any], stored: npt.NDArray[Any]) -> Misfit | None:
        """Return a value that is stored as another one; None if all fit.

        Parameters
        ----------
        values, stored : numpy.ndarray
            The values, and the numbers that are stored for them. Both have the same shape and order.
        """

    @abstractmethod
    def misfit_error(self, misfit: Misfit, position: tuple[int, ...]) -> OptionError:
        """Return the error for a value at an index of what is written."""
