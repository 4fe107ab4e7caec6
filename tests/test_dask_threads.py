"""Threads under dask's schedulers: a task uses no more of them than dask was given."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask
import distributed
import numpy as np
import pytest
import xarray as xr
from distributed.core import Status
from helpers.compare import assert_same_values
from helpers.datasets import open_ours

from xarray_gpuzarr.decoders import threads
from xarray_gpuzarr.decoders.threads import at_most, thread_budget

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated")

WORKER_THREADS = threads._dask_worker_threads
DATA = np.arange(2_000_000.0)
N_SHARDS = 2


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two shards that are large enough for helping threads."""
    path = tmp_path_factory.mktemp("threads") / "s.zarr"
    encoding = {"chunks": (50_000,), "shards": (len(DATA) // N_SHARDS,)}
    xr.Dataset({"x": ("d", DATA)}).to_zarr(path, encoding={"x": encoding})
    return path


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    """A machine of eight cores that no cluster shares."""
    monkeypatch.delenv("XARRAY_GPUZARR_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "n_cores", lambda: 8)
    monkeypatch.setattr(threads, "_dask_worker_threads", lambda: 0)


@pytest.fixture
def budgets(monkeypatch):
    """How many threads each read was allowed to use."""
    budgets = []
    crew = SimpleNamespace(run=lambda work, most: (budgets.append(most), work(lambda: True)))
    monkeypatch.setattr(threads, "crew", crew)
    return budgets


@pytest.mark.parametrize(
    ("config", "n"),
    [
        ({}, 8),
        ({"scheduler": "threads"}, 8),
        ({"scheduler": "threads", "num_workers": 3}, 3),
        ({"num_workers": 100}, 8),
        ({"scheduler": "synchronous"}, 1),
        ({"scheduler": "single-threaded"}, 1),
    ],
)
@pytest.mark.parametrize("change", [lambda x: x, lambda x: x + 1], ids=["whole", "computed"])
def test_reads_use_what_dask_was_given(path, budgets, config, n, change):
    array = change(open_ours(path, chunks={})["x"])

    with dask.config.set(config):
        assert_same_values(array.compute().values, change(DATA))

    assert budgets == [n] * N_SHARDS


def test_reads_use_what_a_pool_has(path, budgets):
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool):
        open_ours(path, chunks={})["x"].compute()

    assert budgets == [2] * N_SHARDS


def test_lazy_reads_use_all_cores(path, budgets):
    with dask.config.set(scheduler="synchronous"):
        open_ours(path)["x"].load()

    assert budgets == [8]


def helpers_of_this_process(block):
    """Return how many helping threads have been started."""
    names = [thread.name for thread in threading.enumerate()]
    return np.array([sum(name.startswith("gpuzarr") for name in names) + 0 * int(block[0])])


def test_processes_of_a_pool_start_no_threads(path):
    blocks = open_ours(path, chunks={})["x"].data

    found = blocks.map_blocks(helpers_of_this_process, dtype=int, chunks=(1,)).compute(
        scheduler="processes", num_workers=2
    )

    assert found.tolist() == [0] * N_SHARDS


def test_the_environment_says_it_best(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "5")

    with at_most(2):
        assert thread_budget() == 5


def test_a_worker_says_it_better(monkeypatch):
    monkeypatch.setattr(threads, "_dask_worker_threads", lambda: 4)

    with at_most(1):
        assert thread_budget() == 4


def test_a_limit_holds_for_its_thread_and_block():
    with at_most(3):
        with at_most(None):
            assert thread_budget() == 8
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(thread_budget).result() == 8
        assert thread_budget() == 3
    assert thread_budget() == 8


def test_a_limit_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), at_most(1):
        _ = 1 / 0

    assert thread_budget() == 8


@pytest.mark.parametrize(
    ("status", "n"), [("running", 3), ("paused", 3), ("closing_gracefully", 3), ("init", 0), ("closed", 0)]
)
def test_a_worker_that_is_paused_still_counts(monkeypatch, status, n):
    worker = SimpleNamespace(status=Status[status], state=SimpleNamespace(nthreads=3))
    monkeypatch.setattr(distributed.worker.Worker, "_instances", [worker])

    assert WORKER_THREADS() == n
