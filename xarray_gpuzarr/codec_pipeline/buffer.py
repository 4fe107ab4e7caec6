"""`NDBuffer`: zarr-python's results in recycled memory. zarr-python allocates them before it calls a pipeline."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from zarr.buffer import cpu
from zarr.registry import register_ndbuffer

from xarray_gpuzarr.process import host_memory

_NUMERIC = "biufc"


class _EqualToZarrs(type):
    """Makes the class equal to zarr-python's, which compares it with its own class in nested shards."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or (cls is NDBuffer and other is cpu.NDBuffer)

    def __hash__(cls) -> int:
        return hash(cpu.NDBuffer)


class NDBuffer(cpu.NDBuffer, metaclass=_EqualToZarrs):
    """zarr-python's arrays in host memory; large ones reuse the memory of freed arrays of the same length.

    Fresh memory costs page faults at every read, a fifth to a third of what reading a hundred MiB takes. Used where
    zarr-python's setting ``ndbuffer`` is ``"recycled.NDBuffer"``; up to 128 MiB are kept by a process. An array keeps
    its memory for as long as it or a view of it lives.
    """

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: npt.DTypeLike, order: Literal["C", "F"] = "C") -> Self:
        """Make an array, contents undefined; see `zarr.core.buffer.NDBuffer.empty`."""
        numeric = np.dtype(dtype)
        if numeric.kind not in _NUMERIC:
            return super().empty(shape, dtype, order)
        if order == "F":
            return cls(host_memory.result_memory.empty(shape[::-1], numeric).T)
        return cls(host_memory.result_memory.empty(shape, numeric))


NDBuffer.__module__ = "xarray_gpuzarr"
SETTING = "recycled.NDBuffer"
"""Its name in zarr-python's settings. Programs such as anndata 0.12 assume CuPy if the name contains "gpu"."""
register_ndbuffer(NDBuffer, SETTING)
