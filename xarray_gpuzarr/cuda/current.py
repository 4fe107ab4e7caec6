"""The GPUs of this process, once CuPy and RMM are needed: nothing is imported before."""

from __future__ import annotations

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.errors import DeviceUnavailableError


def native_device(index: int | None = None) -> DeviceApi:
    """Return the GPU of that number, the calling thread's current one if None."""
    try:
        from xarray_gpuzarr.cuda import device  # noqa: PLC0415  # imports CuPy and RMM
    except ImportError as error:
        raise DeviceUnavailableError(
            "CuPy or RMM cannot be imported",
            tried="import cupy, rmm",
            found=str(error),
            do="install or repair them: pip install 'xarray-gpuzarr[cuda13]' (or [cuda12] for a CUDA 12 driver)",
        ) from error
    return device.native_device(index)
