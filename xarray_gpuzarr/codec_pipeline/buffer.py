"""`NDBuffer`: zarr-python's results in recycled memory.

A codec pipeline cannot choose this memory, since zarr-python allocates a result before it calls the pipeline.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from zarr.buffer import cpu
from zarr.registry import register_ndbuffer

from xarray_gpuzarr.process import host_memory

_NUMERIC_KINDS = "biufc"


class _EqualToZarrs(type):
    """Makes `NDBuffer` equal to zarr-python's class, since zarr-python compares the two classes for nested shards."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or (cls is NDBuffer and other is cpu.NDBuffer)

    def __hash__(cls) -> int:
        return hash(cpu.NDBuffer)


class NDBuffer(cpu.NDBuffer, metaclass=_EqualToZarrs):
    """zarr-python's arrays in host memory. Large ones reuse the memory of freed arrays of the same length.

    New memory costs page faults, which take a fifth to a third of the time of reading 100 MiB. zarr-python uses this
    class if its setting ``ndbuffer`` is ``"recycled.NDBuffer"``. A process keeps up to 128 MiB of freed memory. Memory
    is reused only when neither the array nor a view of it exists any more.
    """

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: npt.DTypeLike, order: Literal["C", "F"] = "C") -> Self:
        """Return an array whose elements are undefined; see `zarr.core.buffer.NDBuffer.empty`."""
        parsed_dtype = np.dtype(dtype)
        if parsed_dtype.kind not in _NUMERIC_KINDS:
            return super().empty(shape, dtype, order)
        if order == "F":
            return cls(host_memory.result_memory.empty(shape[::-1], parsed_dtype).T)
        return cls(host_memory.result_memory.empty(shape, parsed_dtype))


NDBuffer.__module__ = "xarray_gpuzarr"  # from which users import it
NDBUFFER_NAME = "recycled.NDBuffer"
"""Name of the class in zarr-python's settings. Programs such as anndata 0.12 assume CuPy if it contains "gpu"."""
register_ndbuffer(NDBuffer, NDBUFFER_NAME)
