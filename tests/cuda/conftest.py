"""`NativeDevice` on fakes of CuPy and RMM, and a compiler for kernels on the host."""

import importlib
import sys
from unittest.mock import patch

import pytest
from helpers.kernels.on_host import require_compiler
from helpers.simulated.fake_cuda import FakeCuda

from xarray_gpuzarr import cuda
from xarray_gpuzarr.backend import datasets  # noqa: F401  # else forgotten with the fakes by the test that imports it
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force

ROOMS = (
    "device",
    "compiled_kernels",
    "native_stream",
    "pinned_memory",
    "rmm_memory",
    "private_pool",
    "contexts",
    "failures",
)


@pytest.fixture
def fake(monkeypatch):
    """The two modules that CuPy and RMM are replaced by; the rooms that import them are imported anew."""
    fake = FakeCuda()
    monkeypatch.setattr(in_force, "options", ResourceOptions(little="device"))
    with patch.dict(sys.modules, {**fake.modules(), "nvtx": None}):
        for room in ROOMS:
            sys.modules.pop(f"xarray_gpuzarr.cuda.{room}", None)
        yield fake
    for room in ROOMS:
        vars(cuda).pop(room, None)


@pytest.fixture
def native(fake, monkeypatch):
    """The module of `NativeDevice`, on the fakes."""
    module = importlib.import_module("xarray_gpuzarr.cuda.device")
    kernels = importlib.import_module("xarray_gpuzarr.cuda.compiled_kernels")
    monkeypatch.setattr(kernels, "kernel_source", lambda kernel: f"source of {kernel}")
    return module


@pytest.fixture
def compiler():
    require_compiler()
