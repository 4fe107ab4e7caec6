"""Ask the NVIDIA driver for its version and for its GPUs, their names and number, without starting CUDA.

References
----------
NVML API reference: ``nvmlSystemGetDriverVersion``, ``nvmlDeviceGetCount_v2``, ``nvmlDeviceGetName``; CUDA driver API,
``cuDriverGetVersion``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def has_driver() -> bool:
    """Say whether there is a driver."""
    return _library("libcuda.so.1") is not None


@cache
def n_gpus() -> int | None:
    """Return how many GPUs the driver knows, whichever this process may use; None where NVML cannot say."""
    with _nvml() as nvml:
        return None if nvml is None else _count(nvml)


def cuda_version() -> int | None:
    """Return the newest CUDA that the driver has, such as 13000; None if there is no driver."""
    cuda, version = _library("libcuda.so.1"), ctypes.c_int()
    return None if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)) else version.value


def driver_version() -> str | None:
    """Return the driver's version, such as ``"580.65.06"``; None where NVML cannot say."""
    with _nvml() as nvml:
        return None if nvml is None else _text(nvml, "nvmlSystemGetDriverVersion") or None


def gpu_names() -> list[str]:
    """Return what the driver calls the GPUs of this machine, whichever this process may use."""
    names = []
    with _nvml() as nvml:
        for number in range(0 if nvml is None else _count(nvml) or 0):
            handle = ctypes.c_void_p()
            if nvml is not None and not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)):
                names.append(_text(nvml, "nvmlDeviceGetName", handle))
    return names


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    """Start the driver's library of facts for a ``with`` block; None where there is none."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int | None:
    count = ctypes.c_uint()
    return None if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value


def _text(nvml: ctypes.CDLL, call: str, *handle: object) -> str:
    text = ctypes.create_string_buffer(96)
    failed = getattr(nvml, call)(*handle, text, ctypes.c_uint(len(text)))
    return "" if failed else text.value.decode(errors="replace")
