"""`allocate_pinned`: page-locked host memory, which CUDA copies from and to without a detour."""

from __future__ import annotations

import cupy
import numpy as np

from xarray_gpuzarr.cuda.api import Bytes
from xarray_gpuzarr.cuda.failures import FAILURES, cuda_error, is_out_of_memory
from xarray_gpuzarr.errors import DeviceMemoryError


class NativePinned:
    """Page-locked host memory, which is freed when neither `array` nor a view of it is left."""

    def __init__(self, nbytes: int) -> None:
        # Not through CuPy's pool, which rounds lengths up and never frees memory.
        pointer = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(nbytes), 0)
        self.array: Bytes = np.frombuffer(pointer, np.uint8, nbytes)


def allocate_pinned(nbytes: int) -> NativePinned:
    """Return page-locked host memory.

    Raises
    ------
    DeviceMemoryError
        If the system has too little memory.
    CudaError
        If the allocation fails for another reason.
    """
    call = f"cudaHostAlloc of {nbytes} bytes"
    try:
        return NativePinned(nbytes)
    except FAILURES as error:
        if not is_out_of_memory(error):
            raise cuda_error(call, error) from error
        raise DeviceMemoryError(
            "not enough pinned host memory",
            tried=call,
            found=str(error),
            do="lower XARRAY_GPUZARR_SLOT_NBYTES or XARRAY_GPUZARR_N_SLOTS, or use fewer threads per process",
        ) from error
