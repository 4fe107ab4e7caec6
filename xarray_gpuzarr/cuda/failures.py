"""Translate errors of CUDA, CuPy and RMM into this package's errors.

The message names the call and CUDA's own error, and tells whether the process can go on. Statuses of nvCOMP are
translated in `nvcomp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps

from cupy.cuda.compiler import CompileException

from xarray_gpuzarr.cuda.driver import cuda_version, cuda_version_text
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, GpuZarrError

FAILURES = (RuntimeError, CompileException)
"""Classes of the errors that CuPy and RMM raise for the CUDA runtime, driver and compiler.

RMM's C++ errors arrive as plain `RuntimeError`. `MemoryError` is not among these classes, so `cuda_call` catches it as
well: CuPy's own pool raises it for lack of memory, and RMM's allocations raise it whatever the reason.
"""

# Errors after which "the process must be terminated and relaunched", by the documentation of `cudaError_t` in the CUDA
# runtime 13.x. The driver has the same names, except LAUNCH_FAILED.
_FATAL = frozenset({
    "illegaladdress", "misalignedaddress", "invalidaddressspace", "illegalinstruction", "invalidpc", "assert",
    "hardwarestackerror", "launchfailure", "launchfailed", "launchtimeout", "tensormemoryleak", "contained",
    "mpsclientterminated", "externaldevice",
})  # fmt: skip
# Errors that are raised if there is no GPU, or if the driver does not work.
_NO_DEVICE = frozenset({
    "insufficientdriver", "nodevice", "invaliddevice", "devicesunavailable", "devicenotlicensed", "stublibrary",
    "systemnotready", "systemdrivermismatch", "compatnotsupportedondevice", "initializationerror", "notinitialized",
})  # fmt: skip
_REMEDIES = {
    "systemnotready": "start NVIDIA's fabric manager (systemctl start nvidia-fabricmanager), then a new process",
    "systemdrivermismatch": "restart the machine: its driver was updated and is not loaded yet",
    "compatnotsupportedondevice": "take the folder of cuda-compat out of LD_LIBRARY_PATH: it is not for this GPU",
}
_NO_DEVICE_REMEDY = 'see if nvidia-smi lists a GPU, and start worker processes with "spawn" rather than fork'
_FREE_MEMORY = "free memory of the GPU, read less at once, or use fewer threads"
_CUDA_12, _CUDA_13 = 12000, 13000
"""Versions of CUDA as the driver encodes them."""
_OUT_OF_MEMORY = {"memoryallocation", "outofmemory"}
"""Names of the same error in the runtime and in the driver, as `_cuda_name` returns them."""


def cuda_call[**P, R](call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that makes one CUDA call, so that a failure is a `CudaError` or a `DeviceMemoryError`.

    `call` is the name of the call, for the message.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def translated(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except GpuZarrError:
                raise  # translated already; `CudaError` is a RuntimeError, and `DeviceMemoryError` a MemoryError
            except (*FAILURES, MemoryError) as error:
                raise cuda_error(call, error) from error

        return translated

    return decorate


def cuda_error(call: str, error: Exception) -> CudaError | DeviceMemoryError:
    """Return the error to raise in place of an error of CuPy or RMM.

    Any call may fail for lack of device memory, which is a `DeviceMemoryError`.
    """
    name = _cuda_name(error)
    if is_out_of_memory(error):
        return DeviceMemoryError("not enough device memory", tried=call, found=str(error), do=_FREE_MEMORY)
    if name in _FATAL:
        state = "this process can no longer use the GPU"
        do = (
            "restart this process (a dask worker: client.restart()); work enqueued earlier may be the cause: "
            'set CUDA_LAUNCH_BLOCKING=1 to find it; device="host" reads without the GPU'
        )
    elif name in _NO_DEVICE:
        state = "no usable GPU"
        remedy = _driver_remedy() if name == "insufficientdriver" else _REMEDIES.get(name, _NO_DEVICE_REMEDY)
        do = f'{remedy}; device="host" reads without the GPU'
    else:
        state = "the process can go on"
        do = 'read again, or with device="host"; if it fails again, report these lines'
    return CudaError("a CUDA call failed", tried=call, found=f"{error}; {state}", do=do)


def _driver_remedy() -> str:
    """Return advice about a driver that is missing, or older than the installed packages need."""
    version = cuda_version()
    if not version:
        return "there is no NVIDIA driver here, or it cannot be loaded: install one"
    supported = f"the driver has CUDA {cuda_version_text(version)}"
    if _CUDA_12 <= version < _CUDA_13:
        install = "pip install 'xarray-gpuzarr[cuda12]' instead of the packages for CUDA 13"
        return f"{supported}: {install}, or update the driver"
    return f"{supported}, older than the installed packages need: update the driver"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed for lack of memory, rather than because the device does not work.

    A MemoryError may have another reason, see `FAILURES`. RMM then names the CUDA error in the message.
    """
    name = _cuda_name(error)
    return name in _OUT_OF_MEMORY or (name is None and isinstance(error, MemoryError))


def _cuda_name(error: Exception) -> str | None:
    """Return the name of the CUDA error in a message, in lower case, without prefix and underscores; None without one.

    So ``cudaErrorInvalidDevice``, of the runtime, and ``CUDA_ERROR_INVALID_DEVICE``, of the driver, have the same name.
    """
    match = re.search(r"\b(?:cudaError|CUDA_ERROR_)(\w+)", str(error))
    return match[1].replace("_", "").lower() if match else None
