"""Batches on a GPU: one array for each variable and read, chunks decoded once, ordered on the consumer's stream."""

import gc
import threading

import numpy as np
import pytest
import xarray as xr
from helpers.simulated.array import SimulatedArray
from helpers.simulated.in_use import in_use
from zarr.storage import MemoryStore

from xarray_gpuzarr import batches
from xarray_gpuzarr.process.counters import counters

SHAPE = (20, 6, 8)


@pytest.fixture(scope="module")
def stores():
    found = []
    for first in (0, 20):
        store, data = MemoryStore(), np.arange(960.0).reshape(SHAPE) + 1000 * first
        ds = xr.Dataset({"a": (("time", "y", "x"), data)}, coords={"time": np.arange(first, first + 20)})
        ds.to_zarr(store, encoding={"a": {"chunks": (2, 3, 8), "shards": (4, 6, 8)}}, consolidated=False)
        found.append(store)
    return found


@pytest.fixture
def gpu(monkeypatch):
    device = in_use(monkeypatch)
    yield device
    gc.collect()
    device.api.check()


def opened(store, **keywords):
    return xr.open_dataset(store, engine="gpuzarr", device="cuda", consolidated=False, **keywords)


def test_a_read_is_one_array_on_the_device_and_decodes_each_chunk_once(gpu, stores):
    loader = batches(opened(stores[0]), {"time": 3, "x": 4}, 5, stride={"time": 1, "x": 4}, shuffle=True, window="1 GB")
    before = counters.snapshot()

    found = list(loader)

    done = counters.snapshot() - before
    assert done.decoded_nbytes == 960 * 8
    assert done.n_reads == 1
    assert len(found) == 8
    assert all(isinstance(batch.a.data, SimulatedArray) for batch in found)
    assert len({id(batch.a.data._memory) for batch in found}) == 1
    for batch in found:
        times, values = batch.time.values, batch.a.data.get()
        assert (values[:, :, 0, 0] // 48 == times).all()


@pytest.mark.parametrize(
    "selection", [{}, {"time": slice(None, None, -1)}, {"x": slice(None, None, -2)}, {"y": [4, 0, 5, 5, 1]}]
)
def test_samples_of_two_stores_are_joined_on_the_device(gpu, stores, selection):
    ds = xr.concat([opened(store, chunks={}) for store in stores], dim="time").isel(selection)
    expected = np.concatenate([np.arange(960.0).reshape(SHAPE) + 1000 * first for first in (0, 20)])
    expected = xr.DataArray(expected, dims=("time", "y", "x")).isel(selection).values

    loader = batches(ds, {"time": 4}, 3, stride={"time": 1})

    assert [row.way for row in loader.explain().rows if row.variable == "a"] == ["one plan"]
    found = [sample for batch in loader for sample in batch.a.data.get()]
    assert np.array_equal(found, [expected[at : at + 4] for at in range(len(expected) - 3)])


def test_memory_belongs_to_the_stream_on_which_the_epoch_began(gpu, stores, monkeypatch):
    stream, seen = gpu.api.stream(), []
    consumer_stream = gpu.api.consumer_stream

    def noting():
        found = consumer_stream()
        seen.append((threading.current_thread().name[:13], found.handle))
        return found

    monkeypatch.setattr(gpu.api, "consumer_stream", noting)
    with stream:
        total = sum(float(batch.a.data.get().sum()) for batch in batches(opened(stores[0]), {"time": 2}, 3))

    assert total == np.arange(960.0).sum()
    assert {handle for name, handle in seen if name == "gpuzarr_ahead"} == {stream.handle}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stream_in_use_stays_in_use(gpu, stores, prefetch):
    mine = gpu.api.stream().use()

    found = []
    for batch in batches(opened(stores[0]), {"time": 2}, 3, prefetch=prefetch):
        assert gpu.api.consumer_stream() is mine
        found.append(batch.a.data.get())

    assert np.array_equal(np.concatenate(found).ravel(), np.arange(960.0))


def test_variables_in_memory_of_the_device_are_copied_there(gpu, stores):
    ds = opened(stores[0]).load()

    (batch, *_) = batches(ds, {"time": 2}, 3)

    assert isinstance(batch.a.data, SimulatedArray)
    assert np.array_equal(batch.a.data.get(), np.arange(288.0).reshape(3, 2, 6, 8))


def test_leaving_early_gives_the_memory_back(gpu, stores):
    ds = opened(stores[0])
    for batch in batches(ds, {"time": 2}, 3, prefetch=3):
        assert batch.sizes["sample"] == 3
        break
    del batch
    gc.collect()

    for thread in threading.enumerate():
        if thread.name.startswith("gpuzarr_ahead"):
            thread.join(20)
            assert not thread.is_alive()
