"""PyTorch on a stream of its own, which CuPy knows nothing of: a stand-in for it works on the simulated GPU."""

import gc
import importlib
import sys
import weakref
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import xarray as xr
from helpers.interrupts import interrupt
from helpers.simulated.gpu import SimulatedGpu
from helpers.simulated.in_use import use
from helpers.simulated.streams import touch_of
from zarr.storage import MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr import batches
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.training.ahead import Ahead

MODULE = "xarray_gpuzarr.torch"
VALUES = np.arange(48 * 64.0).reshape(48, 64)


class Torch:
    """`torch` as far as batches need it, with a current stream for each device that CuPy does not see."""

    def __init__(self):
        self.streams = {}
        self.has_cuda = True

    @contextmanager
    def stream(self, stream, device=0):
        self.streams[device] = SimpleNamespace(cuda_stream=stream.handle)
        yield
        del self.streams[device]

    def modules(self):
        torch, utils, data = (ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data"))
        data.IterableDataset = type("IterableDataset", (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        data.get_worker_info = lambda: None
        torch.utils, utils.data = utils, data
        null = SimpleNamespace(cuda_stream=0)
        torch.cuda = SimpleNamespace(
            is_available=lambda: self.has_cuda, current_stream=lambda device: self.streams.get(device, null)
        )
        return {"torch": torch, "torch.utils": utils, "torch.utils.data": data}


@pytest.fixture
def torch(monkeypatch):
    fake = Torch()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    had = vars(xarray_gpuzarr).get("torch")
    fake.batches = importlib.import_module(MODULE).IterableBatches
    yield fake
    vars(xarray_gpuzarr).pop("torch")
    if had is not None:
        xarray_gpuzarr.torch = had


@pytest.fixture(params=range(8))
def gpu(request, monkeypatch):
    device = SimulatedGpu(request.param)
    use(device, monkeypatch)
    monkeypatch.setattr(in_force, "options", in_force.get())
    yield device
    gc.collect()
    device.api.check()


@pytest.fixture
def ds():
    store = MemoryStore()
    xr.Dataset({"a": (("time", "x"), VALUES)}).to_zarr(store, encoding={"a": {"chunks": (4, 64)}}, consolidated=False)
    return xr.open_dataset(store, engine="gpuzarr", device="cuda", consolidated=False)


def work_on(gpu, stream, array, into):
    """Let a stream read an array late: only once `stream` comes to it."""
    elements = array.elements
    gpu.api._scheduler.give(stream, "training", lambda: np.copyto(into, elements), touch_of(elements, "read"))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_kept_for_the_stream_that_pytorch_works_on(gpu, ds, torch, prefetch):
    side, seen = gpu.api.stream(), []
    cupys_stream = gpu.api.current_stream()
    loader = torch.batches(batches(ds, {"time": 2}, 2, prefetch=prefetch), lambda batch: batch.a.data)

    with torch.stream(side):
        for array in loader:
            seen.append(np.empty(array.shape))
            work_on(gpu, side, array, seen[-1])
            del array  # the next reads may take its memory

    gpu.api.synchronize(side)
    assert np.array_equal(np.concatenate(seen).reshape(VALUES.shape), VALUES)
    assert gpu.api.current_stream() == cupys_stream


def test_batches_are_kept_for_cupys_stream_where_pytorch_has_no_cuda(gpu, ds, torch):
    torch.has_cuda = False
    side = gpu.api.stream()
    loader = torch.batches(batches(ds, {"time": 2}, 2), lambda batch: batch.a.data.get())

    with side:
        seen = list(loader)

    assert np.array_equal(np.concatenate(seen).reshape(VALUES.shape), VALUES)


def test_an_epoch_ends_if_converting_a_batch_is_interrupted(torch):
    store = MemoryStore()
    xr.Dataset({"a": (("time", "x"), VALUES)}).to_zarr(store, consolidated=False)
    dataset = xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False)
    iterator = iter(torch.batches(batches(dataset, {"time": 2}, 2, prefetch=2), interrupt))

    with pytest.raises(KeyboardInterrupt):
        next(iterator)

    assert iterator._iterator._reads.closed


def test_an_iterator_that_is_forgotten_does_not_wait_for_its_reads(torch, monkeypatch):
    """A garbage collection may run on a thread that holds a lock that these reads need."""
    close = MagicMock()
    monkeypatch.setattr(Ahead, "close", close)
    store = MemoryStore()
    xr.Dataset({"a": (("time", "x"), VALUES)}).to_zarr(store, consolidated=False)
    dataset = xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False)
    iterator = iter(torch.batches(batches(dataset, {"time": 2}, 2, prefetch=2), lambda batch: batch.a.data))
    next(iterator)
    cycle, forgotten = [iterator], weakref.ref(iterator)
    cycle.append(cycle)
    del iterator, cycle
    gc.collect()
    assert forgotten() is None
    close.assert_not_called()
