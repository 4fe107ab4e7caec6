"""What the next tasks of dask's local schedulers read is asked for ahead: within a budget, and never too old."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.datasets import open_ours
from helpers.stores.fakes import is_data
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS, obstore_s3
from zarr.storage import LocalStore

from xarray_gpuzarr import StoreReadError, configure
from xarray_gpuzarr.backend.block_reader import find_block_reader
from xarray_gpuzarr.fetch.ahead import budget

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

N_SHARDS = 24
SHAPE, SHARD, CHUNK = (2 * N_SHARDS, 6, 8), (2, 6, 8), (1, 6, 8)
GRID_SHAPE, GRID_SHARD = (16, 16), (4, 4)
LATENCY_S = 0.05
LONG_AGO_S = 1e9


def values(seed, shape):
    return np.random.default_rng(seed).integers(-999, 999, shape, "i4")


MAPS, GRID = values(0, SHAPE), values(1, GRID_SHAPE)


def put_array(folder, name, data, *, chunks, shards=None):
    dims = ("time", "lat", "lon") if data.ndim == 3 else ("y", "x")
    more = {} if shards is None else {"shards": shards}
    group = zarr.open_group(LocalStore(folder))
    group.create_array(name, data=data, chunks=chunks, dimension_names=dims, overwrite=True, **more)


def make_old(folder):
    """Let files be so old that their times tell versions."""
    for file in folder.rglob("*"):
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))


@pytest.fixture
def folder(tmp_path):
    """A bucket with one store: maps in shards and in objects, some maps that were never written, and a grid."""
    folder = tmp_path / "bucket" / "s.zarr"
    put_array(folder, "maps", MAPS, chunks=CHUNK, shards=SHARD)
    put_array(folder, "objects", MAPS, chunks=CHUNK)
    sparse = MAPS.copy()
    sparse[4:20] = 0
    put_array(folder, "sparse", sparse, chunks=CHUNK, shards=SHARD)
    put_array(folder, "grid", GRID, chunks=(2, 2), shards=GRID_SHARD)
    zarr.consolidate_metadata(LocalStore(folder))
    make_old(folder)
    return folder


@pytest.fixture
def server(folder):
    with RangeServer(folder.parents[1], LATENCY_S) as server:
        yield server


@pytest.fixture(autouse=True)
def usual_options():
    """Put options back, and see that no test leaves bytes behind."""
    yield
    configure()
    assert budget.nbytes == 0


def opened(server, client=obstore_s3, chunks=None):
    ds = open_ours(client(server.url, "bucket/s.zarr"), chunks={} if chunks is None else chunks)
    server.requests()
    server.most_at_once()
    return ds


def compute(array, n_threads=2):
    with dask.config.set(scheduler="threads", num_workers=n_threads):
        return array.compute().values


def asked(server):
    """Keys of the objects with chunks that were asked for."""
    return [request["path"] for request in server.requests() if is_data(request["path"])]


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("name", ["maps", "objects", "sparse"])
def test_more_requests_are_under_way_than_there_are_threads(server, client, name):
    ds = opened(server, client, {"time": 2})

    total = compute(ds[name].sum())
    at_once, requests = server.most_at_once(), asked(server)

    expected = MAPS.sum() - (MAPS[4:20].sum() if name == "sparse" else 0)
    assert total == expected
    assert at_once > 4
    assert len(requests) == len(set(requests)) == (2 * N_SHARDS if name == "objects" else N_SHARDS)


def test_without_a_budget_each_task_asks_for_its_own(server):
    configure(ahead_nbytes=0)

    total = compute(opened(server).maps.sum())

    assert total == MAPS.sum()
    assert server.most_at_once() <= 2


def test_the_budget_bounds_what_is_asked_for_ahead(server):
    shard_nbytes = 2 * 6 * 8 * 4 + 2 * 16 + 4
    configure(ahead_nbytes=3 * shard_nbytes)

    total = compute(opened(server).maps.sum())

    assert total == MAPS.sum()
    assert 2 < server.most_at_once() <= 2 + 3


def test_a_whole_array_is_read_ahead(server):
    array = compute(opened(server).maps)

    np.testing.assert_array_equal(array, MAPS)
    assert server.most_at_once() > 4


def test_threads_of_a_pool_that_inherit_no_context_read_ahead(server):
    ds = opened(server)

    with ThreadPoolExecutor(2) as pool, dask.config.set(scheduler="threads", pool=pool):
        array = ds.maps.compute()

    np.testing.assert_array_equal(array, MAPS)
    assert server.most_at_once() > 4


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_what_is_not_selected_is_not_asked_for(server, scheduler):
    ds = opened(server)

    with dask.config.set(scheduler=scheduler, num_workers=2):
        total = ds.maps.isel(time=slice(10, 30)).sum().compute()

    assert total == MAPS[10:30].sum()
    assert server.most_at_once() > 4
    assert sorted(asked(server)) == sorted(f"/bucket/s.zarr/maps/c/{n}/0/0" for n in range(5, 15))


@pytest.mark.parametrize(
    "change",
    [
        lambda grid: grid.T,
        lambda grid: grid[::-1, ::-1],
        lambda grid: grid.rechunk((3, 5)),
        lambda grid: da.concatenate([grid[8:], grid[:8]]),
        lambda grid: da.concatenate([grid, grid], axis=1),
        lambda grid: da.overlap.overlap(grid, depth=1, boundary="reflect"),
        lambda grid: grid[[5, 1, 9]],
        lambda grid: grid.blocks[[3, 0, 2]],
        lambda grid: grid.map_blocks(np.flip),
        lambda grid: grid @ grid.T,
    ],
)
def test_values_are_right_in_any_order_and_few_bytes_come_in_vain(server, change):
    grid = opened(server).grid.data
    stored = da.from_array(GRID, GRID_SHARD)

    with dask.config.set(scheduler="threads", num_workers=2):
        result = (change(grid) + 0).compute()
        n_asked = len(set(asked(server)))

    np.testing.assert_array_equal(result, (change(stored) + 0).compute())
    assert n_asked <= 16


def test_blocks_in_another_order_than_their_tasks_end_the_guessing(server):
    grid = opened(server).grid.data
    mixed = da.map_blocks(lambda a, b: a - b, grid, grid.T, dtype="i4")

    with dask.config.set(scheduler="threads", num_workers=2):
        result = mixed.compute()
    requests = asked(server)

    np.testing.assert_array_equal(result, GRID - GRID.T)
    assert len(requests) <= 2 * 16


def test_a_later_computation_reads_what_was_written_since(server, folder):
    ds = opened(server)
    compute(ds.maps.isel(time=slice(0, 8)).sum())

    put_array(folder, "maps", MAPS + 1, chunks=CHUNK, shards=SHARD)

    assert compute(ds.maps.isel(time=slice(8, 16)).sum()) == (MAPS + 1)[8:16].sum()


def test_a_computation_inside_a_task_reads_what_was_written_since(server, folder):
    ds, seen = opened(server), []

    def write_and_read(block, block_info):
        if block_info[0]["chunk-location"][0] == 2:
            put_array(folder, "maps", MAPS + 1, chunks=CHUNK, shards=SHARD)
            with dask.config.set(scheduler="threads", num_workers=2):
                seen.append(ds.maps.isel(time=slice(12, None)).sum().compute().item())
        return block

    with dask.config.set(scheduler="synchronous"):
        ds.maps.data.map_blocks(write_and_read, dtype="i4", meta=np.empty((0, 0, 0), "i4")).sum().compute()

    assert seen == [(MAPS + 1)[12:].sum()]


def test_a_failed_request_is_an_error_that_names_the_object(server):
    ds = opened(server)
    server.spoil({"kind": "status", "value": 403, "path": "maps/c/9/"})

    with pytest.raises(StoreReadError, match="maps/c/9/0/0"):
        compute(ds.maps.sum())
    server.spoil()

    assert compute(ds.maps.sum()) == MAPS.sum()


def test_a_computation_that_fails_lets_go_of_everything(server):
    def fail(block):
        raise ArithmeticError

    with pytest.raises(ArithmeticError), dask.config.set(scheduler="threads", num_workers=2):
        opened(server).maps.data.map_blocks(fail, dtype="i4", meta=np.empty((0, 0, 0), "i4")).compute()

    assert budget.nbytes == 0


def test_a_shard_that_is_replaced_while_it_is_ahead_is_of_one_version(server, folder):
    put_array(folder.parent / "new.zarr", "maps", MAPS + 1000, chunks=CHUNK, shards=SHARD)
    make_old(folder.parent / "new.zarr")
    ds = opened(server)
    faults = [
        {"kind": "replaced", "value": f"bucket/new.zarr/maps/c/{n}/0/0", "path": f"maps/c/{n}/", "times": 1}
        for n in range(0, N_SHARDS, 3)
    ]
    server.spoil(*faults)

    array = compute(ds.maps)

    was_replaced = np.arange(SHAPE[0]) // 2 % 3 == 0
    np.testing.assert_array_equal(array, MAPS + 1000 * was_replaced[:, None, None])


def test_several_arrays_of_one_computation_are_read_ahead(server):
    ds = opened(server)

    results = xr.Dataset({"a": ds.maps.mean(), "b": ds.sparse.max()})
    with dask.config.set(scheduler="threads", num_workers=2):
        results = results.compute()

    assert results.a == pytest.approx(MAPS.mean())
    assert results.b == np.delete(MAPS, np.s_[4:20], axis=0).max()
    assert server.most_at_once() > 4


def test_arrays_of_local_files_are_not_asked_for_ahead(folder):
    reader = find_block_reader(open_ours(folder, chunks={}).maps.data)

    assert reader.requests_ahead() is None


def test_pickles_do_not_grow_with_the_number_of_blocks(server):
    reader = find_block_reader(opened(server).maps.data)
    finer = find_block_reader(opened(server, chunks={"time": 1}).maps.data)

    assert len(pickle.dumps(reader)) == len(pickle.dumps(finer))


def test_a_read_gets_what_it_took_although_the_guessing_ends_before_the_answer(server, folder):
    reader = find_block_reader(opened(server).maps.data)
    ahead = reader.requests_ahead()
    wanted = [
        each for n in range(3) for each in reader.first_requests((slice(2 * n, 2 * n + 2), *map(slice, SHAPE[1:])))
    ]
    assert ahead.start(wanted)
    taken = ahead.take(wanted[1].key)

    ahead.end()

    assert bytes(taken.answer().data) == (folder / wanted[1].key).read_bytes()
    ahead.end()
    assert ahead.take(wanted[0].key) is None
