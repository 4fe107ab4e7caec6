"""Threads under dask's schedulers: a task uses no more of them than dask was given."""

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from weakref import WeakSet

import dask
import distributed
import numpy as np
import pytest
import xarray as xr
from distributed.core import Status
from helpers.compare import assert_same_values
from helpers.data.datasets import open_ours
from helpers.loops import set_costs

from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.threads import limit_threads, thread_budget

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated")

WORKER_THREADS = threads.dask_worker_threads
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
    monkeypatch.setattr(threads, "dask_worker_threads", lambda: 0)


@pytest.fixture
def budgets(monkeypatch):
    """How many threads each read was allowed to use, however short it is."""
    budgets = []

    def run(work, most, _budget=None):
        budgets.append(most)
        work(lambda: True)

    set_costs(monkeypatch, serial_s=0.0, loops_s=0.0)
    monkeypatch.setattr(crew, "run", run)
    monkeypatch.setattr(crew, "reserve_threads", lambda *_: nullcontext(1))
    return budgets


@pytest.mark.every_value
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


def test_a_worker_says_it_better_and_the_environment_best(monkeypatch):
    assert limit_threads(2, thread_budget) == 2
    monkeypatch.setattr(threads, "dask_worker_threads", lambda: 4)
    assert limit_threads(2, thread_budget) == 4
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "5")
    assert limit_threads(2, thread_budget) == 5


def test_a_limit_holds_for_its_thread_and_call():
    def limited():
        with ThreadPoolExecutor(1) as pool:
            return limit_threads(None, thread_budget), pool.submit(thread_budget).result(), thread_budget()

    assert limit_threads(3, limited) == (8, 8, 3)
    assert thread_budget() == 8


@pytest.mark.parametrize(
    ("status", "n"), [("running", 3), ("paused", 3), ("closing_gracefully", 3), ("init", 0), ("closed", 0), (None, 0)]
)
def test_a_worker_that_is_paused_still_counts_and_one_that_is_being_made_does_not(monkeypatch, status, n):
    made = {} if status is None else {"status": Status[status], "state": SimpleNamespace(nthreads=3)}
    worker = type("Worker", (), made)()
    monkeypatch.setattr(distributed.worker.Worker, "_instances", WeakSet([worker]))

    assert WORKER_THREADS() == n


def half_imported(**members):
    """Return what a module is in the eyes of other threads while it is imported."""
    module = ModuleType("distributed.worker")
    module.__spec__ = ModuleSpec("distributed.worker", None)
    module.__spec__._initializing = True
    vars(module).update(members)
    return module


@pytest.mark.parametrize(
    "module",
    [
        None,
        half_imported(),
        half_imported(Worker=type("Worker", (), {})),
        half_imported(Worker=type("Worker", (), {"_instances": WeakSet()})),
    ],
)
def test_a_module_that_another_thread_imports_just_now_hosts_no_worker(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "distributed.worker", module)

    assert WORKER_THREADS() == 0


def test_reads_go_on_while_another_thread_imports_distributed():
    script = """
        import sys, threading
        import numpy as np, zarr
        from xarray_gpuzarr import read_array

        array = zarr.create_array({}, data=np.arange(100_000), chunks=(1000,), shards=(10_000,))
        assert "distributed.worker" not in sys.modules
        sys.setswitchinterval(1e-5)
        importing = threading.Thread(target=__import__, args=("distributed",))
        importing.start()
        n = 0
        while importing.is_alive() or not n:
            assert read_array(array, slice(n % 1000, None), device="host")[0] == n % 1000
            n += 1
        assert "distributed.worker" in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=100)
