"""Indexes that are known already: fewer requests, within a limit of memory, and never a value of a replaced shard."""

import itertools
import os
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.stores.in_place import overwrite_in_place
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from obstore.store import LocalStore as ObstoreLocal
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore, ObjectStore

from xarray_gpuzarr import FetchOptions, ShardIndexError, StoreReadError, read_array
from xarray_gpuzarr.fetch import index_cache, shard_indexes
from xarray_gpuzarr.fetch.index_cache import CachedIndex, IndexCache
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec

pytestmark = pytest.mark.timeout(60)

SPEC = ShardIndexSpec(n_chunks=4, location="end", endian="little", checksum=True)
DATA = counting((20, 12), "f4")
SHARDED = {"chunks": (2, 3), "shards": (10, 12)}
ONE_CHUNK = (slice(2, 4), slice(3, 6))


def entry(n_chunks, version=0):
    column = np.zeros(n_chunks, np.int64)
    return CachedIndex(index=ShardIndex(offset=column, nbytes=column), version=version)


def key(name):
    return ("somewhere", name, SPEC)


class CacheMachine(RuleBasedStateMachine):
    """The cache beside a plain list of what it may hold."""

    keys = Bundle("keys")

    def __init__(self):
        super().__init__()
        self.cache = IndexCache()
        self.model = []  # (name, entry), oldest use first
        self.limit = 10**9

    @rule(target=keys, name=st.sampled_from("abcdef"))
    def a_key(self, name):
        return name

    @rule(name=keys, n_chunks=st.integers(1, 200), limit=st.integers(0, 6000))
    def put(self, name, n_chunks, limit):
        kept, self.limit = entry(n_chunks), limit
        self.cache.put(key(name), kept, limit)
        self.model = [pair for pair in self.model if pair[0] != name]
        if kept.nbytes <= limit:
            self.model.append((name, kept))
        while sum(e.nbytes for _, e in self.model) > limit:
            self.model.pop(0)

    @rule(name=keys)
    def get(self, name):
        expected = dict(self.model).get(name)
        assert self.cache.get(key(name)) is expected
        if expected is not None:
            self.model = [pair for pair in self.model if pair[0] != name] + [(name, expected)]

    @rule(name=keys)
    def drop(self, name):
        self.cache.drop(key(name))
        self.model = [pair for pair in self.model if pair[0] != name]

    @invariant()
    def size_is_the_sum_and_within_the_limit(self):
        assert self.cache.nbytes == sum(e.nbytes for _, e in self.model) <= self.limit
        assert len(self.cache) == len(self.model)


TestCacheMachine = CacheMachine.TestCase


@pytest.fixture(autouse=True)
def fresh_cache():
    index_cache.cache.clear()
    yield
    index_cache.cache.clear()


@pytest.fixture
def settled(monkeypatch):
    """Files are taken to be old at once."""
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)


@pytest.fixture
def index_reads(monkeypatch):
    """Keys of the shards whose index was read from a file."""
    read, original = [], LocalSource.start_edge

    def counting_start_edge(self, key, location, nbytes):
        read.append(key)
        return original(self, key, location, nbytes)

    monkeypatch.setattr(LocalSource, "start_edge", counting_start_edge)
    return read


def test_random_access_to_a_shard_reads_its_index_once(local, settled, index_reads):
    array = write(local, DATA, **SHARDED)

    for y, x in [(0, 0), (9, 11), (4, 4), (0, 0), (3, 8)]:
        assert_same_bits(read_array(array, (slice(y, y + 1), x), device="host"), DATA[y : y + 1, x])

    assert index_reads == ["c/0/0"]


def test_shard_that_was_just_written_is_not_trusted_to_change_visibly(local, index_reads, monkeypatch):
    array = write(local, DATA, **SHARDED)

    for _ in range(2):
        read_array(array, ONE_CHUNK, device="host")
    later = time.time() + 3
    monkeypatch.setattr(time, "time", lambda: later)
    for _ in range(3):
        read_array(array, ONE_CHUNK, device="host")

    assert index_reads == ["c/0/0"] * 3


def test_cache_is_shared_between_opens_and_threads(local, settled, index_reads):
    write(local, DATA, **SHARDED)
    arrays = [zarr.open_array(local.root, mode="r") for _ in range(4)]
    read_array(arrays[0], device="host")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda array: read_array(array, device="host"), arrays * 4))

    assert index_reads == ["c/0/0", "c/1/0"]
    for result in results:
        assert_same_bits(result, DATA)


def test_memory_is_bounded_by_the_option(local, settled, index_reads, monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(index_cache_nbytes=CACHED_NBYTES))
    array = write(local, DATA, **SHARDED)

    for y in (0, 0, 10, 10, 0):  # two shards, room for one index
        read_array(array, y, device="host")

    assert index_reads == ["c/0/0", "c/1/0", "c/0/0"]
    assert index_cache.cache.nbytes == CACHED_NBYTES


CACHED_NBYTES = entry(20).nbytes


def rewritten(path, data, way):
    """Write an array over another: files replaced, or written to in place with the times of the old ones."""
    if way == "replaced":
        write(LocalStore(path), data, **SHARDED, overwrite=True)
        return
    write(LocalStore(path.parent / "new"), data, **SHARDED, overwrite=True)
    overwrite_in_place(path, path.parent / "new")


STORES = {"local": LocalStore, "obstore": lambda path: ObjectStore(ObstoreLocal(path))}


@pytest.mark.parametrize("way", ["replaced", "in place"])
@pytest.mark.parametrize("selection", [ONE_CHUNK, ..., (slice(None), 5)])
@pytest.mark.parametrize("store", STORES)
def test_rewritten_shard_is_read_anew(tmp_path, settled, store, selection, way):
    if (store, way) == ("obstore", "in place"):
        way = "replaced"  # obstore knows no change time
    path = tmp_path / "s"
    write(LocalStore(path), DATA, **SHARDED)
    array = zarr.open_array(STORES[store](path), mode="r")
    read_array(array, device="host")
    read_array(array, selection, device="host")

    for number in range(2, 5):
        rewritten(path, DATA * number, way)
        expected = DATA * number if selection is ... else (DATA * number)[selection]
        assert_same_bits(read_array(array, selection, device="host"), expected)


def test_index_of_an_array_with_longer_chunks_is_read_anew(tmp_path, settled):
    """The new array's chunks would be damaged if they were as long."""
    for n, first in ((1_000_000, 5), (1000, 7)):
        if tmp_path.joinpath("a").exists():
            shutil.rmtree(tmp_path / "a")
        array = zarr.create_array(
            tmp_path / "a", shape=(2 * n,), chunks=(n,), shards=(2 * n,), dtype="i4", compressors=None
        )
        array[...] = first
        assert read_array(array, slice(0, 3), device="host").tolist() == [first] * 3


@pytest.mark.parametrize("is_folder", [True, False])
def test_shard_that_is_deleted_or_replaced_by_a_directory_is_an_error_once(local, settled, is_folder):
    array = write(local, DATA, **SHARDED)
    read_array(array, device="host")

    (local.root / "c/0/0").unlink()
    if is_folder:
        (local.root / "c/0/0").mkdir()

    with pytest.raises(StoreReadError, match="shard 'c/0/0' of array '/' has disappeared"):
        read_array(array, device="host")
    assert_same_bits(read_array(array, device="host"), np.concatenate([np.zeros((10, 12), "f4"), DATA[10:]]))


@pytest.mark.parametrize("store", STORES)
def test_shard_that_is_cut_is_an_error(tmp_path, settled, store):
    write(LocalStore(tmp_path), DATA, **SHARDED)
    array = zarr.open_array(STORES[store](tmp_path), mode="r")
    read_array(array, slice(9), device="host")

    os.truncate(tmp_path / "c" / "0" / "0", 100)

    with pytest.raises(ShardIndexError, match="c/0/0"):
        read_array(array, slice(9), device="host")
    assert_same_bits(read_array(array, slice(10, None), device="host"), DATA[10:])


@pytest.mark.parametrize("n_changes", [1, 2])
def test_shard_that_is_replaced_during_a_read_is_read_anew(local, monkeypatch, n_changes):
    array, number = write(local, DATA, **SHARDED), iter(range(2, 4))
    after_index(monkeypatch, lambda: rewritten(local.root, DATA * next(number), "replaced"), n_changes)

    assert_same_bits(read_array(array, ONE_CHUNK, device="host"), (DATA * (n_changes + 1))[ONE_CHUNK])


@pytest.mark.both_ways
@pytest.mark.parametrize("selection", [ONE_CHUNK, slice(10), (slice(9), 5), ([0, 3, 9], [0, 11])])
def test_shard_that_is_replaced_during_every_read_comes_in_one_answer(local, monkeypatch, selection):
    data, number = DATA + 1, iter(range(2, 1000))
    array = write(local, data, **SHARDED)
    after_index(monkeypatch, lambda: rewritten(local.root, data * next(number), "replaced"), 1000)

    read = read_array(array, selection, device="host")

    versions = read / zarr.array(data).oindex[selection]
    assert versions.min() == versions.max() >= 1


def test_file_that_is_written_to_during_every_read_is_an_error(local, monkeypatch):
    array = write(local, DATA, **SHARDED)
    path, read = local.root / "c" / "0" / "0", os.preadv

    def read_then_touch(*args):
        done = read(*args)
        os.utime(path, ns=(0, next(times)))
        return done

    times = iter(range(1000))
    monkeypatch.setattr(os, "preadv", read_then_touch)

    with pytest.raises(StoreReadError, match="replaced while it was read") as caught:
        read_array(array, ONE_CHUNK, device="host")

    assert str(path) in str(caught.value)


def test_large_zstd_chunk_that_is_replaced_while_it_is_decoded_is_an_error_or_new(tmp_path, monkeypatch):
    data = np.arange(5_000_000, dtype="f4")
    layout = {"chunks": data.shape, "shards": data.shape, "compressors": ZstdCodec(level=1)}
    array = write(LocalStore(tmp_path), data, **layout)

    after_index(monkeypatch, lambda: write(LocalStore(tmp_path), data * 2, **layout, overwrite=True), 1)

    assert_same_bits(read_array(array, device="host"), data * 2)


def after_index(monkeypatch, change, n_changes):
    """Change an array after each of the next reads of an index."""
    original, left = shard_indexes.decode_shard_index, iter(range(n_changes))

    def decode_then_change(*args, **keywords):
        index = original(*args, **keywords)
        if next(left, None) is not None:
            change()
        return index

    monkeypatch.setattr(shard_indexes, "decode_shard_index", decode_then_change)


@settings(max_examples=20)  # each writes a store several times
@given(seed=st.integers(0, 10**6))
def test_reads_between_rewrites_are_of_the_latest_version(tmp_path_factory, seed):
    chosen, path = random.Random(seed), tmp_path_factory.mktemp("rewritten")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
        array, number = write(LocalStore(path), DATA, **SHARDED), 1
        for _ in range(4):
            if chosen.random() < 0.4:
                number += 1
                sparse = np.where(np.arange(12) // 3 % chosen.randint(1, 3) == 0, DATA * number, np.float32(0))
                rewritten(path, sparse, chosen.choice(["replaced", "in place"]))
            y, x = chosen.randrange(20), chosen.randrange(12)
            selection = chosen.choice([(slice(y, y + 3), slice(x, x + 3)), (slice(y, None),), (slice(None), x)])
            assert_same_bits(read_array(array, selection, device="host"), np.ascontiguousarray(array[selection]))


def test_writer_and_readers_at_once_never_give_a_mixture(local, settled):
    """Every chunk of a read comes from one version of its shard, whatever is written meanwhile."""
    array = write(local, np.ones((20, 12), "f4"), chunks=(2, 12), shards=(20, 12), compressors=None)
    stop = threading.Event()

    def keep_writing():
        for number in itertools.count(2):
            if stop.is_set():
                break
            array[...] = np.full((20, 12), number, "f4")

    writer = threading.Thread(target=keep_writing)
    writer.start()
    seen = []
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            with suppress(StoreReadError):
                seen.append(read_array(array, device="host"))
    finally:
        stop.set()
        writer.join()

    assert seen
    assert all((values == values[0, 0]).all() for values in seen)


@pytest.mark.filterwarnings("ignore:This process")
def test_fork_starts_with_an_empty_cache(local, settled):
    array = write(local, DATA, **SHARDED)
    read_array(array, device="host")
    assert len(index_cache.cache) == 2

    pid = os.fork()
    if pid == 0:
        os._exit(len(index_cache.cache))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
