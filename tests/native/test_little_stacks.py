"""Stacked crops of local shards: not planned, one table for all shards; what the loops leave is read as ever."""

import os
import shutil
import time
import weakref

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.stacks import numpy_stack, stacks
from helpers.loops import little_reads, without_loops
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError, ShardIndexError
from xarray_gpuzarr.decoders.host import HostDecoder, job, little, little_stacks
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.decoders.host.native_rows import NativeJob
from xarray_gpuzarr.plan.stack import Crops, stack_target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read_target, stored_array

pytestmark = pytest.mark.usefixtures("compiled", "known_indexes")

DATA = counting((48, 36)).astype("i4")
LAYOUT = {"chunks": (4, 6), "shards": (16, 12), "compressors": ZstdCodec()}
AXES = [
    Crops(start=np.array([0, 30, 13, 30, 41, 5]), count=7),
    Crops(start=np.array([25, 0, 9, 3, 26, 11]), count=10),
]
"""Of eight shards, several chunks each; some are shared."""


def read_stack(array, axes=AXES, n_samples=6):
    stored = stored_array(array)
    target = stack_target(axes, n_samples, stored.spec.grid)
    out = np.full(target.shape, 99, stored.cast.dtype)
    return read_target(stored, stored.spec, target, HostDecoder(), out)


def expected(values, axes=AXES, n_samples=6):
    return np.ascontiguousarray(numpy_stack(values, axes, n_samples))


# ---- which, and what they give


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec()], ids=type)
def test_crops_of_several_shards(tmp_path, compressors, n_threads, monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(n_threads))
    monkeypatch.setattr(host, "_LOOP_THREAD_S", 1e-9)
    array = write(LocalStore(tmp_path), DATA, **LAYOUT | {"compressors": compressors})

    with little_reads() as noted:
        for _ in range(2):  # the first asks for the indexes
            assert_same_bits(read_stack(array), expected(DATA))
    assert noted == [True, True]


@settings(max_examples=5 * settings().max_examples // 2)
@given(data=st.data())
def test_random_stacks(tmp_path_factory, data):
    chunks = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    shape = [data.draw(st.integers(1, 17)) for _ in chunks]
    values = counting(tuple(shape)).astype(data.draw(st.sampled_from(["?", "u1", "<i2", "<f8"])))
    values[tuple(slice(0, n // 2) for n in shape)] = 0
    array = write(
        LocalStore(tmp_path_factory.mktemp("a")),
        values,
        chunks=chunks,
        shards=tuple(n * data.draw(st.integers(1, 3)) for n in chunks),
        filters=data.draw(st.sampled_from([None, TransposeCodec(order=tuple(reversed(range(len(chunks)))))])),
        compressors=data.draw(st.sampled_from([None, ZstdCodec(), BloscCodec(cname="zstd"), GzipCodec()])),
    )

    for _ in range(4):
        axes, n = data.draw(stacks(shape))
        assert_same_bits(read_stack(array, axes, n), expected(values, axes, n))


def test_chunks_and_shards_that_are_missing(tmp_path):
    values = DATA.copy()
    values[0:8, 24:30] = values[32:, :12] = 7
    array = write(LocalStore(tmp_path), values, fill_value=7, **LAYOUT)
    assert not (tmp_path / "c/2/0").exists()

    with little_reads() as noted:
        for _ in range(2):
            assert_same_bits(read_stack(array), expected(values))
        nothing = [slice(32, 48), slice(0, 12)]
        assert_same_bits(read_stack(array, nothing, 2), np.full((2, 16, 12), 7, "i4"))
    assert noted == [True] * 3


def test_as_many_calls_as_leave_others_their_turn(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    monkeypatch.setattr(job, "CALL_S", 0)

    with little_reads() as noted:
        assert_same_bits(read_stack(array), expected(DATA))
    assert noted == [True]


def test_chunks_between_which_bytes_are_not_in_memory(tmp_path):
    data = np.random.default_rng(0).integers(0, 99, (16, 1024)).astype("i4")
    array = write(LocalStore(tmp_path), data, chunks=(1, 1024), shards=(16, 1024), compressors=None)
    axes = [Crops(start=np.array([0, 9, 2]), count=1), slice(None)]
    read_stack(array, axes, 3)  # the index
    fd = os.open(tmp_path / "c/0/0", os.O_RDONLY)
    os.fsync(fd)
    for row in (1, 5):
        os.posix_fadvise(fd, row * 4096, 4096, os.POSIX_FADV_DONTNEED)
    try:
        found = os.preadv(fd, [bytearray(3 * 4096)], 0, os.RWF_NOWAIT)
    finally:
        os.close(fd)

    with little_reads() as noted:
        assert_same_bits(read_stack(array, axes, 3), expected(data, axes, 3))
    assert noted == [True]
    assert found in {4096, 3 * 4096}  # the latter where the system keeps what it was told to forget


def test_they_count_as_others(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    read_stack(array)

    def counts():
        before = counters.snapshot()
        read_stack(array)
        found = counters.snapshot() - before
        return found.n_reads, found.n_shards, found.decoded_nbytes

    with little_reads() as noted:
        ours = counts()
    without_loops(monkeypatch)

    assert noted == [True]
    assert ours == counts()


def test_memory_for_decoding_lives_until_the_loops_are_done(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    given, lived, read_rows = [], [], NativeJob.read_rows

    def forgotten(_name, nbytes):
        memory = np.empty(nbytes, np.uint8)
        given.append(weakref.ref(memory))
        return memory

    def noting(*arguments):
        lived.append([memory() is not None for memory in given])
        return read_rows(*arguments)

    monkeypatch.setattr(little_stacks, "buffer", forgotten)  # as long buffers are, which threads do not keep
    monkeypatch.setattr(NativeJob, "read_rows", noting)

    assert_same_bits(read_stack(array), expected(DATA))
    assert lived == [[True, True]]


# ---- which are planned


@pytest.mark.parametrize("keywords", [{"shards": None}, {"compressors": [ZstdCodec(), GzipCodec()]}], ids=str)
def test_what_the_loops_do_not_know(tmp_path, keywords):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT | keywords)

    with little_reads() as noted:
        assert_same_bits(read_stack(array), expected(DATA))
    assert noted == []


@pytest.mark.parametrize(("compressors", "limit"), [(ZstdCodec(), "_LOOPS_S"), (None, "CALL_S")], ids=str)
def test_what_takes_long(tmp_path, monkeypatch, compressors, limit):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT | {"compressors": compressors})
    monkeypatch.setattr(host, limit, 0)

    with little_reads() as noted:
        assert_same_bits(read_stack(array), expected(DATA))
    assert noted == []


@pytest.mark.parametrize(("limit", "n", "twice"), [("_MOST_ASKED", 7, True), ("_MOST_INDEX_NBYTES", 999, False)])
def test_many_indexes(tmp_path, monkeypatch, limit, n, twice):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    monkeypatch.setattr(little_stacks, limit, n)

    with little_reads() as noted:
        for _ in range(2):
            assert_same_bits(read_stack(array), expected(DATA))
    assert noted == [False, twice]


def test_other_stores_and_unevenly_spaced_elements(tmp_path):
    with little_reads() as noted:
        assert_same_bits(read_stack(write(MemoryStore(), DATA, **LAYOUT)), expected(DATA))
        axes = [np.array([[0, 1, 9], [3, 17, 18]]), slice(None)]
        array = write(LocalStore(tmp_path), DATA, **LAYOUT)
        assert_same_bits(read_stack(array, axes, 2), expected(DATA, axes, 2))
    assert noted == []


def test_after_one_that_was_left_others_are_planned_for_a_while(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    monkeypatch.setattr(little, "_PAUSE", 5)
    monkeypatch.setattr(little_stacks.LittleStack, "_read", lambda *_: None)

    with little_reads() as noted:
        for _ in range(13):
            assert_same_bits(read_stack(array), expected(DATA))
    assert noted == [False] * 3


# ---- what is left


@pytest.mark.parametrize("how", ["over", "renamed", "gone"])
@pytest.mark.parametrize("compressors", [ZstdCodec(), None], ids=["elsewhere", "where it was"])
def test_a_shard_that_was_replaced(tmp_path, how, compressors):
    layout = LAYOUT | {"compressors": compressors}
    array = write(LocalStore(tmp_path), DATA, **layout)
    read_stack(array)
    write(LocalStore(tmp_path / "new"), -DATA, **layout)
    path, new, values = tmp_path / "c/1/1", tmp_path / "new/c/1/1", DATA.copy()
    values[16:32, 12:24] *= -1
    if how == "renamed":
        new.replace(path)
    elif how == "over":
        shutil.copyfile(new, path)
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    else:
        path.unlink()
        values[16:32, 12:24] = 0

    with little_reads() as noted:
        for _ in range(2):
            assert_same_bits(read_stack(array), expected(values))
    assert noted == [False, True]


def damage(path, at):
    times, data = path.stat(), bytearray(path.read_bytes())
    data[at] = bytes(len(data[at]))
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_damaged_chunk_is_named(tmp_path):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    damage(tmp_path / "c/2/2", slice(0, -9 * 16))

    with little_reads() as noted, pytest.raises(CorruptChunkError, match="object 'c/2/2'"):
        read_stack(array)
    assert noted == [False]


def test_a_damaged_index_is_named(tmp_path):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    damage(tmp_path / "c/2/2", slice(-40, None))

    with little_reads() as noted, pytest.raises(ShardIndexError, match="'c/2/2'"):
        read_stack(array)
    assert noted == [False]


def test_a_path_that_c_cannot_take(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUT)
    read_stack(array)
    monkeypatch.setattr(little.LocalSource, "local_path", lambda source, key: f"{source.root}/\0{key}")

    with little_reads() as noted, pytest.raises(ValueError, match="null byte"):
        read_stack(array)
    assert noted == [False]
