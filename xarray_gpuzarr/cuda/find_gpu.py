"""Find a GPU: `find_gpu` by the option `device`, `native_device` by its number. Both start CUDA."""

from __future__ import annotations

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.errors import DeviceUnavailableError


def find_gpu(device: str = "cuda") -> DeviceApi:
    """Return a GPU: the current one of the calling thread for ``"cuda"``, the one with number 1 for ``"cuda:1"``."""
    number = device.partition(":")[2]
    return native_device(int(number) if number else None)


def native_device(index: int | None = None) -> DeviceApi:
    """Return the GPU number `index`, or the calling thread's current GPU if it is None.

    Raises
    ------
    DeviceUnavailableError
        If CuPy or RMM cannot be imported.
    CudaError
        If there is no usable GPU.
    """
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
