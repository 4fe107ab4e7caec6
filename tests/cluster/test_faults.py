"""What goes wrong on a cluster: results are right, or the error names the shard, and nothing hangs."""

import os
import signal
import time

import numpy as np
import pytest
import xarray as xr
from distributed import wait
from helpers.clusters import SECONDS, eventually, local_cluster
from helpers.stores.fakes import FlakyStore
from zarr.storage import LocalStore

from xarray_gpuzarr import CorruptChunkError, GpuZarrError, GpuZarrPlugin, StoreReadError, __version__, register, stats

pytestmark = [pytest.mark.timeout(90), pytest.mark.filterwarnings("ignore:Consolidated")]

N_SHARDS = 24
DATA = np.random.default_rng(0).integers(-999, 999, (N_SHARDS * 4, 6, 8)).astype("i4")


@pytest.fixture(scope="module")
def client():
    """Two processes of one thread each, which come back when they die."""
    with local_cluster(n_workers=2) as client:
        register(client)
        yield client


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.zarr"
    encoding = {"chunks": (2, 3, 4), "shards": (4, 6, 8)}
    xr.Dataset({"v": (("time", "y", "x"), DATA)}).to_zarr(path, encoding={"v": encoding})
    return path


def opened(store, engine="gpuzarr"):
    keywords = {"device": "host"} if engine == "gpuzarr" else {}
    return xr.open_dataset(store, engine=engine, chunks={}, **keywords).v


def slowly(block):
    """Return a block after a while, so that there is a middle of the computation."""
    time.sleep(0.05)
    return block


def start_slowly(client, path):
    """Start a computation and return its future once some of it is done and some is not."""
    total = opened(path).data.map_blocks(slowly, dtype="i4").astype("i8").sum(axis=0)
    future = client.compute(total)
    before = stats(client).total.n_reads
    deadline = time.monotonic() + SECONDS
    while stats(client).total.n_reads < before + 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert future.status == "pending"
    return future


def assert_is_total(future):
    np.testing.assert_array_equal(future.result(timeout=SECONDS), DATA.sum(axis=0, dtype="i8"))


def has_plugin(dask_worker):
    return GpuZarrPlugin.name in dask_worker.plugins


def test_a_worker_is_killed(client, path):
    future = start_slowly(client, path)

    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    assert_is_total(future)
    client.wait_for_workers(2, timeout=SECONDS)


def test_a_worker_comes_late(client, path):
    future = start_slowly(client, path)

    client.cluster.scale(3)
    client.wait_for_workers(3, timeout=SECONDS)

    assert_is_total(future)
    np.testing.assert_array_equal(opened(path).compute().values, DATA)
    assert eventually(lambda: list(client.run(has_plugin).values()), [True] * 3) == [True] * 3
    client.cluster.scale(2)
    assert eventually(lambda: len(client.nthreads()), 2) == 2


def test_workers_of_another_version_say_so(path, tmp_path):
    (tmp_path / "xarray_gpuzarr-9.9.9.dist-info").mkdir()
    described = "Metadata-Version: 2.1\nName: xarray-gpuzarr\nVersion: 9.9.9\n"
    (tmp_path / "xarray_gpuzarr-9.9.9.dist-info" / "METADATA").write_text(described)
    preload = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"

    with local_cluster(n_workers=1, preload=[preload]) as client:
        future = client.compute(opened(path).data.sum())
        with pytest.raises(GpuZarrError, match="another version") as caught:
            future.result(timeout=SECONDS)

    assert f"version {__version__} has pickled it, and version 9.9.9 is installed here" in caught.value.found


def test_reads_that_fail_now_and_then_are_named(client, path):
    with pytest.raises(StoreReadError, match=r"v/c/\d+/0/0(.|\n)*TimeoutError: the network was down"):
        opened(FlakyStore(LocalStore(path))).compute()


def test_reads_that_fail_now_and_then_are_right_when_dask_tries_again(client, path):
    values = opened(FlakyStore(LocalStore(path))).compute(retries=10).values

    np.testing.assert_array_equal(values, DATA)


def test_a_deleted_shard_is_the_fill_value(client, path):
    lazy = opened(path)
    (path / "v" / "c" / "5" / "0" / "0").unlink()

    values = lazy.compute().values

    np.testing.assert_array_equal(values, opened(path, "zarr").compute().values)
    assert (values[20:24] == 0).all()


def test_a_corrupt_shard_is_named_and_the_others_are_read(client, path):
    shard = path / "v" / "c" / "7" / "0" / "0"
    shard.write_bytes(bytes(40) + shard.read_bytes()[40:])
    lazy = opened(path)

    with pytest.raises(CorruptChunkError, match="object 'v/c/7/0/0'") as caught:
        lazy.compute()

    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == ["tried", "found", "do"]
    np.testing.assert_array_equal(lazy[:28].compute().values, DATA[:28])


def test_errors_do_not_spoil_the_workers(client, path):
    (path / "v" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    futures = client.compute([opened(path)[:4].sum(), *(opened(path)[n : n + 4].sum() for n in range(4, 40, 4))])

    wait(futures, timeout=SECONDS)

    assert [future.status for future in futures] == ["error"] + ["finished"] * 9
