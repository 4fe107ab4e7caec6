"""Short reads: one call of the compiled loops gives what an ordinary read gives, or leaves the read to it."""

import os
import random
import threading
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.loops import require_loops
from helpers.outcome import outcome
from helpers.stores.fakes import put, take
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import FetchOptions, read_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.decoders.host import HostDecoder, chunk_cache
from xarray_gpuzarr.errors import CorruptChunkError
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read, stored_array

pytestmark = pytest.mark.timeout(60)

SHAPE, CHUNKS, SHARDS = (30, 20, 17), (5, 4, 6), (10, 8, 18)
DATA = np.random.default_rng(0).integers(1, 500, SHAPE).astype("i2")
CODECS = {
    "raw": None,
    "zstd": ZstdCodec(),
    "Blosc": BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=2),
    "gzip": GzipCodec(),
    "zstd with a checksum": (ZstdCodec(), Crc32cCodec()),
}


@pytest.fixture(autouse=True)
def loops_and_empty_caches(monkeypatch):
    """No chunk is known, and files are taken to be old at once."""
    require_loops()
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    monkeypatch.setattr(chunk_cache, "cache", chunk_cache.ChunkCache())
    index_cache.cache.clear()
    yield
    index_cache.cache.clear()


def written(store, *, codec="zstd", sharded=True, data=DATA, **keywords):
    zarr.create_array(
        store,
        data=data,
        chunks=CHUNKS,
        shards=SHARDS if sharded else None,
        compressors=CODECS[codec],
        overwrite=True,
        **keywords,
    )
    return zarr.open_array(store, mode="r")


def short_reads(read):
    """Return the result of `read`, and how many reads of it were short."""
    results = []
    original = HostDecoder.read_without_plan

    def spy(*arguments):
        results.append(original(*arguments))
        return results[-1]

    with patch.object(HostDecoder, "read_without_plan", spy):
        result = read()
    return result, sum(each is not None for each in results)


def counted_read(array, selection):
    """Return what a read gives, how many reads of it were short, and what the process has counted of it."""
    before = counters.snapshot()
    result, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    return result, n_short, counters.snapshot() - before


def box(draw, whole_chunks):
    """Draw a box inside one shard, of whole chunks if asked for."""
    box = []
    for length, chunk, shard in zip(SHAPE, CHUNKS, SHARDS, strict=True):
        first = draw(st.integers(0, (length - 1) // shard)) * shard
        end = min(first + shard, length)
        if whole_chunks:
            low = draw(st.sampled_from(range(first, end, chunk)))
            high = draw(st.sampled_from([*range(low + chunk, end, chunk), end]))
        else:
            low = draw(st.integers(first, end - 1))
            high = draw(st.integers(low + 1, end))
        box.append(slice(low, high))
    return tuple(box)


@pytest.fixture(scope="module", params=["files", "memory"])
def arrays(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("arrays")
    found = {}
    for codec, sharded in product(CODECS, (True, False)):
        store = MemoryStore() if request.param == "memory" else root / f"{codec} {sharded}"
        found[codec, sharded] = written(store, codec=codec, sharded=sharded)
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_boxes_are_what_numpy_selects(arrays, data):
    codec, sharded = data.draw(st.sampled_from(sorted(arrays)))
    selection = box(data.draw, data.draw(st.booleans()))
    for _ in range(3):  # with no index, with an index, and of chunks that were kept
        assert_same_bits(read_array(arrays[codec, sharded], selection, device="host"), DATA[selection])


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_a_part_of_a_chunk_in_memory_is_read_by_one_call(codec, sharded):
    array = written(MemoryStore(), codec=codec, sharded=sharded)
    selection = slice(6, 9), slice(4, 8), slice(6, 12)
    result, n_short, counts = counted_read(array, selection)
    assert n_short == 1
    assert_same_bits(result, DATA[selection])
    with patch.object(HostDecoder, "read_without_plan", lambda *_: None):
        _, _, planned = counted_read(array, selection)
    assert (counts.n_reads, counts.n_shards, counts.read_nbytes, counts.decoded_nbytes) == (
        planned.n_reads,
        planned.n_shards,
        planned.read_nbytes,
        planned.decoded_nbytes,
    )


@pytest.mark.parametrize("sharded", [True, False])
def test_a_write_to_memory_is_seen_at_once(sharded):
    store = MemoryStore()
    array = written(store, sharded=sharded)
    selection = slice(0, 5), slice(0, 4), slice(0, 6)
    for change in range(3):
        zarr.open_array(store, mode="r+")[...] = DATA + change
        result, n_short, _ = counted_read(array, selection)
        assert n_short == 1
        assert_same_bits(result, (DATA + change)[selection])


@pytest.mark.parametrize("sharded", [True, False])
def test_what_memory_lacks_is_the_fill_value(sharded):
    array = written(MemoryStore(), sharded=sharded, data=np.zeros(SHAPE, "i2"), fill_value=0)
    result, n_short, _ = counted_read(array, (slice(0, 5), slice(0, 4), slice(0, 6)))
    assert n_short == 0
    assert not result.any()


def damages(data):
    """Return damaged versions of the bytes of a shard or a chunk."""
    rng = random.Random(0)
    damaged = [data[:n] for n in (0, 1, 8, len(data) // 2, len(data) - 1)]
    for _ in range(60):
        changed = bytearray(data)
        changed[rng.randrange(len(data) - 200 if len(data) > 300 else 0, len(data))] ^= rng.randrange(1, 256)
        damaged.append(bytes(changed))
    return damaged


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("codec", ["raw", "zstd with a checksum", "Blosc"])
def test_damage_in_memory_has_the_outcome_of_an_ordinary_read(codec, sharded):
    store = MemoryStore()
    array = written(store, codec=codec, sharded=sharded)
    key, selection = "c/0/0/0", (slice(0, 5), slice(0, 4), slice(0, 6))
    for damaged in damages(take(store, key)):
        put(store, key, damaged)
        found = outcome(lambda: read_array(array, selection, device="host"))[0]
        with patch.object(HostDecoder, "read_without_plan", lambda *_: None):
            expected = outcome(lambda: read_array(array, selection, device="host"))[0]
        if isinstance(expected, tuple):
            assert found == expected
        else:
            assert_same_bits(found, expected)


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_a_whole_chunk_is_read_by_one_call(tmp_path, codec, sharded):
    array = written(tmp_path, codec=codec, sharded=sharded)
    selection = slice(5, 10), slice(4, 8), slice(6, 12)
    read_array(array, selection, device="host")  # reads the index
    result, n_short, counts = counted_read(array, selection)
    assert n_short == 1
    assert_same_bits(result, DATA[selection])
    assert (counts.n_reads, counts.n_shards, counts.decoded_nbytes) == (1, 1, result.nbytes)
    assert counts.read_nbytes > 0
    assert counts.n_cache_hits == counts.n_cache_misses == 0


def test_several_chunks_of_a_shard_are_read_by_one_call(tmp_path):
    array = written(tmp_path)
    selection = slice(10, 20), slice(8, 16), slice(None)
    read_array(array, selection, device="host")
    result, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 1
    assert_same_bits(result, DATA[selection])


@pytest.mark.parametrize("sharded", [True, False])
def test_a_part_of_a_kept_chunk_is_taken_from_memory(tmp_path, sharded):
    array = written(tmp_path, sharded=sharded)
    for _ in range(2):
        read_array(array, (0, slice(0, 4), slice(0, 6)), device="host")
    selection = slice(1, 5, 2), slice(3, 4), slice(2, 6)
    result, n_short, counts = counted_read(array, selection)
    assert n_short == 1
    assert_same_bits(result, DATA[selection])
    assert (counts.n_cache_hits, counts.n_cache_misses, counts.read_nbytes) == (1, 0, 0)


def test_parts_of_several_kept_chunks_are_taken_from_memory(tmp_path):
    array = written(tmp_path)
    selection = slice(0, 10), slice(0, 8, 2), slice(1, 11)
    for _ in range(2):
        read_array(array, selection, device="host")
    result, n_short, counts = counted_read(array, selection)
    assert n_short == 1
    assert_same_bits(result, DATA[selection])
    assert (counts.n_cache_hits, counts.n_cache_misses, counts.read_nbytes) == (8, 0, 0)


def test_parts_of_kept_chunks_are_taken_by_one_call_however_long_the_chunks_are(tmp_path):
    data = np.random.default_rng(2).integers(0, 50, (16, 512, 256)).astype("i2")
    array = zarr.create_array(tmp_path, data=data, chunks=(16, 256, 128), shards=data.shape)
    selection = slice(2, 13, 3), slice(250, 260), slice(120, 140)
    first, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 0  # decoding these chunks is worth further threads
    assert_same_bits(first, data[selection])
    read_array(array, selection, device="host")
    result, n_short, counts = counted_read(array, selection)
    assert n_short == 1
    assert_same_bits(result, data[selection])
    assert (counts.n_cache_hits, counts.n_cache_misses, counts.read_nbytes) == (4, 0, 0)


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("codec", ["raw", "zstd with a checksum", "Blosc"])
def test_a_long_chunk_is_read_by_one_call_unless_several_threads_copy_it(tmp_path, monkeypatch, codec, sharded):
    monkeypatch.setattr(chunk_cache, "fetch_options", lambda: FetchOptions(cache_nbytes=0))
    data = np.arange(6 * 1024 * 1024, dtype="i2").reshape(2, 3, 1024, 1024)
    shards = data.shape if sharded else None
    array = zarr.create_array(tmp_path, data=data, chunks=data.shape, shards=shards, compressors=CODECS[codec])
    read_array(array, (0, 0, 0, 0), device="host")  # reads the index
    for selection in [
        (0, slice(None), slice(None), slice(1, 1000)),
        (slice(None), 2, slice(5, 1024, 7)),
        (1, 2, 1023, 1023),
    ]:
        result, n_short = short_reads(lambda selection=selection: read_array(array, selection, device="host"))
        assert n_short == 1
        assert_same_bits(result, data[selection])
    result, n_short = short_reads(lambda: read_array(array, device="host"))
    assert n_short == 0
    assert_same_bits(result, data)


def test_a_missing_chunk_is_not_taken_for_the_first_one_of_its_shard(tmp_path):
    array = zarr.create_array(tmp_path, shape=SHAPE, dtype="i2", chunks=CHUNKS, shards=SHARDS, fill_value=7)
    array[0:5, 0:4, 0:6] = DATA[0:5, 0:4, 0:6]
    for _ in range(3):  # the chunk that is stored begins with the first byte, where the index says that missing ones do
        assert_same_bits(read_array(array, (0, slice(0, 4), slice(0, 6)), device="host"), DATA[0, 0:4, 0:6])
    assert (read_array(array, (5, slice(0, 4), slice(0, 6)), device="host") == 7).all()


def test_packed_values_are_masked_and_scaled(tmp_path):
    attributes = {"_FillValue": -1, "scale_factor": 0.1, "add_offset": 3.0}
    zarr.create_group(tmp_path).create_array(
        "v",
        data=np.where(DATA % 7 == 0, -1, DATA).astype("i2"),
        chunks=CHUNKS,
        shards=SHARDS,
        dimension_names=["t", "y", "x"],
        attributes=attributes,
    )
    ours = xr.open_dataset(tmp_path, engine="gpuzarr", device="host", consolidated=False, cache=False).v
    theirs = xr.open_dataset(tmp_path, engine="zarr", consolidated=False, cache=False).v
    selection = slice(5, 10), slice(4, 8), slice(6, 12)
    ours[selection].load()
    result, n_short = short_reads(lambda: ours[selection].values)
    assert n_short == 1
    assert_same_bits(result, theirs[selection].values)


def test_missing_chunks_are_left_to_an_ordinary_read(tmp_path):
    array = zarr.create_array(tmp_path, shape=SHAPE, dtype="i2", chunks=CHUNKS, shards=SHARDS, fill_value=7)
    array[0:5, 0:4, 0:6] = DATA[0:5, 0:4, 0:6]
    selection = slice(0, 10), slice(0, 4), slice(0, 6)
    expected = np.full(SHAPE, 7, "i2")
    expected[0:5, 0:4, 0:6] = DATA[0:5, 0:4, 0:6]
    read_array(array, selection, device="host")
    result, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 0
    assert_same_bits(result, expected[selection])


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_shard_that_was_replaced_is_read_anew(tmp_path, is_kept):
    array = written(tmp_path)
    selection = (0 if is_kept else slice(0, 5)), slice(0, 4), slice(0, 6)
    for _ in range(3):
        read_array(array, selection, device="host")
    _, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 1
    other = tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}).result()
    other[...] = DATA + 1000
    result, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 0
    assert_same_bits(result, (DATA + 1000)[selection])


def test_a_chunk_that_cannot_be_decoded_is_an_error(tmp_path):
    array = written(tmp_path, sharded=False)
    selection = slice(0, 5), slice(0, 4), slice(0, 6)
    read_array(array, selection, device="host")
    path = tmp_path / "c/0/0/0"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptChunkError):
        read_array(array, selection, device="host")


def test_an_array_to_be_filled_may_have_any_strides(tmp_path):
    stored, decoder = stored_array(written(tmp_path)), decoder_for("host")
    selection = slice(5, 10), slice(4, 8), slice(6, 12)
    out = np.zeros(SHAPE[::-1], "i2").T[selection]
    for _ in range(2):
        out[...] = 0
        assert read(stored, selection, decoder, out) is out
        assert_same_bits(np.ascontiguousarray(out), DATA[selection])


def test_without_a_cache_parts_of_chunks_are_read_by_one_call(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_cache, "fetch_options", lambda: FetchOptions(cache_nbytes=0))
    array = written(tmp_path)
    selection = slice(12, 19), slice(9, 15), slice(3, 16, 4)
    read_array(array, selection, device="host")
    result, n_short = short_reads(lambda: read_array(array, selection, device="host"))
    assert n_short == 1
    assert_same_bits(result, DATA[selection])


def test_a_forked_process_does_not_look_at_the_cache_of_its_parent(tmp_path):
    array = written(tmp_path)
    for _ in range(2):
        read_array(array, (0, slice(0, 4), slice(0, 6)), device="host")
    assert len(chunk_cache.cache.entries)
    child = os.fork()
    if not child:
        is_empty = not len(chunk_cache.cache.entries)
        same = np.array_equal(read_array(array, (1, slice(0, 4), slice(0, 6)), device="host"), DATA[1, :4, :6])
        os._exit(0 if is_empty and same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_read_side_by_side(tmp_path):
    array = written(tmp_path, codec="Blosc")
    rng = np.random.default_rng(1)
    chunks = rng.integers(0, (3, 2, 2), (300, 3))
    boxes = [tuple(slice(c * n, (c + 1) * n) for c, n in zip(chunk, CHUNKS, strict=True)) for chunk in chunks.tolist()]
    wrong = []

    def read(part):
        wrong.extend(b for b in part if not np.array_equal(read_array(array, b, device="host"), DATA[b]))

    threads = [threading.Thread(target=read, args=(boxes[i::6],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
