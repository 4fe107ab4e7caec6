"""`WritesBehind`: objects on their way while others are encoded, within bounds, and what becomes of failures."""

import asyncio

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

from xarray_gpuzarr import StoreWriteError
from xarray_gpuzarr.fetch.remote.under_way import begin_on_loop
from xarray_gpuzarr.write import writes_behind
from xarray_gpuzarr.write.block_target import BlockTarget
from xarray_gpuzarr.write.writes_behind import WritesBehind

pytestmark = pytest.mark.timeout(60)
N_BLOCKS, BLOCK_NBYTES = 12, 4096


class SlowStore(WrapperStore):
    """Counts the bytes of objects that are on their way, and refuses one of them."""

    def __init__(self, store):
        super().__init__(store)
        self.latency_s, self.refused = 0.02, None
        self.nbytes = self.most_nbytes = self.n_cancelled = 0

    async def set(self, key, value):
        self.nbytes += len(value)
        self.most_nbytes = max(self.most_nbytes, self.nbytes)
        try:
            await asyncio.sleep(self.latency_s)
            if key == self.refused:
                raise OSError("refused")
            await super().set(key, value)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        finally:
            self.nbytes -= len(value)


@pytest.fixture
def store():
    return SlowStore(MemoryStore())


@pytest.fixture
def array(store):
    array = zarr.create_array(
        store, shape=(N_BLOCKS * BLOCK_NBYTES,), chunks=(BLOCK_NBYTES,), dtype="u1", compressors=None
    )
    store.most_nbytes = 0
    return array


DATA = np.random.default_rng(0).integers(1, 256, N_BLOCKS * BLOCK_NBYTES, np.uint8)


def write_blocks(target):
    for start in range(0, len(DATA), BLOCK_NBYTES):
        target[start : start + BLOCK_NBYTES] = DATA[start : start + BLOCK_NBYTES]


@pytest.mark.parametrize("n_at_once", [1, 3, 100])
def test_as_many_bytes_are_under_way_as_there_may_be(array, store, monkeypatch, n_at_once):
    monkeypatch.setattr(writes_behind, "MAX_NBYTES", n_at_once * BLOCK_NBYTES)
    with WritesBehind() as behind:
        write_blocks(BlockTarget(array, behind))
        behind.finish()
    assert store.nbytes == 0
    assert BLOCK_NBYTES * min(2, n_at_once) <= store.most_nbytes <= min(n_at_once, N_BLOCKS) * BLOCK_NBYTES
    assert np.array_equal(array[...], DATA)


def test_no_more_requests_are_under_way_than_zarr_is_told(array, store):
    with zarr.config.set({"async.concurrency": 2}), WritesBehind() as behind:
        write_blocks(BlockTarget(array, behind))
        behind.finish()
    assert store.most_nbytes == 2 * BLOCK_NBYTES


def write_all(array, *, is_interrupted=False):
    with WritesBehind() as behind:
        write_blocks(BlockTarget(array, behind))
        if is_interrupted:
            raise KeyError
        behind.finish()


@pytest.mark.parametrize("number", [0, N_BLOCKS - 1])
def test_a_refused_object_is_an_error_of_a_later_write_or_of_the_end(array, store, number):
    store.refused = f"c/{number}"
    with pytest.raises(StoreWriteError, match=f"'c/{number}'"):
        write_all(array)


class EndsAtSecondLook:
    """The reply of a write that ends right after it was asked for the second time whether it has ended."""

    def __init__(self, reply):
        self.reply, self.n_looks = reply, 0

    @property
    def is_answered(self):
        self.n_looks += 1
        if self.n_looks < 2:
            return False
        answer = self.reply.is_answered
        self.reply.wait(10)
        return answer

    def __getattr__(self, name):
        return getattr(self.reply, name)


def test_the_error_of_a_write_that_ends_during_a_look_at_all_writes_is_raised(array, store, monkeypatch):
    def begin_and_look(*arguments):
        write, encoded = begin_on_loop(*arguments)
        return EndsAtSecondLook(write), encoded

    monkeypatch.setattr(writes_behind, "begin_on_loop", begin_and_look)
    store.latency_s, store.refused = 0.2, "c/0"
    with pytest.raises(StoreWriteError, match="'c/0'"):
        write_all(array)


def test_what_is_under_way_after_an_error_is_cancelled(array, store):
    store.latency_s = 30
    with pytest.raises(KeyError):
        write_all(array, is_interrupted=True)
    store.latency_s = 0
    array[:BLOCK_NBYTES] = DATA[:BLOCK_NBYTES]  # which takes its turn after them
    assert (store.nbytes, store.n_cancelled) == (0, N_BLOCKS)


def test_two_writes_to_one_object_take_turns(array):
    with WritesBehind() as behind:
        target = BlockTarget(array, behind)
        for value in range(1, 9):
            target[10 * value : 10 * value + 10] = np.full(10, value, "u1")
        behind.finish()
    assert np.array_equal(array[10:90], np.repeat(np.arange(1, 9), 10))
