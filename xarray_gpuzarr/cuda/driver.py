"""Query the NVIDIA driver for its version, and for the number and names of its GPUs, without starting CUDA.

Without a driver, the functions say so and raise no error.

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

_TEXT_NBYTES = 96
"""Longest text of the calls that are used here, in bytes: NVML_DEVICE_NAME_V2_BUFFER_SIZE of ``nvml.h``."""


@cache
def has_driver() -> bool:
    """Whether a driver is installed."""
    return _library("libcuda.so.1") is not None


@cache
def n_gpus() -> int | None:
    """Return the number of GPUs that the driver knows, usable by this process or not; None if NVML does not tell."""
    with _nvml() as nvml:
        return None if nvml is None else _count(nvml)


def cuda_version() -> int | None:
    """Return the newest version of CUDA that the driver supports, such as 13000; None if there is no driver."""
    cuda = _library("libcuda.so.1")
    version = ctypes.c_int()
    if cuda is None or cuda.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value


def cuda_version_text(version: int) -> str:
    """Return a version of CUDA, as the driver and the runtime encode it, as text: ``"12.8"`` for 12080."""
    return f"{version // 1000}.{version % 1000 // 10}"


def driver_version() -> str | None:
    """Return the driver's version, such as ``"580.65.06"``; None if NVML does not tell."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        return _text(nvml, "nvmlSystemGetDriverVersion") or None


def gpu_names() -> list[str]:
    """Return the names of the GPUs of this machine, usable by this process or not; empty if NVML does not tell."""
    names = []
    with _nvml() as nvml:
        if nvml is None:
            return []
        for number in range(_count(nvml) or 0):
            handle = ctypes.c_void_p()
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle))
            if not failed:
                names.append(_text(nvml, "nvmlDeviceGetName", handle))
    return names


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL | None]:
    """Initialize NVML for a ``with`` block; yields None if it is not installed or does not start."""
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _count(nvml: ctypes.CDLL) -> int | None:
    """Return the number of GPUs; None if the call fails."""
    count = ctypes.c_uint()
    return None if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value


def _text(nvml: ctypes.CDLL, call: str, *handle: object) -> str:
    """Return the text that a call of NVML writes; empty if the call fails."""
    text = ctypes.create_string_buffer(_TEXT_NBYTES)
    failed = getattr(nvml, call)(*handle, text, ctypes.c_uint(len(text)))
    return "" if failed else text.value.decode(errors="replace")
