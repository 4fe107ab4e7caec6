"""What the NVIDIA driver says of itself and of its GPUs without CUDA being started: its version, and their names.

References
----------
NVML API reference: ``nvmlSystemGetDriverVersion``, ``nvmlDeviceGetName``; CUDA driver API, ``cuDriverGetVersion``.
"""

from __future__ import annotations

import ctypes


def cuda_version() -> int | None:
    """Return the newest CUDA that the driver has, such as 13000; None if there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    return None if cuda.cuDriverGetVersion(ctypes.byref(version)) else version.value


def driver_version() -> str | None:
    """Return the driver's version, such as ``"580.65.06"``; None where NVML cannot say."""
    return _text("nvmlSystemGetDriverVersion") or None


def gpu_names() -> list[str]:
    """Return what the driver calls the GPUs of this machine, whichever this process may use."""
    nvml, count = _nvml(), ctypes.c_uint()
    if nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    names = []
    for number in range(count.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)):
            names.append(_text("nvmlDeviceGetName", handle))
    return names


def _nvml() -> ctypes.CDLL | None:
    """Return the driver's library of facts, ready to be asked."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if nvml.nvmlInit_v2() else nvml


def _text(call: str, *handle: object) -> str:
    nvml, text = _nvml(), ctypes.create_string_buffer(96)
    if nvml is None or getattr(nvml, call)(*handle, text, ctypes.c_uint(len(text))):
        return ""
    return text.value.decode(errors="replace")
