"""A cluster of host workers: names, merged and pushed-down reads, threads, memory, counters, and registering."""

import asyncio
import subprocess
import sys
import threading

import cloudpickle
import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client, wait
from helpers.clusters import SECONDS, eventually, local_cluster
from helpers.compare import assert_same_dataset
from helpers.data.datasets import COMMON_WORK, open_ours, open_stock
from zarr.storage import LocalStore

import xarray_gpuzarr
from xarray_gpuzarr import DeviceUnavailableError, GpuZarrPlugin, OptionError, register, stats
from xarray_gpuzarr.process.threads import thread_budget

pytestmark = [pytest.mark.timeout(90), pytest.mark.filterwarnings("ignore:Consolidated")]

N_WORKERS = 2


@pytest.fixture(scope="module")
def client():
    """Two processes of one thread each."""
    with local_cluster(N_WORKERS) as client:
        yield client


@pytest.fixture
def ds(path):
    return open_ours(path, chunks={})


def read_by(client, call):
    before = stats(client)
    call()
    return (stats(client) - before).total


def helping_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpuzarr")]


def has_plugin(dask_worker):
    return GpuZarrPlugin.name in dask_worker.plugins


@pytest.mark.parametrize("work", COMMON_WORK)
def test_common_work(client, ds, path, work):
    xr.testing.assert_allclose(
        COMMON_WORK[work](ds).compute(), COMMON_WORK[work](open_stock(path)).compute(), rtol=1e-5
    )


def test_dataset_is_that_of_the_zarr_engine(client, ds, path):
    assert_same_dataset(ds.compute(), open_stock(path).compute())


def test_workers_of_one_process(path):
    with local_cluster(2, 2, processes=False) as client:
        ds = open_ours(path, chunks={})
        assert_same_dataset(ds.compute(), open_stock(path).compute())
        before = stats(client)
        ds["count"].drop_vars("level").sum().compute()
        counted = stats(client) - before
        assert [row.workers for row in counted.rows] == [("0", "1")]
        assert counted.total.n_shards == 3
        assert set(client.run(thread_budget).values()) == {4}


def test_dashboards_show_variables(client, ds):
    wait(ds[["u10", "mask"]].persist(), timeout=SECONDS)

    shown = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes))

    assert {"gpuzarr_u10", "gpuzarr-mask"} <= shown


def test_two_opens_are_read_once(client, path, ds):
    first = ds["u10"].persist()
    wait(first, timeout=SECONDS)

    counts = read_by(client, lambda: wait(open_ours(path, chunks={})["u10"].persist(), timeout=SECONDS))

    assert counts.n_reads == 0
    del first


def test_each_shard_is_read_once_for_several_results(client, ds):
    u10 = ds.u10.drop_vars("height")

    counts = read_by(client, lambda: dask.compute(u10.mean(), u10.max(), u10.std("time")))

    assert (counts.n_reads, counts.n_shards) == (3, 3)


def test_workers_of_one_thread_start_no_others(client, tmp_path):
    data = np.arange(1_000_000.0)
    xr.Dataset({"x": ("d", data)}).to_zarr(
        tmp_path / "s.zarr", encoding={"x": {"chunks": (10_000,), "shards": (500_000,)}}
    )

    total = open_ours(tmp_path / "s.zarr", chunks={})["x"].sum().compute()

    assert total == data.sum()
    assert list(client.run(helping_threads).values()) == [[]] * N_WORKERS
    assert set(client.run(thread_budget).values()) == {1}


def test_graphs_hold_no_handles_and_grow_by_little(tmp_path):
    sizes = {}
    for n_shards in (10, 1010):
        group = zarr.create_group(LocalStore(tmp_path / str(n_shards)))
        group.create_array("v", shape=(n_shards,), chunks=(1,), shards=(1,), dtype="f4", dimension_names=["d"])
        array = open_ours(tmp_path / str(n_shards), chunks={}, consolidated=False)["v"]
        sizes[n_shards] = len(cloudpickle.dumps(array.data.__dask_graph__()))

    assert sizes[1010] < 12_000
    assert (sizes[1010] - sizes[10]) / 1000 < 10


def test_registering_without_a_gpu_changes_nothing(client, ds):
    assert register(client) is None

    assert set(client.run(has_plugin).values()) == {True}
    assert ds.u10.isnull().sum().compute() >= 0
    client.unregister_worker_plugin(GpuZarrPlugin.name)
    assert set(client.run(has_plugin).values()) == {False}


def test_the_current_client_is_registered_with(client):
    assert register() is None

    assert set(client.run(has_plugin).values()) == {True}
    client.unregister_worker_plugin(GpuZarrPlugin.name)


def test_registering_without_any_client_says_so():
    code = "import xarray_gpuzarr; xarray_gpuzarr.register()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "OptionError: there is no cluster to prepare\n  tried: register() with the current client" in done.stderr
    assert "  do:    create one first, client = distributed.Client(...)" in done.stderr
    assert "During handling" not in done.stderr


@pytest.mark.parametrize("asked", [register, stats])
def test_what_is_no_client_is_refused(asked):
    with pytest.raises(OptionError, match=rf"{asked.__name__} takes a client\n.*of an instance of builtins.int"):
        asked(3)


def test_a_worker_without_a_gpu_is_refused_and_named(client):
    with pytest.raises(DeviceUnavailableError) as caught:
        register(client, device="cuda")

    assert "on worker 0 at tcp://127.0.0.1" in caught.value.tried or "on worker 1 at tcp" in caught.value.tried
    assert "libcuda" in caught.value.found
    logs = [line for log in client.get_worker_logs().values() for _, line in log]
    assert [line for line in logs if "Traceback" in line] == []
    assert eventually(lambda: set(client.run(has_plugin).values()), {False}) == {False}


def test_settings_stay_if_a_worker_cannot_use_the_next_device(client):
    register(client, device="host")

    with pytest.raises(DeviceUnavailableError):
        register(client, device="cuda")

    assert set(client.run(has_plugin).values()) == {True}
    client.unregister_worker_plugin(GpuZarrPlugin.name)


def test_registering_by_hand_is_the_same(client):
    client.register_plugin(GpuZarrPlugin(device="host"))
    register(client, device="host")

    assert set(client.run(has_plugin).values()) == {True}
    client.unregister_worker_plugin(GpuZarrPlugin.name)


def test_asynchronous_clients(client, path):
    async def work():
        async with Client(client.scheduler.address, asynchronous=True) as mine:
            before = await stats(mine)
            await register(mine)
            total = open_ours(path, chunks={})["count"].sum()
            value = await mine.compute(total.data)
            await mine.unregister_worker_plugin(GpuZarrPlugin.name)
            return value, (await stats(mine) - before).total.n_reads

    value, n_reads = asyncio.run(work())

    assert value == open_stock(path)["count"].sum()
    assert n_reads == 3


def test_statistics_have_a_row_for_each_worker(client, ds):
    before = stats(client)
    ds.u10.sum().compute()

    found = stats(client)

    assert [row.workers for row in found.rows] == [("0",), ("1",)]
    assert (found - before).total.n_shards == 3
    assert client.run(xarray_gpuzarr.stats)[next(iter(client.nthreads()))].rows[0].workers == ()


def test_a_reduction_larger_than_memory(tmp_path):
    """One gigabyte goes through a worker that may have 400 MB, itself included."""
    tile = np.tile(np.arange(1000, dtype="i2"), 4096)
    shape = (32, len(tile))
    group = zarr.create_group(LocalStore(tmp_path))
    array = group.create_array(
        "v", shape=shape, chunks=(1, len(tile) // 8), shards=(1, len(tile)), dtype="i2", dimension_names=["t", "x"]
    )
    array.attrs.update(scale_factor=0.5, add_offset=1.0)  # so that it becomes float64
    for row in range(shape[0]):
        array[row] = tile

    with local_cluster(1, 1, memory_limit="400MB", as_users_do=True) as client:
        value = open_ours(tmp_path, chunks={}, consolidated=False)["v"].mean().compute()
        assert stats(client).total.decoded_nbytes * 4 > 1_000_000_000

    assert value == 999 / 4 + 1
