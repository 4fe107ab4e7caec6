"""The simulated GPU in the real workers of a cluster: resources, streams, the plugin's life, a client without a GPU."""

import importlib
from contextlib import suppress

import dask
import numpy as np
import pytest
import xarray as xr
from distributed import Event, wait
from helpers.clusters import SECONDS, eventually, local_cluster
from helpers.data.datasets import COMMON_WORK, open_stock
from helpers.every_pair import usually
from helpers.kernels.on_host import require_compiler
from helpers.simulated.array import SimulatedArray
from helpers.simulated.worker import SimulatedGpu, here, installed

from xarray_gpuzarr import DeviceUnavailableError, OptionError, register, stats
from xarray_gpuzarr.cluster import worker
from xarray_gpuzarr.cuda.launch import usual_kernels
from xarray_gpuzarr.decoders.workers.decoder import CupyStandIn
from xarray_gpuzarr.process.device_options import resource_options

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

N_WORKERS, N_THREADS = 2, 2
SMALL = {"slot_nbytes": 64 * 1024, "n_slots": 2, "scratch_nbytes": 1 << 26}
WORKSPACE_NBYTES = 2 * 64 * 1024 + 8 * 256 * 1024


@pytest.fixture(scope="module")
def workers():
    """A client without a GPU, of two processes that have one each."""
    require_compiler()
    with local_cluster(N_WORKERS, N_THREADS) as client:
        client.register_plugin(SimulatedGpu(memory_nbytes=1 << 28))
        yield client


@pytest.fixture
def client(workers):
    """The same client; whatever a test has registered is gone again, and nothing was done wrong on any device."""
    yield workers
    with suppress(ValueError):
        workers.unregister_worker_plugin("xarray_gpuzarr")
    workers.run(lambda: here().check())


@pytest.fixture
def ds(path):
    return xr.open_dataset(path, engine="gpuzarr", chunks={}, device="workers")


def of_devices(client, attribute):
    return list(client.run(lambda name: getattr(here(), name), attribute).values())


def hold(event):
    """Keep a thread of a worker busy until the event."""
    event.wait(SECONDS)


def pinned_nbytes():
    return here()._pinned.nbytes


class TestPlugin:
    def test_prepares_every_worker(self, client):
        register(client, device="cuda", **SMALL)

        assert of_devices(client, "n_shared") == [1] * N_WORKERS
        assert all(built[-len(usual_kernels()) :] == usual_kernels() for built in of_devices(client, "built"))
        assert set(client.run(pinned_nbytes).values()) == {N_THREADS * WORKSPACE_NBYTES}
        assert {o.slot_nbytes for o in client.run(resource_options).values()} == {SMALL["slot_nbytes"]}

    def test_is_registered_once(self, client):
        register(client, **SMALL)
        before = [calls["share_pool"] for calls in of_devices(client, "calls")]

        register(client, **SMALL)

        assert [calls["share_pool"] for calls in of_devices(client, "calls")] == before

    def test_other_settings_replace_the_earlier_ones(self, client):
        register(client, **SMALL)

        register(client, **SMALL | {"n_slots": 3})

        assert of_devices(client, "n_shared") == [1] * N_WORKERS
        assert set(client.run(pinned_nbytes).values()) == {N_THREADS * (WORKSPACE_NBYTES + 64 * 1024)}

    def test_gives_everything_back(self, client, ds):
        register(client, **SMALL)
        ds.u10.mean().gpuzarr.to_host().compute()

        client.unregister_worker_plugin("xarray_gpuzarr")

        assert set(client.run(pinned_nbytes).values()) == {0}
        assert of_devices(client, "n_shared") == [0] * N_WORKERS
        assert {o.n_slots for o in client.run(resource_options).values()} == {3}

    def test_reads_work_before_and_after(self, client, ds, path):
        expected = open_stock(path)["count"].sum("time").values
        total = ds["count"].sum("time").gpuzarr.to_host()

        for change in (lambda: register(client, **SMALL), lambda: client.unregister_worker_plugin("xarray_gpuzarr")):
            change()
            np.testing.assert_array_equal(total.values, expected)

    def test_waits_for_no_busy_thread(self, client):
        go_on = Event("go on")
        busy = [client.submit(hold, go_on, pure=False, workers=w) for w in client.scheduler_info()["workers"]]
        eventually(lambda: sorted(map(len, client.processing().values())), [1] * N_WORKERS)

        register(client, **SMALL)

        assert {future.status for future in busy} == {"pending"}
        go_on.set()
        wait(busy)

    def test_unknown_settings_are_refused_by_the_client(self, client):
        with pytest.raises(OptionError, match="slots"):
            register(client, slots=3)
        with pytest.raises(OptionError, match="'tpu'"):
            register(client, device="tpu")

    def test_restarted_and_later_workers_are_prepared(self, client):
        register(client, **SMALL)
        client.restart_workers(list(client.scheduler_info()["workers"])[:1], timeout=SECONDS)
        client.cluster.scale(N_WORKERS + 1)
        client.wait_for_workers(N_WORKERS + 1, timeout=SECONDS)

        prepared = [N_THREADS * WORKSPACE_NBYTES] * (N_WORKERS + 1)
        assert eventually(lambda: list(client.run(pinned_nbytes).values()), prepared) == prepared
        client.cluster.scale(N_WORKERS)
        assert eventually(lambda: len(client.nthreads()), N_WORKERS) == N_WORKERS


def let_arrays_be_stuck():
    """Make distributed's serializers for CuPy unavailable in this worker."""
    worker.why_not_serializable = lambda: "No module named 'numba'"


def let_arrays_travel():
    importlib.reload(worker)


class TestArraysThatCannotTravel:
    @pytest.fixture
    def stuck(self, client):
        client.run(let_arrays_be_stuck)
        yield client
        client.run(let_arrays_travel)

    def test_a_worker_that_must_use_its_gpu_is_refused(self, stuck):
        with pytest.raises(DeviceUnavailableError, match=r"(?s)CuPy arrays cannot leave this worker.*numba"):
            register(stuck, device="cuda")

    def test_others_are_prepared_all_the_same(self, stuck, ds):
        register(stuck, **SMALL)

        assert np.isfinite(ds.u10.gpuzarr.to_host().mean().compute())


class TestClientWithoutGpu:
    @pytest.mark.parametrize("work", COMMON_WORK)
    def test_common_work(self, client, ds, path, work):
        result = COMMON_WORK[work](ds).gpuzarr.to_host().compute()

        xr.testing.assert_allclose(result, COMMON_WORK[work](open_stock(path)).compute(), rtol=1e-5)

    def test_blocks_are_device_arrays(self, client, ds):
        kinds = ds.u10.data.map_blocks(lambda block: np.array([[[type(block) is SimulatedArray]]]), chunks=(1, 1, 1))

        assert kinds.compute().all()

    def test_blocks_that_workers_hold_come_to_the_host(self, client, ds, path):
        held = ds.u10.persist()

        loaded = held.gpuzarr.to_host().compute()

        np.testing.assert_array_equal(loaded.values, open_stock(path).u10.values)

    def test_map_blocks_with_a_function_of_the_device(self, client, ds, path):
        doubled = ds["count"].copy(data=ds["count"].data.map_blocks(np.add, ds["count"].data))

        loaded = doubled.gpuzarr.to_host().compute()

        np.testing.assert_array_equal(loaded.values, 2 * open_stock(path)["count"].values)

    def test_dataset_says_where_it_lives_and_opens_without_a_gpu(self, client, ds):
        assert ds.gpuzarr.device == "cuda"
        assert type(ds.u10.data._meta) is CupyStandIn
        assert type(ds.gpuzarr.to_host().u10.data._meta) is np.ndarray

    def test_bytes_and_stages_are_counted(self, client, ds):
        before = stats(client)
        ds[["u10", "count"]].sum().gpuzarr.to_host().compute()

        between = stats(client) - before

        assert len(between.rows) == N_WORKERS
        assert between.total.n_reads == 2 * 3
        assert between.total.decoded_nbytes == 10 * 6 * 8 * (4 + 8)
        assert between.total.copied_nbytes > 0
        assert {"index", "fetch", "transfer", "decode", "wait"} <= set(between.total.seconds)

    def test_result_without_a_copy_to_the_host_fails_at_once(self, client, ds):
        with pytest.raises(Exception, match="no GPU"):
            ds.u10.compute()

    def test_reading_here_says_what_to_do(self, path):
        lazy = xr.open_dataset(path, engine="gpuzarr", device="workers")

        with pytest.raises(DeviceUnavailableError, match=r"chunks=\{\}.*to_host"):
            lazy.u10.load()


class TestWorkersOfOneProcess:
    """Two workers that are threads of the client's process, and so share its GPU."""

    @pytest.fixture(params=range(usually(2, full=4)), ids=lambda seed: f"seed {seed}")
    def device(self, request):
        require_compiler()
        with installed(seed=request.param, memory_nbytes=1 << 28) as device:
            yield device
            device.check()

    @pytest.fixture
    def threads(self, device):
        with local_cluster(N_WORKERS, N_THREADS, processes=False) as client:
            yield client

    @pytest.fixture
    def ds(self, threads, path):
        return xr.open_dataset(path, engine="gpuzarr", chunks={}, device="cuda")

    @pytest.mark.every_value
    @pytest.mark.parametrize("read_by", ["workers", "cuda"])
    def test_common_work(self, threads, path, read_by):
        register(threads, device="cuda", **SMALL)
        ds = xr.open_dataset(path, engine="gpuzarr", chunks={}, device=read_by)

        results = dask.compute(*(work(ds).gpuzarr.to_host() for work in COMMON_WORK.values()))

        stock = open_stock(path)
        for result, work in zip(results, COMMON_WORK.values(), strict=True):
            xr.testing.assert_allclose(result, work(stock).compute(), rtol=1e-5)

    def test_process_is_prepared_once_and_every_thread_of_both_workers(self, threads, device):
        register(threads, device="cuda", **SMALL)

        assert device.n_shared == 1
        assert pinned_nbytes() == 3 * WORKSPACE_NBYTES  # as many reads run at once

    def test_last_worker_gives_everything_back(self, threads, device, ds, path):
        register(threads, device="cuda", **SMALL)
        threads.cluster.scale(1)
        assert eventually(lambda: len(threads.nthreads()), 1) == 1

        mean = ds.u10.mean().gpuzarr.to_host().compute()
        assert device.n_shared == 1
        threads.unregister_worker_plugin("xarray_gpuzarr")

        xr.testing.assert_allclose(mean, open_stock(path).u10.mean().compute(), rtol=1e-5)
        assert device.n_shared == 0
        assert pinned_nbytes() == 0
