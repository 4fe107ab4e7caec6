"""Device memory of reads: how much, what happens when there is none, and what several reads share."""

import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from helpers.data.corpus import counting, write, write_in_shards
from helpers.data.damage import assert_explains
from helpers.every_pair import usually
from helpers.simulated.reads import KIB, LAZY, ON_HOST, SCENES, SEEDS, CudaReads, NotingDevice, limits, scene
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, DeviceMemoryError, StoreReadError
from xarray_gpuzarr.cuda.workspace_memory import PinnedRing
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import stored_array

MIB = KIB * KIB
FEW_SEEDS = SEEDS[: usually(2, full=4)]


@pytest.fixture(autouse=True)
def small():
    with limits():
        yield


def assert_reads(reads, name="zstd, scattered", selection=...):
    """Read a scene and leave nothing behind."""
    expected = scene(name).expected[selection]
    np.testing.assert_array_equal(reads.values(scene(name).array, selection), expected)
    reads.device.check()


def assert_nothing_is_left(reads):
    """All memory is free again, but for what workspaces keep; the streams are at rest."""
    device = reads.device
    device.check()
    gc.collect()  # the traceback of an error may be the last to know a result
    free, total = device.memory_nbytes()
    assert total - free <= 2 * 64 * KIB
    reads.decoder.close()
    free, total = device.memory_nbytes()
    assert free == total


# How much.


@pytest.mark.every_value
@pytest.mark.parametrize("scratch_nbytes", [80 * KIB, 200 * KIB, 500 * KIB, 2 * MIB, None])
@pytest.mark.parametrize("name", SCENES)
def test_reads_stay_within_their_budget(name, scratch_nbytes):
    # It follows from the free memory where none is set. Tables, receipts and alignment come on top; 16 KiB are enough
    # for them here.
    device = SimulatedDevice(LAZY) if scratch_nbytes else SimulatedDevice(LAZY, 2 * MIB)

    with limits(scratch_nbytes=scratch_nbytes, batch_nbytes=64 * MIB, **{"slot_nbytes": MIB} if scratch_nbytes else {}):
        assert_reads(CudaReads(device), name)

    assert device.peak_nbytes - scene(name).expected.nbytes <= (scratch_nbytes or 2 * MIB // 4) + 16 * KIB


def test_gaps_between_chosen_chunks_count_as_well():
    data = counting((256 * KIB,))
    array = write(MemoryStore(), data, chunks=(256,), shards=data.shape, compressors=None, filters=None)
    chosen = np.arange(0, len(data), 16 * 256)
    device = SimulatedDevice(LAZY)

    with limits(scratch_nbytes=64 * KIB, batch_nbytes=64 * MIB, slot_nbytes=MIB):
        np.testing.assert_array_equal(CudaReads(device).values(array, chosen), data[chosen])

    assert device.peak_nbytes <= (64 + 16) * KIB


def test_pinned_memory_is_bounded_and_kept():
    device = NotingDevice(LAZY)
    reads = CudaReads(device)

    assert_reads(reads)
    peak = device.peak_pinned_nbytes
    [assert_reads(reads, name) for name in SCENES]

    assert device.peak_pinned_nbytes == peak <= 2 * 64 * KIB + 10 * 256 * KIB


def test_a_ring_whose_slots_grow_a_little_each_time_is_pinned_anew_a_few_times():
    device = NotingDevice(LAZY)
    ring = PinnedRing(device, 1, 1000)

    lengths = [len(ring.borrow(nbytes).array) for nbytes in range(1, 20_000, 10)]

    assert len(set(lengths)) == 9
    assert all(length >= nbytes for length, nbytes in zip(lengths, range(1, 20_000, 10), strict=True))
    assert device.peak_pinned_nbytes == lengths[-1] < 1.5 * 20_000


# What happens when there is none.


def test_chunk_that_cannot_fit_is_refused_with_the_setting_that_lets_it():
    reads = CudaReads(SimulatedDevice(LAZY))

    with limits(scratch_nbytes=20 * KIB), pytest.raises(DeviceMemoryError) as caught:
        reads.read(scene("zstd, scattered").array)
    assert reads.device.calls["trim"] == 0  # nobody had to wait until it read alone
    needed = int(caught.value.do.partition("scratch_nbytes=")[2].partition(")")[0])

    assert_explains(
        caught.value,
        "does not fit the memory set aside",
        "array '/'",
        "8192 decoded bytes",
        f"{needed} bytes",
        f"is {20 * KIB}",
        "host",
    )
    with limits(scratch_nbytes=needed):
        assert_reads(reads)
    with limits(scratch_nbytes=needed - 1), pytest.raises(DeviceMemoryError):
        reads.read(scene("zstd, scattered").array)


class NoMemory:
    """Lets allocations of device memory fail whose numbers, from 0, are in `which`."""

    def __init__(self, which):
        self.which, self.n = which, -1

    def __call__(self, nbytes):
        self.n += 1
        return self.n in self.which


def n_allocations():
    count = NoMemory(())
    assert_reads(CudaReads(SimulatedDevice(LAZY, fail_allocations=count)))
    return count.n + 1


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_batch_that_finds_no_memory_once_is_tried_again_in_halves(seed):
    # The first two allocations are the result and what all batches share: without them there is no read.
    for number in range(2, n_allocations()):
        device = SimulatedDevice(seed, fail_allocations=NoMemory({number}))
        reads = CudaReads(device)
        assert_reads(reads)
        assert 5 <= device.calls["nvcomp"] <= 11, number  # of twelve chunks a batch; later ones are as short
        assert_nothing_is_left(reads)


@pytest.mark.parametrize("n_shards", [1, 8])
@pytest.mark.parametrize("n_fitting", [100, 40])
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_what_memory_was_once_too_short_for_crosses_once_in_later_reads(seed, n_fitting, n_shards):
    n_chunks, chunk_nbytes = 512, 1024
    data = np.random.default_rng(0).integers(0, 1 << 14, (n_chunks, chunk_nbytes // 2), "i2")
    shards = (n_chunks // n_shards, data.shape[1])
    array = write(MemoryStore(), data, chunks=(1, data.shape[1]), shards=shards, compressors=ZstdCodec(), filters=None)
    fitting_nbytes = n_fitting * (3 * chunk_nbytes + 6936)  # nvCOMP's scratch of so many
    device = SimulatedDevice(seed, fail_allocations=lambda nbytes: data.nbytes != nbytes > fitting_nbytes)
    reads, ample = CudaReads(device), CudaReads(SimulatedDevice(seed))
    with limits(slot_nbytes=MIB, batch_nbytes=1, batch_chunks=128):
        np.testing.assert_array_equal(ample.values(array), data)
        for number in range(4):
            before = device.nbytes_uploaded
            np.testing.assert_array_equal(reads.values(array), data)
            factor = (device.nbytes_uploaded - before) / ample.device.nbytes_uploaded
            assert factor < (1.01 if number else 1.5)
    device.check()


def test_batches_become_long_again_where_memory_is_back():
    reads = CudaReads(SimulatedDevice(LAZY, fail_allocations=(fail := NoMemory({5}))))
    n_calls = []
    for _ in range(66):
        before = reads.device.calls["nvcomp"]
        assert_reads(reads)
        n_calls.append(reads.device.calls["nvcomp"] - before)

    assert fail.n > 5
    assert n_calls[0] > n_calls[-1]
    assert len(set(n_calls[1:65])) == 1
    assert n_calls[64] > n_calls[65] == 4


def test_what_zarr_has_read_is_brought_up_again_where_memory_was_short():
    data = counting((8, 64))
    twice = [BytesCodec(), Crc32cCodec(), Crc32cCodec()]
    array = write_in_shards(MemoryStore(), data, chunks=(2, 64), shards=(4, 64), index_codecs=twice)
    fail = NoMemory(())
    reads = CudaReads(SimulatedDevice(LAZY, fail_allocations=fail))
    np.testing.assert_array_equal(reads.values(array), data)
    fail.which = {fail.n + 1}

    np.testing.assert_array_equal(reads.values(array), data)
    assert fail.n > max(fail.which)


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_memory_that_stays_short_is_an_error_and_the_next_read_works(seed):
    for first in range(n_allocations()):
        fail = NoMemory(range(first, 1000))
        reads = CudaReads(SimulatedDevice(seed, fail_allocations=fail))
        with pytest.raises(DeviceMemoryError, match="not enough device memory"):
            reads.read(scene("zstd, scattered").array)
        assert_nothing_is_left(reads)
        fail.which = ()
        assert_reads(reads)


@dataclass(frozen=True, slots=True)
class FailingSource:
    """A source of which one request raises."""

    source: Any
    error: Callable[[], BaseException]
    key: str

    is_remote = False  # the index of a small shard is a request of its own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def for_one_read(self, **_: Any) -> Any:
        return self

    def start(self, requests: Any, version: Any) -> Any:
        def fail(_):
            raise self.error()

        return fail if requests[0][0] == self.key else self.source.start(requests, version)


def failed():
    return StoreReadError("a", tried="b", found="c", do="d")


@pytest.mark.parametrize("error", [failed, KeyboardInterrupt])
@pytest.mark.parametrize("key", ["c/0/0", "c/2/0", "c/5/1"])
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_failing_source_leaves_nothing_behind(seed, key, error):
    reads = CudaReads(SimulatedDevice(seed))
    stored = stored_array(scene("zstd, scattered").array)

    with pytest.raises(type(error())):
        reads.read(replace(stored, source=FailingSource(stored.source, error, key)))

    assert_nothing_is_left(reads)
    assert_reads(reads)


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_damaged_chunk_leaves_nothing_behind(seed):
    data, store = counting((48, 4096), "i2"), MemoryStore()
    array = write(store, data, chunks=(4, 1024), shards=(8, 2048), compressors=ZstdCodec())
    put(store, "c/2/1", with_chunk(take(store, "c/2/1"), 4, 1, b"no zstd frame"))
    reads = CudaReads(SimulatedDevice(seed))

    with pytest.raises(CorruptChunkError, match=r"chunk \(4, 3\)"):
        reads.read(array)

    assert_nothing_is_left(reads)
    np.testing.assert_array_equal(reads.values(array, slice(24, None)), data[24:])


HALF = slice(0, 24)


def read_interrupted(seed, at, name="zstd, scattered", selection=HALF, **keywords):
    """Interrupt a read before its call number `at`; the next one is right, and nothing is left behind."""

    def interrupt(note):
        if len(device.notes) == at + 1 and note.call != "nvcomp":  # nothing gets through a C frame
            raise KeyboardInterrupt

    device = NotingDevice(seed, on_call=interrupt, **keywords)
    reads = CudaReads(device)
    with suppress(KeyboardInterrupt):
        reads.read(scene(name).array, selection)
    assert_reads(reads, name, selection)
    assert_nothing_is_left(reads)


@pytest.mark.parametrize("name", ["zstd, scattered", "raw", ON_HOST])
def test_interrupt_at_any_call_leaves_nothing_behind(name):
    device = NotingDevice(LAZY)
    assert_reads(CudaReads(device), name, HALF)

    for at in range(len(device.notes)):
        read_interrupted(SEEDS[at % len(SEEDS)], at, name)


@pytest.mark.parametrize("ignored", range(1, 4))
def test_failed_read_must_wait_for_all_streams(ignored):
    starving = 4 * ignored + 3  # that stream, which nobody waits for then
    mutations = {f"synchronize:{ignored}"}
    with pytest.raises(AssertionError):
        [read_interrupted(starving, at, selection=..., mutations=mutations) for at in range(20, 140, 4)]


# Several reads, threads, devices.


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_results_are_freed_in_any_order(seed, order):
    reads = CudaReads(SimulatedDevice(seed))
    results = dict(enumerate([reads.read(scene(name).array) for name in SCENES[:4]]))

    for number in order:
        np.testing.assert_array_equal(results.pop(number).get(), scene(SCENES[number]).expected)
        assert_reads(reads, SCENES[number])

    assert_nothing_is_left(reads)


@pytest.mark.every_value
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("seed", SEEDS[: usually(4, full=9)])
def test_copies_never_wait_for_decoding_because_of_a_pool(seed, name):
    device = SimulatedDevice(seed, steals=True)
    reads, mine = CudaReads(device), device.stream()

    with mine:
        for _ in range(3):
            result = reads.read(scene(name).array)
            result[...] = 7
            del result
        np.testing.assert_array_equal(reads.values(scene(name).array), scene(name).expected)
    device.check()

    _, _, copy, *works, _ = device._scheduler.streams.values()
    assert not [owner for _, owner in device.stolen if owner is copy or owner in works]


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_two_devices_in_one_process(seed):
    devices = [SimulatedDevice(seed, index=0), SimulatedDevice(seed + 1, index=1)]
    reads = CudaReads(devices[0])
    reads.decoder = CudaDecoder(lambda: reads.device)

    for name in SCENES:
        for reads.device in devices:
            assert_reads(reads, name)

    assert [device.calls["stream"] for device in devices] == [4, 4]
