"""What a task is said to need, against what reads take of the simulated device."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import numpy as np
import pytest
from helpers.data.corpus import write
from helpers.simulated.reads import CudaReads, limits
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.cuda import resources
from xarray_gpuzarr.cuda.locks import SharedLock
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.tasks.memory import TaskMemory, task_memory

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs")

KIB, MIB = 1024, 1024**2
GPU_NBYTES = 1 << 29
SHARD = (64, 2048)
"""Of chunks of 16 KiB, 16 along the first axis and 2 along the second: their rows lie apart in the result."""

CHAINS = {
    "raw": {"compressors": None},
    "zstd": {"compressors": ZstdCodec()},
    "gzip": {"compressors": GzipCodec(level=1)},
    "zlib": {"compressors": zn.Zlib(level=1)},
    "lz4": {"compressors": zn.LZ4()},
    "blosc": {"compressors": BloscCodec(cname="lz4", shuffle="shuffle", typesize=4)},
    "blosc-zstd-bitshuffle": {"compressors": BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=4)},
    "transposed": {"filters": TransposeCodec(order=(1, 0)), "compressors": ZstdCodec()},
    "big-endian": {"serializer": BytesCodec(endian="big"), "compressors": ZstdCodec()},
    "delta": {"filters": zn.Delta(dtype="<i4"), "compressors": ZstdCodec()},
}
LIMITS = {
    "one batch": {"slot_nbytes": 4 * MIB, "n_slots": 2, "batch_nbytes": 64 * MIB, "scratch_nbytes": 128 * MIB},
    "batches": {
        "slot_nbytes": 256 * KIB,
        "n_slots": 2,
        "batch_nbytes": 512 * KIB,
        "batch_chunks": 1,
        "scratch_nbytes": 128 * MIB,
    },
    "little scratch": {"slot_nbytes": 256 * KIB, "n_slots": 2, "batch_nbytes": 64 * MIB, "scratch_nbytes": 2 * MIB},
}


def peak_of(stored, options, seed):
    """Return the most device memory that one read takes."""
    device = SimulatedDevice(seed, memory_nbytes=GPU_NBYTES)
    with limits(**options):
        CudaReads(device).values(stored)
    device.check()
    return device.peak_nbytes


@pytest.mark.every_value
@pytest.mark.parametrize("cast", ["copied", "converted"])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("chain", CHAINS)
def test_no_read_takes_more_than_was_said(chain, limit, cast):
    data = np.random.default_rng(0).integers(0, 2**20, SHARD, "i4")  # hardly compresses
    array = write(MemoryStore(), data, chunks=(4, 1024), shards=SHARD, **CHAINS[chain])
    stored = stored_array(array, None if cast == "copied" else Cast(dtype="<f8", scale=0.5))
    options = LIMITS[limit]

    said = task_memory(stored, SHARD, options=ResourceOptions(**options), gpu_nbytes=GPU_NBYTES).device_nbytes

    peak = max(peak_of(stored, options, seed) for seed in (0, 1))
    assert peak <= said
    assert said < 8 * peak


def test_parts_are_what_they_are_called(memory):
    array = write(memory, np.zeros(SHARD, "i4"), chunks=(4, 1024), shards=SHARD, compressors=ZstdCodec())
    stored, chunk = stored_array(array, Cast(dtype="<f8")), 4 * 1024 * 4
    options = ResourceOptions(
        slot_nbytes=MIB, n_slots=5, batch_nbytes=2 * chunk, batch_chunks=1, scratch_nbytes=64 * MIB
    )

    found = task_memory(stored, SHARD, options=options, gpu_nbytes=GPU_NBYTES)

    zstd_scratch = 3 * chunk + 6936
    assert found == TaskMemory(
        result_nbytes=64 * 2048 * 8,
        batches_nbytes=3 * 2 * (2 * chunk + zstd_scratch),
        table_nbytes=3 * 256 * KIB,
    )
    assert found.device_nbytes == sum((64 * 2048 * 8, 6 * (2 * chunk + zstd_scratch), 3 * 256 * KIB))


def test_a_small_block_needs_no_whole_batch(memory):
    array = write(memory, np.zeros(SHARD, "i4"), chunks=(4, 1024), shards=SHARD, compressors=None)

    found = task_memory(stored_array(array), (5, 1000), options=ResourceOptions(), gpu_nbytes=GPU_NBYTES)

    assert (found.result_nbytes, found.batches_nbytes) == (5 * 1000 * 4, 2 * 2 * 4 * 1024 * 4)


def test_what_the_host_decodes_needs_the_result_on_the_device(memory):
    array = write(memory, np.zeros(SHARD, "i4"), chunks=(4, 1024), shards=SHARD, compressors=zn.BZ2())

    found = task_memory(stored_array(array), SHARD, options=ResourceOptions(), gpu_nbytes=GPU_NBYTES)

    assert found.device_nbytes == 64 * 2048 * 4


@pytest.fixture
def packed(memory):
    """Eight shards, read as another dtype."""
    data = np.random.default_rng(0).integers(0, 2**20, (8 * SHARD[0], SHARD[1]), "i4")
    return data, stored_array(write(memory, data, chunks=(4, 1024), shards=SHARD), Cast(dtype="<f8", scale=0.5))


@pytest.mark.every_value
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("share", [2.0, 1.2, 1.0, 0.6])
def test_threads_that_share_too_little_memory_take_turns(packed, share, seed, monkeypatch):
    monkeypatch.setattr(resources.time, "sleep", lambda _: None)
    data, stored = packed
    options = LIMITS["one batch"] | {"scratch_nbytes": None}
    task = task_memory(stored, SHARD, options=ResourceOptions(**options), gpu_nbytes=GPU_NBYTES)
    device = SimulatedDevice(seed, memory_nbytes=int(share * task.device_nbytes))

    reads, shards = CudaReads(device), [slice(first, first + SHARD[0]) for first in range(0, len(data), SHARD[0])]

    with limits(**options), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: reads.values(stored, (rows, slice(None))), shards))

    np.testing.assert_array_equal(np.concatenate(found), data * 0.5)
    device.check()


def test_a_thread_that_is_alone_does_not_wait(packed, monkeypatch):
    """It tries once more without what pools keep, which nobody else would free meanwhile."""
    monkeypatch.setattr(resources.time, "sleep", lambda _: pytest.fail("it waited"))
    device = SimulatedDevice(memory_nbytes=MIB // 2)

    with limits(), pytest.raises(DeviceMemoryError):
        CudaReads(device).read(packed[1], (slice(SHARD[0]), slice(None)))

    assert device.calls["trim"] == 1


def test_what_fits_for_nobody_is_an_error_for_everybody(packed, monkeypatch):
    naps = []
    monkeypatch.setattr(resources.time, "sleep", naps.append)
    stored = packed[1]
    reads = CudaReads(SimulatedDevice(memory_nbytes=MIB // 2))

    with limits(), ThreadPoolExecutor(2) as threads:
        together = Barrier(2, timeout=30)
        futures = [threads.submit(lambda: (together.wait(), reads.read(stored, slice(0, 64)))) for _ in range(2)]
        errors = [future.exception() for future in futures]

    assert {type(error) for error in errors} == {DeviceMemoryError}
    assert sorted(naps) in ([0.1, 0.4, 1.5], [0.1, 0.1, 0.4, 0.4, 1.5, 1.5])


def test_a_read_inside_a_read_does_not_wait_for_one_that_wants_to_be_alone():
    lock, waiting = SharedLock(), Event()

    def want():
        waiting.set()
        return lock.exclusive(lambda: "alone")

    def read():
        future = threads.submit(want)
        waiting.wait(30)
        time.sleep(0.01)
        assert lock.shared(lambda: not future.done())
        return future

    with ThreadPoolExecutor(1) as threads:
        future = lock.shared(read)
        assert future.result(30) == "alone"


@pytest.mark.parametrize(
    ("gpu_nbytes", "n"),
    [(0, 0), (1 << 30, 0), ((1 << 30) + 299, 2), ((1 << 30) + 300, 3), (3 << 30, 2**31 // 100)],
)
def test_tasks_fit_beside_what_cuda_takes(gpu_nbytes, n):
    task = TaskMemory(result_nbytes=60, batches_nbytes=39, table_nbytes=1)

    assert task.n_fitting(gpu_nbytes) == n


def test_a_chunk_that_does_not_fit_is_said_before_it_is_read(memory):
    array = write(memory, np.zeros(SHARD, "i4"), chunks=(4, 1024), shards=SHARD, compressors=ZstdCodec())

    with pytest.raises(DeviceMemoryError, match="scratch_nbytes"):
        task_memory(stored_array(array), SHARD, options=ResourceOptions(scratch_nbytes=1000), gpu_nbytes=GPU_NBYTES)
