"""Little reads of local files: not planned, done by one call of the loops; what these leave is read as ever."""

import os
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from itertools import product
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import little_reads, without_loops
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError, progress, read_array, zarr_pipeline
from xarray_gpuzarr.codec_pipeline import reading
from xarray_gpuzarr.decoders.host import HostDecoder, little
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.native import loops
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read.stored_array import stored_array
from xarray_gpuzarr.read.trunk import read

pytestmark = pytest.mark.usefixtures("compiled", "known_indexes")

DATA = counting((32, 24)).astype("i4")
CHUNKS = (8, 6)
LAYOUTS = {
    "sharded": {"chunks": CHUNKS, "shards": (32, 24)},
    "index first": {"chunks": CHUNKS, "shards": (16, 24)},
    "unsharded": {"chunks": CHUNKS},
    "format 2": {"chunks": CHUNKS, "zarr_format": 2},
}
ONE = slice(9, 14), slice(6, 12)
"""Of one chunk."""


@pytest.fixture(params=[1, 3])
def n_threads(request, monkeypatch):
    """Threads that the loops start for any read."""
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(request.param))
    monkeypatch.setattr(host, "_LOOP_THREAD_S", 1e-9)


@pytest.fixture
def array(tmp_path):
    """One shard of 16 chunks, whose index is known."""
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS["sharded"])
    read_array(array, device="host")
    return array


def read_twice(array, selection):
    """Read with an index that is known, at the latest the second time; say of that time what the loops did."""
    read_array(array, selection, device="host")
    with little_reads() as noted:
        return read_array(array, selection, device="host"), noted


# ---- which, and what they give


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), BloscCodec(cname="lz4"), GzipCodec()], ids=type)
def test_a_box_of_one_object_is_read_at_once(tmp_path, layout, compressors):
    if layout == "format 2" and compressors is not None:
        compressors = "auto"
    array = write(LocalStore(tmp_path), DATA, compressors=compressors, **LAYOUTS[layout])

    found, noted = read_twice(array, ONE)

    assert_same_bits(found, DATA[ONE])
    assert noted == [True]


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize(
    "selection", [..., (slice(3, 30), slice(1, 23, 5)), (slice(None, None, 9), 7), (8, 5)], ids=str
)
def test_boxes_of_several_chunks(array, selection):
    found, noted = read_twice(array, selection)

    assert_same_bits(np.asarray(found), np.asarray(DATA[selection]))
    assert noted == [True]


@pytest.mark.usefixtures("n_threads")
@pytest.mark.parametrize("layout", [{"chunks": CHUNKS, "shards": (16, 12)}, {"chunks": (16, 12)}], ids=str)
@pytest.mark.parametrize(
    "selection",
    [
        ...,
        (slice(4, 20), slice(3, 20)),
        (slice(15, 17), 5),
        (slice(None, None, -5), slice(2, 24, 7)),
        (slice(1, 32, 30), slice(3, 24, 19)),
    ],
    ids=str,
)
def test_boxes_of_several_objects(tmp_path, layout, selection):
    array = write(LocalStore(tmp_path), DATA, **layout)

    found, noted = read_twice(array, selection)

    assert_same_bits(np.ascontiguousarray(found), np.ascontiguousarray(DATA[selection]))
    assert noted == [True]


@pytest.mark.parametrize("step", [2**62, 2**63 - 3, 2**63 - 1])
def test_steps_of_any_length(array, step):
    selection = slice(3, None, step), slice(1, None, 7)

    found, noted = read_twice(array, selection)

    assert_same_bits(found, DATA[selection])
    assert noted == [True]
    index_cache.cache.clear()
    assert_same_bits(read_array(array, selection, device="host"), DATA[selection])  # planned


def test_memory_for_decoding_lives_until_the_loops_are_done(array, monkeypatch):
    given, lived, read_objects = [], [], loops().read_objects

    def forgotten(_name, nbytes):
        memory = np.empty(nbytes, np.uint8)
        given.append(weakref.ref(memory))
        return memory

    def noting(*structs):
        lived.append([memory() is not None for memory in given])
        return read_objects(*structs)

    monkeypatch.setattr(little, "buffer", forgotten)  # as long buffers are, which threads do not keep
    monkeypatch.setattr(host, "loops", lambda: SimpleNamespace(read_objects=noting))

    assert_same_bits(read_array(array, ONE, device="host"), DATA[ONE])
    assert lived == [[True, True]]


def lengths(most):
    return st.lists(st.integers(1, most), min_size=1, max_size=4)


SLICES = st.one_of(
    st.just(slice(None)),
    st.builds(slice, st.integers(0, 20), st.integers(1, 30), st.integers(1, 9)),
    st.builds(slice, st.none(), st.none(), st.integers(-4, -1)),
    st.integers(0, 3),
)


@settings(max_examples=5 * settings().max_examples // 2)
@given(data=st.data(), chunks=lengths(6))
def test_random_arrays(tmp_path_factory, data, chunks):
    ndim = len(chunks)
    per_shard = [data.draw(st.integers(1, 4)) for _ in chunks]
    shape = [data.draw(st.integers(4, (30, 30, 14, 8)[ndim - 1])) for _ in chunks]
    dtype = data.draw(st.sampled_from(["?", "u1", "<i2", ">i4", "<f8", ">c16"]))
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = zarr.create_array(
        tmp_path_factory.mktemp("a"),
        data=values,
        chunks=chunks,
        shards=data.draw(st.sampled_from([None, tuple(a * b for a, b in zip(chunks, per_shard, strict=True))])),
        filters=data.draw(st.sampled_from([None, TransposeCodec(order=tuple(reversed(range(ndim))))])),
        compressors=data.draw(st.sampled_from([None, ZstdCodec(), BloscCodec(cname="lz4", typesize=4), GzipCodec()])),
        fill_value=data.draw(st.sampled_from([0, 1])),
    )
    np.testing.assert_array_equal(array[...], values)
    read_array(array, device="host")

    for _ in range(6):
        selection = tuple(data.draw(st.one_of(SLICES, st.integers(0, n - 1))) for n in shape)
        found, expected = read_array(array, selection, device="host"), values[selection]
        assert_same_bits(np.asarray(found).astype(expected.dtype), np.asarray(expected))


def test_outputs_of_any_layout(array):
    stored, decoder = stored_array(array), HostDecoder()
    rooms = [np.full((40, 40), -1, "i4"), np.full((40, 40), -1, "i4", order="F")]
    views = [lambda a: a[3:13, 2:9], lambda a: a[30:10:-2, 1:29:4], lambda a: a.T[:10, 5:12]]

    for room, view in product(rooms, views):
        out = view(room)
        with little_reads() as noted:
            found = read(stored, (slice(5, 15), slice(4, 11)), decoder, out)
        assert found is out
        assert noted == [True]
        assert_same_bits(np.ascontiguousarray(out), DATA[5:15, 4:11])
        assert (room == -1).sum() == room.size - out.size
        room[...] = -1


@pytest.mark.parametrize("kind", ["in disorder", "of the same bytes"])
def test_chunks_of_a_shard_wherever_they_lie(array, tmp_path, kind):
    path, expected = tmp_path / "c/0/0", DATA.copy()
    shard = path.read_bytes()
    tail = 16 * 16 + 4
    index = np.frombuffer(shard[-tail:-4], "<u8").reshape(16, 2).copy()
    chunks = [shard[at : at + n] for at, n in index.tolist()]
    if kind == "in disorder":
        order = np.random.default_rng(1).permutation(16)
        body = b"".join(chunks[n] + b"gap" for n in order)
        index[order, 0] = np.cumsum([0] + [len(chunks[n]) + 3 for n in order])[:-1]
    else:
        body = shard[:-tail]
        index[[2, 9]] = index[6]
        expected[0:8, 12:18] = expected[16:24, 6:12] = expected[8:16, 12:18]
    path.write_bytes(body + index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little"))

    found, noted = read_twice(array, (slice(1, 31), slice(1, 23)))

    assert_same_bits(found, expected[1:31, 1:23])
    assert noted == [True]


@pytest.mark.parametrize("selection", [ONE, (slice(9, 19), slice(6, 14))], ids=["one chunk", "several"])
def test_they_count_as_others(tmp_path, monkeypatch, selection):
    arrays = [write(LocalStore(tmp_path / name), DATA, **layout) for name, layout in LAYOUTS.items()]

    def counts():
        before = counters.snapshot()
        for array in arrays:
            read_array(array, selection, device="host")
        found = counters.snapshot() - before
        read_nbytes = found.read_nbytes if selection == ONE else None  # gaps between several are read or not
        return found.n_reads, found.n_shards, found.decoded_nbytes, read_nbytes

    counts()
    with little_reads() as noted:
        ours = counts()
    without_loops(monkeypatch)

    assert noted == [True] * len(LAYOUTS)
    assert ours == counts()


@pytest.mark.parametrize("where", ["zarr's event loop", "a thread"])
def test_the_codec_pipeline_reads_so(tmp_path, where, monkeypatch):
    if where == "a thread":
        monkeypatch.setattr(reading, "_LITTLE_S", 0.0)
    write(LocalStore(tmp_path), DATA, **LAYOUTS["sharded"])
    with zarr_pipeline():
        array = zarr.open_array(LocalStore(tmp_path), mode="r")
        array[...]
        with little_reads() as noted:
            assert_same_bits(array[3:20, 2:21:3], DATA[3:20, 2:21:3])
            assert_same_bits(array.oindex[ONE], DATA[ONE])
    assert noted == [True, True]


def test_many_threads(array, tmp_path):
    other = write(LocalStore(tmp_path / "other"), -DATA, **LAYOUTS["unsharded"])
    boxes = [(slice(y, y + 7), slice(x, x + 5)) for y in range(0, 24, 8) for x in range(0, 18, 6)] * 20

    with ThreadPoolExecutor(8) as pool:
        ours = pool.map(lambda box: read_array(array, box, device="host"), boxes)
        others = pool.map(lambda box: read_array(other, box, device="host"), boxes)

    for box, one, two in zip(boxes, ours, others, strict=True):
        assert_same_bits(one, DATA[box])
        assert_same_bits(two, -DATA[box])


# ---- which are planned


def planned(array, selection, values=DATA):
    found, noted = read_twice(array, selection)
    assert_same_bits(np.asarray(found), values[selection])
    return noted == []


def test_what_the_loops_do_not_know(tmp_path):
    layouts = {
        "many shards": {"chunks": (4, 6), "shards": (4, 6)},
        "many files": {"chunks": (4, 6)},
        "checksum": {**LAYOUTS["sharded"], "compressors": [ZstdCodec(), Crc32cCodec()]},
    }
    for name, layout in layouts.items():
        assert planned(write(LocalStore(tmp_path / name), DATA, **layout), (slice(4, 20), slice(3, 20)))
    assert planned(write(LocalStore(tmp_path / "points"), DATA, **LAYOUTS["sharded"]), (slice(3), np.array([1, 5, 9])))
    assert planned(write(MemoryStore(), DATA, **LAYOUTS["sharded"]), ONE)
    scalar = zarr.create_array(tmp_path / "scalar", shape=(), dtype="i4", fill_value=3)
    assert planned(scalar, (), np.array(3, "i4"))


def test_what_takes_long(tmp_path, monkeypatch):
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS["sharded"])
    monkeypatch.setattr(host, "CALL_S", 0)
    assert planned(array, ONE)
    monkeypatch.undo()
    many = write(LocalStore(tmp_path / "many"), counting((1500,)), chunks=(1,), shards=(1500,))
    assert_same_bits(read_twice(many, slice(None))[0], counting((1500,)))


def test_what_a_bar_is_shown_for(array):
    screen = StringIO()
    with progress(console=Console(file=screen, force_terminal=True)), little_reads() as noted:
        assert_same_bits(read_array(array, ONE, device="host"), DATA[ONE])
    assert noted == []


def test_without_loops(array, monkeypatch):
    without_loops(monkeypatch)
    assert planned(array, ONE)


# ---- what is left


def left(array, selection, values):
    found, noted = read_twice(array, selection)
    assert_same_bits(found, values[selection])
    return noted == [False]


def test_missing_chunks(tmp_path):
    values = DATA.copy()
    values[8:16, 6:12] = 7
    for name, layout in LAYOUTS.items():
        array = write(LocalStore(tmp_path / name), values, fill_value=7, **layout)
        assert left(array, ONE, values)
    for name, shards in {"several": (32, 24), "shards": (16, 12), "files": None}.items():
        array = write(LocalStore(tmp_path / name), values, fill_value=7, chunks=CHUNKS, shards=shards)
        assert left(array, (slice(0, 24), slice(4, 14)) if shards else (slice(8, 24), slice(0, 12)), values)


def test_after_one_that_was_left_others_are_planned_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(little, "_PAUSE", 5)
    values = DATA.copy()
    values[8:16, 6:12] = 7
    array = write(LocalStore(tmp_path), values, fill_value=7, **LAYOUTS["sharded"])
    read_array(array, ONE, device="host")

    with little_reads() as noted:
        for _ in range(13):
            read_array(array, ONE, device="host")
    assert noted == [False] * 3  # the first, the seventh, the thirteenth

    little._little_reads.cache_clear()
    other = slice(0, 8), slice(0, 6)
    with little_reads() as noted:
        for _ in range(13):
            assert_same_bits(read_array(array, other, device="host"), values[other])
    assert noted == [True] * 13


@pytest.mark.parametrize("how", ["over", "renamed"])
def test_a_shard_that_was_rewritten(array, tmp_path, how):
    path = tmp_path / "c/0/0"
    write(LocalStore(tmp_path / "new"), -DATA, **LAYOUTS["sharded"])
    new = tmp_path / "new/c/0/0"
    if how == "over":
        path.write_bytes(new.read_bytes())
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    else:
        new.replace(path)

    with little_reads() as noted:
        for _ in range(2):
            assert_same_bits(read_array(array, ONE, device="host"), -DATA[ONE])
    assert noted == [False, True]


def test_one_of_several_shards_that_was_rewritten(tmp_path):
    layout = {"chunks": CHUNKS, "shards": (16, 12)}
    array, selection = write(LocalStore(tmp_path), DATA, **layout), (slice(4, 20), slice(3, 20))
    read_array(array, device="host")
    write(LocalStore(tmp_path / "new"), -DATA, **layout)
    (tmp_path / "new/c/1/0").replace(tmp_path / "c/1/0")
    expected = DATA.copy()
    expected[16:, :12] *= -1

    with little_reads() as noted:
        for _ in range(2):
            assert_same_bits(read_array(array, selection, device="host"), expected[selection])
    assert noted == [False, True]


def test_a_shard_that_is_gone(array, tmp_path):
    (tmp_path / "c/0/0").unlink()

    with little_reads() as noted:
        assert_same_bits(read_array(array, ONE, device="host"), np.zeros_like(DATA[ONE]))
    assert noted == [False]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_chunk_is_named(tmp_path, layout):
    array = write(LocalStore(tmp_path), DATA, **LAYOUTS[layout])
    read_array(array, device="host")
    name = {"unsharded": "c/1/1", "format 2": "1.1"}.get(layout, "c/0/0")
    path = tmp_path / name
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[: len(data) * 3 // 4] = b"\xff" * (len(data) * 3 // 4)
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    with pytest.raises(CorruptChunkError, match=r"chunk \(1, 1\)"):
        read_array(array, ONE, device="host")


def test_a_file_that_is_not_in_memory(array, tmp_path):
    fd = os.open(tmp_path / "c/0/0", os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

    for _ in range(3):
        assert_same_bits(read_array(array, ONE, device="host"), DATA[ONE])


def test_a_path_that_c_cannot_take(array, monkeypatch):
    monkeypatch.setattr(little.LocalSource, "local_path", lambda source, key: f"{source.root}/\0{key}")
    with little_reads() as noted, pytest.raises(ValueError, match="null byte"):
        read_array(array, ONE, device="host")
    assert noted == []
