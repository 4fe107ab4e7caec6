"""`cut_into_blocks`: a variable as a dask array, without a copy of its NumPy array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from xarray import Variable

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory


class _NotCopied:
    """Wraps a NumPy array, since `from_array` would copy a bare one."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.ndim = array.ndim

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        block: npt.NDArray[Any] = self._array[key]
        return block


def _dask_view(array: npt.NDArray[Any], block_lengths: Sequence[Sequence[int]]) -> da.Array:
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
        _NotCopied(array), chunks=tuple(map(tuple, block_lengths)), name=False, asarray=False, meta=meta
    )
    return sliced


def cut_into_blocks(variable: Variable, lengths: Sequence[tuple[int, ...]]) -> Variable:
    """Return a variable as a dask array with blocks of these lengths. A NumPy array is not copied."""
    array = array_in_memory(variable)
    if isinstance(array, np.ndarray):
        return Variable(variable.dims, _dask_view(array, lengths), variable.attrs, variable.encoding)
    # An array of another library. With name=False, dask makes a random name, rather than one from a hash of the values.
    return variable.chunk(dict(zip(variable.dims, lengths, strict=True)), name=False)  # type: ignore[arg-type]
