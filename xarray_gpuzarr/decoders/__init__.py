"""Decoders: two siblings behind one protocol. `decoder_for` is the one place that chooses."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from functools import cache
from typing import get_args

from xarray_gpuzarr.decoders.base import Decoder, Device, Route
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.errors import DeviceUnavailableError, OptionError

__all__ = ["Decoder", "Device", "Route", "decoder_for", "missing_for_cuda", "resolve_device"]

_CUDA_NEEDS = {
    "cupy": "CuPy",
    "rmm": "RMM",
    "nvidia.libnvcomp": "nvCOMP (nvidia-libnvcomp)",
}


def missing_for_cuda() -> list[str]:
    """Return what ``device="cuda"`` needs and this machine lacks; empty if nothing.

    Imports no GPU package and does not start CUDA, which a process that forks must not: looks for the driver library,
    asks NVML for GPUs, and looks for installed modules.
    """
    missing = [] if _has_driver() else ["the NVIDIA driver (libcuda)"]
    missing += [] if missing or _sees_gpu() else ["a GPU that this process may use"]
    return missing + [label for module, label in _CUDA_NEEDS.items() if not _installed(module)]


@cache
def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _sees_gpu() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1"}:
        return False
    count = _n_gpus()
    return count is None or count > 0


@cache
def _n_gpus() -> int | None:
    """Return how many GPUs the driver knows; None where NVML cannot say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    nvml.nvmlShutdown()
    return count.value


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name is absent
        return False


def resolve_device(device: str) -> Device:
    """Turn ``"auto"`` into the device that reads will use here.

    Raises
    ------
    OptionError
        `device` is none of ``"auto"``, ``"cuda"``, ``"host"``.
    DeviceUnavailableError
        ``"cuda"`` was asked for and something that it needs is missing.
    """
    if device not in ("auto", *get_args(Device)):
        raise OptionError(
            "unknown device",
            tried=f"device={device!r}",
            found="the known ones are 'auto', 'cuda', 'host'",
            do="leave device out, or give one of them",
        )
    if device == "host":
        return "host"
    missing = missing_for_cuda()
    if not missing:
        return "cuda"
    if device == "cuda":
        raise DeviceUnavailableError(
            "device='cuda' cannot be used here",
            tried="the NVIDIA driver, CuPy, RMM and nvCOMP",
            found="missing: " + ", ".join(missing),
            do="pip install 'xarray-gpuzarr[cuda13]' (or cuda12, as the driver has it), or read on the host with "
            "device='auto' or device='host'",
        )
    return "host"


@cache
def decoder_for(device: str) -> Decoder:
    """Return the decoder of a device, one per process.

    Parameters
    ----------
    device : "auto", "cuda" or "host"

    Raises
    ------
    OptionError, DeviceUnavailableError
        See `resolve_device`.
    """
    if resolve_device(device) == "cuda":
        module = importlib.import_module("xarray_gpuzarr.decoders.cuda")
        decoder: Decoder = module.CudaDecoder()
        return decoder
    return HostDecoder()
