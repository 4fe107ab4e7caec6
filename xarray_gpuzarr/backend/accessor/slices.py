"""`slices_of`: an array of NumPy as an array of dask, of which nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt


class _Sliced:
    """What dask takes slices of. It copies all of an array of NumPy, so that later changes of it are not seen."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        block: npt.NDArray[Any] = self._array[key]
        return block


def slices_of(array: npt.NDArray[Any], lengths: Sequence[Sequence[int]]) -> da.Array:
    """Return an array of dask whose blocks are views of an array of NumPy, with a name at random.

    Parameters
    ----------
    array : numpy.ndarray
        An array in host memory. It is not to change until the blocks are computed.
    lengths : sequence of sequence of int
        Lengths of the blocks along each axis.
    """
    meta = np.empty((0,) * array.ndim, array.dtype)
    sliced: da.Array = da.from_array(
        _Sliced(array), chunks=tuple(map(tuple, lengths)), name=False, asarray=False, meta=meta
    )
    return sliced
