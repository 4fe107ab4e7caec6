"""A GPU for the tests of this folder; `helpers.gpu` says what happens where there is none."""

import importlib

import pytest

from xarray_gpuzarr.process.device_options import ResourceOptions


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
