"""Objects and index entries of gigabytes where a chunk has a few bytes: refused, with no memory taken for them."""

import json
import os
import zipfile

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.damage import explained
from helpers.loops import leaving_all
from helpers.stores.fakes import AskedStore, put, take
from helpers.stores.shards import index_bytes
from helpers.traced import takes_less_than
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore, ZipStore

from xarray_gpuzarr import CorruptChunkError, ShardIndexError, StoreReadError, batches, read_array, zarr_pipeline
from xarray_gpuzarr.fetch import index_cache

pytestmark = [pytest.mark.doubtful_frames, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

MIB = 1024 * 1024
LENGTH = 256 * MIB
MOST_NBYTES = 48 * MIB
"""That a read may take beside: pinned slots, tables, and objects that are just not too long."""
CODECS = {
    "raw": None,
    "zstd": ZstdCodec(),
    "gzip": GzipCodec(),
    "zlib": zn.Zlib(),
    "lz4": zn.LZ4(),
    "blosc": BloscCodec(),
    "bz2": zn.BZ2(),
    "crc32c": Crc32cCodec(),
    "zstd, crc32c": [ZstdCodec(), Crc32cCodec()],
    "shuffle, zstd": [zn.Shuffle(elementsize=4), ZstdCodec()],
    "fletcher32, gzip": [zn.Fletcher32(), GzipCodec()],
}
LAYOUTS = {
    "unsharded": {"chunks": (16,)},
    "sharded": {"chunks": (16,), "shards": (32,)},
    "index in front": {"chunks": (16,), "shards": {"shape": (32,), "index_location": "start"}},
    "format 2": {"chunks": (16,), "zarr_format": 2},
}
V2_CODECS = {name: {"id": name} for name in ("zstd", "gzip", "zlib", "lz4", "bz2")}


def written(store, layout, codec):
    """Write two chunks of 64 bytes; return the array, and the key of the object with the first one."""
    keywords = dict(LAYOUTS[layout])
    if layout == "format 2":
        keywords["compressors"] = V2_CODECS.get(codec)
    else:
        keywords["compressors"] = CODECS[codec]
    array = zarr.create_array(store, shape=(64,), dtype="i4", fill_value=7, **keywords)
    array[:32] = np.arange(32, dtype="i4")
    return array, "0" if layout == "format 2" else "c/0"


def lengthen(path, layout):
    """Let the object of the first chunk, or the entry of the first chunk in its index, be of `LENGTH`."""
    if layout == "sharded":
        os.truncate(path, LENGTH)
        with path.open("ab") as file:
            file.write(index_bytes([(0, LENGTH), (2**64 - 1, 2**64 - 1)]))
    elif layout == "index in front":
        index = index_bytes([(36, LENGTH - 36), (2**64 - 1, 2**64 - 1)])
        path.write_bytes(index)
        os.truncate(path, LENGTH)
    else:
        os.truncate(path, LENGTH)


SELECTIONS = {"all": slice(16), "some": slice(3, 9), "points": [0, 3, 15]}


@pytest.mark.every_decoder
@pytest.mark.both_ways
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_chunk_in_a_file(tmp_path, layout, codec, selection):
    array, key = written(LocalStore(tmp_path), layout, codec)
    lengthen(tmp_path / key, layout)

    with takes_less_than(MOST_NBYTES), explained(CorruptChunkError, f"'{key}'", "chunk (0,)", "of 64 bytes"):
        read_array(array, selection, device="host")
    assert_same_bits(read_array(array, slice(32, 64), device="host"), np.full(32, 7, "i4"))


def test_a_long_chunk_that_the_loops_leave(tmp_path, monkeypatch):
    array, key = written(LocalStore(tmp_path), "unsharded", "zstd")
    lengthen(tmp_path / key, "unsharded")
    leaving_all(monkeypatch)

    with takes_less_than(MOST_NBYTES), explained(CorruptChunkError, str(LENGTH)):
        read_array(array, device="host")


@pytest.mark.parametrize("codec", CODECS)
def test_a_long_chunk_in_batches_and_in_the_codec_pipeline(tmp_path, codec):
    zarr.create_group(tmp_path)
    array = zarr.create_array(
        tmp_path, name="t", shape=(64,), chunks=(16,), dtype="i4", compressors=CODECS[codec], dimension_names=["x"]
    )
    array[:] = 1
    os.truncate(tmp_path / "t/c/0", LENGTH)
    opened = xr.open_dataset(tmp_path, engine="gpuzarr", device="host", consolidated=False)

    with takes_less_than(MOST_NBYTES), pytest.raises(CorruptChunkError):
        list(batches(opened, {"x": 4}, 4))
    with zarr_pipeline():
        array = zarr.open_array(tmp_path, path="t", mode="r")
    with takes_less_than(MOST_NBYTES), pytest.raises(CorruptChunkError):
        array[3:5]


@pytest.mark.every_decoder
@pytest.mark.both_ways
@pytest.mark.parametrize("kind", [MemoryStore, AskedStore])
@pytest.mark.parametrize("codec", CODECS)
def test_a_long_object_of_another_store(kind, codec):
    array, key = written(kind(), "unsharded", codec)
    put(array.store, key, bytes(24 * MIB))

    with (
        takes_less_than(MOST_NBYTES),
        explained(CorruptChunkError, f"'{key}'", "chunk (0,)", str(24 * MIB), "of 64 bytes"),
    ):
        read_array(array, slice(16), device="host")


@pytest.mark.every_decoder
@pytest.mark.both_ways
@pytest.mark.parametrize("kind", [MemoryStore, AskedStore])
@pytest.mark.parametrize("n_wanted", [16, 32])
def test_a_long_entry_of_another_store(kind, n_wanted):
    array, key = written(kind(), "sharded", "zstd")
    shard = take(array.store, key)
    put(array.store, key, bytes(4 * MIB) + index_bytes([(0, 4 * MIB), (2**64 - 1, 2**64 - 1)]))

    with takes_less_than(MOST_NBYTES), explained(CorruptChunkError, f"'{key}'", "chunk (0,)", str(4 * MIB)):
        read_array(array, slice(n_wanted), device="host")

    put(array.store, key, shard)
    assert_same_bits(read_array(array, slice(32), device="host"), np.arange(32, dtype="i4"))


@pytest.mark.every_decoder
@pytest.mark.parametrize("n_wanted", [16, 32])
@pytest.mark.parametrize("layout", ["unsharded", "sharded"])
def test_an_entry_of_a_zip_file_that_is_a_few_bytes_compressed(tmp_path, layout, n_wanted):
    written(LocalStore(tmp_path / "s"), layout, "zstd")
    lengthen(tmp_path / "s/c/0", layout)
    with zipfile.ZipFile(tmp_path / "s.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.write(tmp_path / "s/zarr.json", "zarr.json")
        file.write(tmp_path / "s/c/0", "c/0")
    array = zarr.open_array(ZipStore(tmp_path / "s.zip", mode="r"), mode="r")

    with takes_less_than(MOST_NBYTES), explained(CorruptChunkError, "'c/0'", "chunk (0,)"):
        read_array(array, slice(n_wanted), device="host")


@pytest.mark.parametrize("layout", ["unsharded", "sharded"])
def test_a_link_to_a_device_is_no_chunk(tmp_path, layout):
    array, key = written(LocalStore(tmp_path), layout, "zstd")
    (tmp_path / key).unlink()
    (tmp_path / key).symlink_to("/dev/zero")

    with takes_less_than(MOST_NBYTES), explained(StoreReadError, key, "device"):
        read_array(array, device="host")


def test_an_index_that_was_mended_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    index_cache.cache.clear()
    array, key = written(LocalStore(tmp_path), "sharded", "zstd")
    shard = (tmp_path / key).read_bytes()
    lengthen(tmp_path / key, "sharded")
    with pytest.raises(CorruptChunkError):
        read_array(array, device="host")

    (tmp_path / key).write_bytes(shard)

    assert_same_bits(read_array(array, slice(32), device="host"), np.arange(32, dtype="i4"))
    index_cache.cache.clear()


@pytest.mark.both_ways
def test_an_index_that_is_longer_than_its_shard(tmp_path):
    _, key = written(LocalStore(tmp_path), "sharded", "zstd")
    document = json.loads((tmp_path / "zarr.json").read_text())
    document["chunk_grid"]["configuration"]["chunk_shape"] = [2**40]
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    os.truncate(tmp_path / key, LENGTH)

    with takes_less_than(MOST_NBYTES), explained(ShardIndexError, key, f"{LENGTH} bytes where {2**40 + 4} are needed"):
        read_array(zarr.open_array(tmp_path, mode="r"), [0, 3], device="host")


@pytest.mark.both_ways
def test_a_streamed_frame_of_endless_empty_blocks(tmp_path):
    n = 17 * MIB
    array = zarr.create_array(tmp_path, shape=(n,), chunks=(n,), dtype="u1", compressors=ZstdCodec())
    array[:] = 1
    frame = (tmp_path / "c/0").read_bytes()
    empty = bytes(3) * (array.nbytes * 4 // 3 + MIB)
    (tmp_path / "c/0").write_bytes(frame[:13] + empty + frame[13:])

    with explained(CorruptChunkError, "at most"):
        read_array(array, device="host")
