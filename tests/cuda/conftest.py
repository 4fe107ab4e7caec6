"""Tests marked `gpu` are skipped where there is no GPU; ``XARRAY_GPUZARR_REQUIRE_GPU=1`` makes that a failure."""

import functools
import importlib
import os

import pytest

from xarray_gpuzarr.cuda.options import ResourceOptions


@functools.cache
def why_no_gpu() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
        importlib.import_module("rmm")
        n_devices = runtime.getDeviceCount()
    except ImportError as error:
        return str(error)
    except RuntimeError as error:  # CuPy's own class is not importable without CuPy
        return str(error)
    return None if n_devices else "CUDA sees no GPU"


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is None or (why := why_no_gpu()) is None:
        return
    missing = pytest.fail if os.environ.get("XARRAY_GPUZARR_REQUIRE_GPU") == "1" else pytest.skip
    missing(f"no GPU: {why}")


@pytest.fixture
def native():
    """The module under test, which needs CuPy and RMM."""
    return importlib.import_module("xarray_gpuzarr.cuda.device")


@pytest.fixture
def device(native):
    """The first GPU, current for this thread."""
    device = native.NativeDevice(0, ResourceOptions())
    with device.activate():
        yield device


@pytest.fixture
def stream(device):
    """A stream that has done all its work when the test ends."""
    stream = device.stream()
    yield stream
    device.synchronize(stream)
