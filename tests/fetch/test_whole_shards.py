"""Shards that come whole, index and chunks in one request: which do, and how many bytes of them wait at once."""

import asyncio
from functools import partial

import google_crc32c
import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import V3_CODECS, write
from helpers.simulated.reads import CudaReads, limits
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import is_data
from zarr.buffer import cpu
from zarr.storage import MemoryStore, WrapperStore

from xarray_gpuzarr import FetchOptions, read_array
from xarray_gpuzarr.decoders.cuda.staging.upload import Upload
from xarray_gpuzarr.fetch import shard_indexes, whole_shard
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.fetch.source import FetchedBytes
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.read.stored_array import stored_array

N_SHARDS, SHARD_NBYTES = 12, 16 * 1024
SHARDED = {"chunks": (1024,), "shards": (SHARD_NBYTES // 4,)}
INDEX_NBYTES = 4 * 16 + 4
SLOT_NBYTES = 4 * SHARD_NBYTES
DATA = np.random.default_rng(0).integers(0, 50, N_SHARDS * SHARD_NBYTES // 4, "i4")


class SlowStore(WrapperStore):
    """Answers a little late, and counts requests."""

    def __init__(self, store):
        super().__init__(store)
        self.ranges, self.n_under_way, self.most_under_way = [], 0, 0

    async def get(self, key, prototype, byte_range=None):
        if is_data(key):
            self.ranges.append(byte_range)
            self.n_under_way += 1
            self.most_under_way = max(self.most_under_way, self.n_under_way)
            await asyncio.sleep(0.01)
            self.n_under_way -= 1
        return await super().get(key, prototype, byte_range)

    @property
    def n_whole(self):
        """Requests for a whole object."""
        return sum(byte_range is None for byte_range in self.ranges)


@pytest.fixture
def stored():
    """A function that writes the data with some codec; returns the array and its store."""

    def make(codec):
        store = SlowStore(MemoryStore())
        return write(store, DATA, **SHARDED, **V3_CODECS[codec]), store

    return make


@pytest.fixture
def room(monkeypatch):
    """A function that sets how many shards may wait whole, if nothing could be compressed."""
    return lambda n: monkeypatch.setattr(shard_indexes, "MAX_WHOLE_NBYTES", n * (SHARD_NBYTES + INDEX_NBYTES))


def read_by_device(array):
    """Read all values by the CUDA engine, whose slots hold four shards and whose batches hold eight."""
    with limits(slot_nbytes=SLOT_NBYTES, batch_nbytes=2 * SLOT_NBYTES, scratch_nbytes=64 * SLOT_NBYTES):
        return CudaReads(SimulatedDevice()).values(array)


each_decoder = pytest.mark.parametrize("read", [partial(read_array, device="host"), read_by_device])


@each_decoder
@pytest.mark.parametrize("codec", ["bytes", "zstd"])
def test_every_shard_is_one_request(stored, codec, read):
    array, store = stored(codec)

    assert_same_bits(read(array), DATA)

    assert (store.n_whole, len(store.ranges)) == (N_SHARDS, N_SHARDS)


@pytest.mark.parametrize(("n_parts", "n_whole"), [(3, 0), (4, N_SHARDS)])
def test_a_shard_of_many_requests_begins_with_its_index(stored, monkeypatch, n_parts, n_whole):
    longest = -(-(SHARD_NBYTES + INDEX_NBYTES) // n_parts)
    monkeypatch.setattr(whole_shard, "WHOLE_SHARD_REQUESTS", n_parts)
    monkeypatch.setattr(options.in_force, "options", FetchOptions(max_request_nbytes=longest - (n_whole == 0)))
    array, store = stored("bytes")

    assert_same_bits(read_array(array, device="host"), DATA)

    assert store.n_whole == n_whole


@each_decoder
@pytest.mark.parametrize("codec", ["bytes", "zstd"])
def test_whole_shards_under_way_are_bounded_unless_they_are_known_to_be_short(stored, room, codec, read):
    room(3)
    array, store = stored(codec)

    assert_same_bits(read(array), DATA)

    assert store.n_whole == N_SHARDS
    assert store.most_under_way > 3 if codec == "zstd" else store.most_under_way == 3


@pytest.mark.parametrize(("n_room", "n_elements", "n_whole"), [(100, 1024, 0), (100, 2048, 1), (0.5, len(DATA), 0)])
def test_half_of_a_shard_that_the_room_suffices_for_comes_whole(stored, room, n_room, n_elements, n_whole):
    room(n_room)
    array, store = stored("bytes")

    assert_same_bits(read_array(array, slice(n_elements), device="host"), DATA[:n_elements])

    assert store.n_whole == n_whole


def test_shards_that_wait_to_be_decoded_hold_up_requests(stored, room, monkeypatch):
    room(2)
    array, store = stored("bytes")
    asked, finish = [], FetchedBytes.__call__
    monkeypatch.setattr(FetchedBytes, "__call__", lambda *call: (asked.append(len(store.ranges)), finish(*call))[1])

    assert_same_bits(read_array(array, device="host"), DATA)

    n_threads = threads.thread_budget()
    assert len(asked) == N_SHARDS
    assert all(n <= n_decoded + 2 + n_threads for n_decoded, n in enumerate(asked, 1))


def test_shards_that_fill_a_slot_hold_up_requests(stored, room, monkeypatch):
    room(2)
    array, store = stored("bytes")
    asked, sent, send = [], [], Upload.send

    def noted(image, start):
        asked.append(len(store.ranges))
        sent.append(image._used_nbytes // SHARD_NBYTES)
        return send(image, start)

    monkeypatch.setattr(Upload, "send", noted)

    assert_same_bits(read_by_device(array), DATA)

    assert sum(sent) == N_SHARDS
    assert len(sent) >= N_SHARDS * SHARD_NBYTES // SLOT_NBYTES
    assert all(n <= n_sent + 1 + 2 for n_sent, n in zip(np.cumsum(sent), asked, strict=True))


def test_missing_shards_make_room(stored, room):
    room(2)
    array, store = stored("bytes")
    for number in range(0, N_SHARDS, 2):
        asyncio.run(store.delete(f"c/{number}"))
    store.ranges.clear()

    expected = DATA.reshape(N_SHARDS, -1).copy()
    expected[::2] = 0
    assert_same_bits(read_array(array, device="host"), expected.reshape(-1))

    assert store.n_whole == N_SHARDS


def test_shards_without_chunks_make_room(stored, room):
    room(2)
    array, store = stored("bytes")
    empty = b"\xff" * (INDEX_NBYTES - 4)
    empty += google_crc32c.value(empty).to_bytes(4, "little")
    for number in range(N_SHARDS):
        asyncio.run(store.set(f"c/{number}", cpu.Buffer.from_bytes(empty)))

    assert_same_bits(read_array(array, device="host"), np.zeros_like(DATA))

    assert store.n_whole == N_SHARDS


def test_ranges_of_a_whole_shard_may_be_equal(stored):
    """As chunks are that a writer stores once: the first of two takes the last bytes that are waited for."""
    array, store = stored("zstd")
    of = stored_array(array)
    read = Snapshot(of.source, of.spec)
    index = read.indexes.start("c/0", 4)().index
    columns = np.zeros(2, np.int64), index.offset[[0, 0]], index.nbytes[[0, 0]]
    read.indexes.expect_chunks(ReadPlan.from_columns(of.spec, None, ("c/0",), columns, np.zeros((2, 1), np.int64)))
    wanted = ByteRange(offset=int(index.offset[0]), nbytes=int(index.nbytes[0]))
    parts = read.start([("c/0", wanted), ("c/0", wanted)])(lambda nbytes: memoryview(bytearray(nbytes)))

    assert parts[0] == parts[1]
    assert len(parts[0]) == wanted.nbytes
    assert len(store.ranges) == 1
