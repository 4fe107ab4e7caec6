"""A GPU for the tests of this folder; `helpers.gpu` says what happens where there is none."""

import importlib
from pathlib import Path

import pytest
from helpers import not_run

from xarray_gpuzarr.process.device_options import ResourceOptions


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not (not_run.without_gpu(config) and collection_path.name.startswith("test_")):
        return None
    not_run.count(config, "modules of tests/on_gpu: make test-gpu", 1)
    return True


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
