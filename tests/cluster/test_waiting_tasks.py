"""Tasks that wait for a server give the slot of their worker to others."""

import threading
import time

import numpy as np
import pytest
import zarr
from distributed import get_worker, rejoin, secede
from helpers.clusters import local_cluster
from helpers.data.datasets import open_ours
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_s3
from zarr.storage import LocalStore

from xarray_gpuzarr import configure, stats

pytestmark = [pytest.mark.timeout(90), pytest.mark.filterwarnings("ignore")]

N_SHARDS = 16
DATA = np.random.default_rng(0).integers(-999, 999, (2 * N_SHARDS, 6, 8), "i4")
LATENCY_S = 0.1


@pytest.fixture(scope="module")
def client():
    """One process of one thread."""
    with local_cluster(1) as client:
        yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    group = zarr.open_group(LocalStore(folder / "bucket" / "s.zarr"))
    dims = ("time", "lat", "lon")
    group.create_array("maps", data=DATA, chunks=(1, 6, 8), shards=(2, 6, 8), dimension_names=dims)
    group.create_array("objects", data=DATA, chunks=(1, 6, 8), dimension_names=dims)
    with RangeServer(folder, LATENCY_S) as server:
        yield server


@pytest.fixture
def ds(server):
    ds = open_ours(obstore_s3(server.url, "bucket/s.zarr"), chunks={"time": 2})
    server.requests()
    server.most_at_once()
    return ds


def n_threads_at_work():
    """Threads of a worker's pool."""
    return len(get_worker().executors["default"]._threads)


@pytest.mark.parametrize("name", ["maps", "objects"])
def test_tasks_wait_beside_each_other(client, server, ds, name):
    total = client.compute(ds[name].sum()).result()

    assert total == DATA.sum()
    assert server.most_at_once() > (2 if name == "objects" else 1)
    assert client.submit(n_threads_at_work, pure=False).result() == 1


@pytest.mark.parametrize("name", ["maps", "objects"])
def test_the_wait_without_a_slot_is_counted_as_fetching(client, ds, name):
    before = stats(client)
    client.compute(ds[name].sum()).result()

    seconds = (stats(client) - before).total.seconds

    assert seconds["fetch"] > 2 * LATENCY_S  # tasks that wait beside each other all count
    assert seconds.get("index", 0) < seconds["fetch"]


def test_without_a_budget_each_keeps_its_slot(client, server, ds):
    client.run(configure, ahead_nbytes=0)
    try:
        total = client.compute(ds.maps.sum()).result()
    finally:
        client.run(configure)

    assert total == DATA.sum()
    assert server.most_at_once() == 1


def test_a_budget_bounds_how_many_wait(client, server, ds):
    shard_nbytes = 2 * 6 * 8 * 4 + 2 * 16 + 4
    client.run(configure, ahead_nbytes=2 * shard_nbytes)
    try:
        total = client.compute(ds.maps.sum()).result()
    finally:
        client.run(configure)

    assert total == DATA.sum()
    assert 1 < server.most_at_once() <= 3


def test_a_task_that_has_left_its_slot_may_read(client, ds):
    def read(array):
        secede()
        total = int(array.compute(scheduler="synchronous").sum())
        rejoin()
        return total

    assert client.submit(read, ds.maps).result() == DATA.sum()


def test_a_thread_of_a_task_may_read(client, ds):
    def read(array):
        totals = []
        thread = threading.Thread(target=lambda: totals.append(int(array.compute(scheduler="threads").sum())))
        thread.start()
        thread.join()
        return totals

    assert client.submit(read, ds.maps).result() == [DATA.sum()]


def test_a_cancelled_computation_leaves_a_worker_that_works(client, server, ds):
    future = client.compute(ds.maps.mean())
    time.sleep(1.5 * LATENCY_S)
    future.cancel()

    assert client.compute(ds.maps.sum()).result() == DATA.sum()
