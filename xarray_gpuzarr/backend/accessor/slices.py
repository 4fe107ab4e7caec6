"""`dask_view`: a NumPy array as a dask array, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt


class _Sliced:
    """Wraps a NumPy array to keep dask from copying it, as `from_array` does with a bare `numpy.ndarray`."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.ndim = array.ndim

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        block: npt.NDArray[Any] = self._array[key]
        return block


def dask_view(array: npt.NDArray[Any], block_lengths: Sequence[Sequence[int]]) -> da.Array:
    """Return a dask array, with a random name, whose blocks are views of a NumPy array.

    Parameters
    ----------
    array : numpy.ndarray
        An array in host memory. It must not change until the blocks are computed.
    block_lengths : sequence of sequence of int
        Lengths of the blocks along each axis.
    """
    meta = np.empty((0,) * array.ndim, array.dtype)
    sliced: da.Array = da.from_array(
        _Sliced(array), chunks=tuple(map(tuple, block_lengths)), name=False, asarray=False, meta=meta
    )
    return sliced
