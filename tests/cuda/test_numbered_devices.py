"""``device="cuda:1"``: every door leads to that GPU, on any thread, and no other GPU is started for it."""

import asyncio
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from test_contexts import Second, devices, on_thread

from xarray_gpuzarr import batches, read_array
from xarray_gpuzarr.backend.block_reader import find_block_reader
from xarray_gpuzarr.cluster.preparation import preparation
from xarray_gpuzarr.cluster.worker import GpuZarrPlugin
from xarray_gpuzarr.cuda.find_gpu import find_gpu
from xarray_gpuzarr.decoders import choice
from xarray_gpuzarr.decoders.choice import decoder_for, resolve_device
from xarray_gpuzarr.decoders.cuda import devices as process_devices
from xarray_gpuzarr.errors import DeviceUnavailableError, OptionError
from xarray_gpuzarr.machine.diagnosis.rates import DeviceReads

VALUES = np.arange(800.0).reshape(40, 20)


@pytest.fixture
def gpus(fake, native, monkeypatch):
    """Two simulated GPUs, their contexts modelled."""
    found = {number: Second(2, index=number).place_on(fake, native) for number in (0, 1)}

    def native_device(index=None):
        return found[fake.contexts.device if index is None else index]

    monkeypatch.setattr(native, "native_device", native_device)
    monkeypatch.setattr(choice, "missing_for_cuda", list)
    monkeypatch.setattr(choice.driver, "n_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    decoder_for.cache_clear()
    yield found
    decoder_for.cache_clear()


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "s.zarr"
    encoding = {"a": {"chunks": (10, 10), "shards": (20, 20)}}
    xr.Dataset({"a": (("t", "x"), VALUES)}).to_zarr(target, consolidated=False, encoding=encoding)
    return target


def opened(path, device, **keywords):
    return xr.open_dataset(path, engine="gpuzarr", device=device, consolidated=False, **keywords)


def eagerly(path, device):
    return opened(path, device).load().a.data


def of_a_tree(path, device):
    return xr.open_datatree(path, engine="gpuzarr", device=device, consolidated=False)["a"].load().data


def of_an_array(path, device):
    return read_array(zarr.open_array(path / "a"), device=device)


def of_points(path, device):
    t, x = (("p",), np.repeat(np.arange(40), 20)), (("p",), np.tile(np.arange(20), 40))
    return opened(path, device).a.isel(t=xr.Variable(*t), x=xr.Variable(*x)).load().data.reshape(40, 20)


def of_one_block(path, device):
    with dask.config.set(scheduler="threads", num_workers=2):
        return opened(path, device, chunks=-1).a.compute().data


def of_a_pickled_task(path, device):
    reader = pickle.loads(pickle.dumps(find_block_reader(opened(path, device, chunks={}).a.data)))
    return on_thread(lambda: reader[:, :])


def of_a_pickled_decision(path, device):
    return pickle.loads(pickle.dumps(opened(path, device))).load().a.data


def of_doctor(path, device):
    return DeviceReads(find_gpu(device)).read(zarr.open_array(path / "a"))


DOORS = [
    eagerly, of_a_tree, of_an_array, of_points, of_one_block, of_a_pickled_task, of_a_pickled_decision, of_doctor,
]  # fmt: skip


def on(gpu, array):
    """Return the values of an array, which must be in the memory of a GPU."""
    assert array._device is gpu
    with gpu.activate():
        return array.get()


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_leads_to_the_gpu_that_is_named(gpus, fake, path, door, device):
    found = on_thread(lambda: on(gpus[device], door(path, f"cuda:{device}")), "reads")

    np.testing.assert_array_equal(found, VALUES)
    assert devices(fake) == {device}, fake.contexts.made


@pytest.mark.parametrize("device", [0, 1])
def test_an_event_loop_loads_to_the_gpu_and_for_the_stream_of_its_thread(gpus, fake, path, device):
    gpu, lazy = gpus[device], opened(path, "cuda")

    def read():
        fake.contexts.set_device(device)
        with gpu.activate(), gpu.stream() as stream:
            return asyncio.run(lazy.load_async()).a.data, stream

    found, stream = on_thread(read)

    np.testing.assert_array_equal(on(gpu, found), VALUES)
    assert found._memory._consumer is stream
    assert devices(fake) == {device}, fake.contexts.made


def test_batches_of_two_gpus_and_the_current_one(gpus, fake, path):
    names = {"a": "cuda:0", "b": "cuda", "c": "cuda:1"}
    ds = xr.merge([opened(path, device).rename(a=name) for name, device in names.items()])

    def read():
        return [
            (on(gpus[0], batch.a.data), on(gpus[0], batch.b.data), on(gpus[1], batch.c.data))
            for batch in batches(ds, {"t": 2}, 4, prefetch=3)
        ]

    fake.contexts.set_device(0)
    for found in zip(*read(), strict=True):
        np.testing.assert_array_equal(np.concatenate(found).reshape(40, 20), VALUES)


def test_all_decoders_of_a_gpu_keep_one_set_of_resources(gpus, fake, path):
    fake.contexts.set_device(1)

    eagerly(path, "cuda")
    taken = gpus[1].calls["stream"]
    eagerly(path, "cuda:1")

    assert gpus[1].calls["stream"] == taken > gpus[0].calls["stream"] == 0


@pytest.mark.parametrize(("before", "after"), [("cuda", "cuda:1"), ("cuda:1", "cuda"), ("cuda:1", "cuda:0")])
def test_a_fork_of_a_process_that_has_used_either_is_refused_both(gpus, path, monkeypatch, before, after):
    eagerly(path, before)
    monkeypatch.setattr(process_devices, "os", SimpleNamespace(getpid=lambda: os.getpid() + 1))

    with pytest.raises(DeviceUnavailableError, match="in a forked process"):
        eagerly(path, after)


def test_tasks_of_two_gpus_have_other_names(gpus, path):
    names = {opened(path, device, chunks={}).a.data.name for device in ("cuda", "cuda:0", "cuda:1", "host")}

    assert len(names) == 4


def test_a_worker_prepares_the_gpu_that_is_named(gpus, fake, native, monkeypatch):
    prepared = []
    for number, gpu in gpus.items():
        monkeypatch.setattr(gpu, "build", lambda _kernels, number=number: prepared.append(number))
        monkeypatch.setattr(gpu, "share_pool", lambda: lambda: None)
    plugin = GpuZarrPlugin(device="cuda:1")

    with ThreadPoolExecutor(2) as threads:
        device = on_thread(lambda: preparation.enter(**plugin.settings))
        try:
            preparation.prepare_threads(threads, 2, device)
        finally:
            on_thread(preparation.leave)

    assert (device, prepared) == ("cuda:1", [1])
    assert devices(fake) == {1}, fake.contexts.made


@pytest.mark.parametrize(
    ("given", "shown"),
    [({"a": "cuda:1", "b": "cuda:1"}, "cuda:1"), ({"a": "cuda:1", "b": "cuda:0"}, "cuda"), ({"a": "cuda:0"}, "cuda:0")],
)
def test_accessor_says_which_gpu(gpus, path, given, shown):
    ds = xr.merge([opened(path, device).rename(a=name) for name, device in given.items()])

    assert ds.gpuzarr.device == shown
    assert ds.gpuzarr.explain().rows[0].where == "cuda"
    assert ("read to the GPU, as CuPy" if shown == "cuda" else f"read to GPU {shown[-1]}, as CuPy") in repr(ds.gpuzarr)


# --- what is refused -------------------------------------------------------------------------------------------------

REFUSING = [opened, lambda path, device: opened(path, device, chunks={}), of_a_tree, of_an_array]


@pytest.mark.parametrize("door", REFUSING)
@pytest.mark.parametrize("device", ["cuda:x", "cuda:-1", "cuda:", "cuda:1.0", "cuda: 1", "cuda:01", "cuda:²", "host:0"])
def test_no_number_is_an_unknown_device(gpus, path, door, device):
    with pytest.raises(OptionError, match="unknown device") as caught:
        door(path, device)

    assert "'cuda:1'" in caught.value.found
    with pytest.raises(OptionError, match="unknown device"):
        GpuZarrPlugin(device=device)


@pytest.mark.parametrize("door", REFUSING)
def test_a_gpu_that_is_not_there_is_refused_at_open(gpus, fake, path, door):
    with pytest.raises(DeviceUnavailableError, match="device='cuda:2' cannot be used here") as caught:
        door(path, "cuda:2")

    assert caught.value.found == "2, the last of them 'cuda:1'"
    assert fake.contexts.made == []


@pytest.mark.parametrize(
    ("visible", "n_gpus", "n"),
    [
        (None, 8, 8), ("3", 8, 1), ("3,1", 8, 2), (" 3 , 1,-1,2", 8, 2), ("0,1,2", 2, 2), ("-1", 8, 0), ("", 8, 0),
        (None, None, None), ("GPU-1,GPU-2", None, 2),
    ],
)  # fmt: skip
def test_gpus_are_counted_as_cuda_counts_them(gpus, monkeypatch, visible, n_gpus, n):
    monkeypatch.setattr(choice.driver, "n_gpus", lambda: n_gpus)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    taken = [number for number in range(10) if may_be_used(f"cuda:{number}")]

    assert taken == list(range(10 if n is None else n))


def may_be_used(device):
    try:
        return resolve_device(device) == device
    except DeviceUnavailableError:
        return False


def test_it_never_falls_back_to_the_host(gpus, path, monkeypatch):
    lazy = opened(path, "cuda:1")
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: ["CuPy"])

    with pytest.raises(DeviceUnavailableError, match="device='cuda:1' cannot be used here") as caught:
        opened(path, "cuda:1")
    assert (caught.value.found, choice.INSTALL_FOR_CUDA in caught.value.do) == ("missing: CuPy", True)
    decoder_for.cache_clear()  # as in another process, which has unpacked a task
    with pytest.raises(DeviceUnavailableError, match="device='cuda:1' cannot be used here"):
        lazy.load()
