"""What the NVIDIA driver says of itself without CUDA being started: through NVML, its management library."""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def driver_version() -> str | None:
    """Return the driver's version, such as ``"580.65.06"``; None where NVML cannot say.

    References
    ----------
    NVML API reference, ``nvmlSystemGetDriverVersion``.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(80)
    if nvml.nvmlInit_v2():
        return None
    code = nvml.nvmlSystemGetDriverVersion(text, len(text))
    nvml.nvmlShutdown()
    return None if code else text.value.decode()
