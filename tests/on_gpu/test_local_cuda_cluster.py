"""A real `LocalCUDACluster`: pools of every kind, several threads, spilling; values against xarray's own engine."""

import importlib

import numpy as np
import pytest
import xarray as xr
from helpers.clusters import SECONDS
from helpers.data.datasets import COMMON_WORK, open_stock

from xarray_gpuzarr import register, stats

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]

POOLS = {
    "none": {},
    "pool": {"rmm_pool_size": "2GB"},
    "pool for CuPy too": {"rmm_pool_size": "2GB", "rmm_allocator_external_lib_list": "cupy"},
    "async": {"rmm_async": True},
    "managed": {"rmm_managed_memory": True},
    "two threads": {"rmm_async": True, "threads_per_worker": 2},
    "four threads": {"rmm_async": True, "threads_per_worker": 4},
    "spilling": {"rmm_async": True, "device_memory_limit": "1MB"},
}


@pytest.fixture(scope="module", params=POOLS)
def client(request):
    """A worker for the first GPU."""
    dask_cuda, distributed = importlib.import_module("dask_cuda"), importlib.import_module("distributed")
    with (
        dask_cuda.LocalCUDACluster(n_workers=1, dashboard_address=None, **POOLS[request.param]) as cluster,
        distributed.Client(cluster, timeout=SECONDS) as client,
    ):
        yield client


def allocators():
    """Return the kinds of RMM's current resource and of CuPy's allocator."""
    cupy, rmm = importlib.import_module("cupy"), importlib.import_module("rmm")
    allocator = cupy.cuda.get_allocator()
    return type(rmm.mr.get_current_device_resource()).__name__, getattr(allocator, "__name__", str(allocator))


@pytest.mark.parametrize("device", ["cuda", "workers"])
@pytest.mark.parametrize("work", COMMON_WORK)
def test_common_work(client, path, work, device):
    ds = xr.open_dataset(path, engine="gpuzarr", chunks={}, device=device)

    with xr.set_options(use_flox=False):
        result = COMMON_WORK[work](ds).gpuzarr.to_host().compute()

    xr.testing.assert_allclose(result, COMMON_WORK[work](open_stock(path)).compute(), rtol=1e-5)


def test_registering_leaves_a_pool_alone_and_lets_cupy_use_it(client, path):
    (before,) = client.run(allocators).values()

    register(client, device="cuda")

    (after,) = client.run(allocators).values()
    assert after[0] == before[0]
    assert (after[1] == "rmm_cupy_allocator") == (before[0] != "CudaMemoryResource")
    ds = xr.open_dataset(path, engine="gpuzarr", chunks={}, device="cuda")
    np.testing.assert_array_equal(ds["count"].gpuzarr.to_host().compute().values, open_stock(path)["count"].values)
    assert stats(client).total.copied_nbytes > 0
    client.unregister_worker_plugin("xarray_gpuzarr")
    assert list(client.run(allocators).values()) == [before]
