"""Arrays that are stored in another way than when they were opened: errors say that, and not that they are damaged."""

import pickle
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.damage import explained
from helpers.data.datasets import open_ours
from helpers.stores.fakes import Wrapper, drop, put, take
from zarr.codecs import BloscCodec, ZstdCodec

from xarray_gpuzarr import CorruptChunkError, MetadataError, StoreReadError, read_array

pytestmark = [pytest.mark.every_decoder, pytest.mark.doubtful_frames]

DATA = np.arange(1, 257, dtype="f4").reshape(16, 16)
PLAIN = {"chunks": (4, 4), "compressors": ZstdCodec()}
SHARDED = PLAIN | {"shards": (8, 8)}
V2 = {"chunks": (4, 4), "zarr_format": 2, "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
CHANGES = {
    "dtype": (PLAIN, PLAIN, "f8", 'data_type was "float32" and is "float64"'),
    "dtype of shards": (SHARDED, SHARDED, "f8", 'data_type was "float32" and is "float64"'),
    "dtype, format 2": (V2, V2, "f8", 'dtype was "<f4" and is "<f8"'),
    "codec": (PLAIN, PLAIN | {"compressors": BloscCodec()}, "f4", '"name": "blosc"'),
    "length of chunks": (PLAIN, PLAIN | {"chunks": (16, 2)}, "f4", '"chunk_shape": [16, 2]'),
    "shards": (PLAIN, SHARDED, "f4", '"name": "sharding_indexed"'),
    "no shards": (SHARDED, PLAIN, "f4", '"chunk_shape": [8, 8]'),
}
"""How an array is written first and then, the second dtype, and what the message must hold."""


def write(store, data, how):
    """Write an array `t` in place of what there is, and return it."""
    names = {} if how.get("zarr_format") == 2 else {"dimension_names": ["y", "x"]}
    zarr.open_group(store, mode="w", zarr_format=how.get("zarr_format", 3))
    array = zarr.create_array(store, name="t", shape=data.shape, dtype=data.dtype, **how, **names)
    array[...] = data
    return array


@pytest.mark.every_value
@pytest.mark.parametrize("change", CHANGES)
def test_an_open_array_that_is_written_anew_says_what_has_changed(store, change):
    before, after, dtype, said = CHANGES[change]
    write(store, DATA, before)
    ds = open_ours(store, consolidated=False)
    write(store, DATA.astype(dtype), after)

    with explained(MetadataError, "'/t'", said, "open it again", match="not those that it was opened with"):
        ds.t.load()
    assert_same_bits(open_ours(store, consolidated=False).t.values, DATA.astype(dtype))


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_a_pickled_dataset_whose_store_is_written_anew_says_what_has_changed(local, chunks):
    write(local, DATA, SHARDED)
    there = pickle.dumps(open_ours(local, consolidated=False, chunks=chunks))
    write(local, DATA[:10].astype("f8"), SHARDED)

    with explained(MetadataError, "shape was [16, 16] and is [10, 16]", 'data_type was "float32" and is "float64"'):
        pickle.loads(there).t.load()


def test_points_and_arrays_of_zarr_say_so_too(memory):
    write(memory, DATA, PLAIN)
    array, ds = zarr.open_array(memory, path="t", mode="r"), open_ours(memory, consolidated=False)
    write(memory, DATA.astype("f8"), PLAIN)

    with pytest.raises(MetadataError, match="'/t'"):
        ds.t.isel(y=xr.Variable("point", [0, 9]), x=xr.Variable("point", [1, 2])).load()
    with pytest.raises(MetadataError, match="'/t'"):
        read_array(array, device="host")


def test_consolidated_metadata_that_are_out_of_date_are_named(memory):
    write(memory, DATA, SHARDED)
    zarr.consolidate_metadata(memory)
    stale = take(memory, "zarr.json")
    write(memory, DATA.astype("f8"), SHARDED)
    put(memory, "zarr.json", stale)

    with explained(MetadataError, 'data_type was "float32" and is "float64"', match=r"zarr\.consolidate_metadata"):
        open_ours(memory, consolidated=True).t.load()


def test_a_damaged_chunk_of_an_array_that_has_become_longer_is_damaged(memory):
    array = write(memory, DATA, PLAIN)
    ds = open_ours(memory, consolidated=False)
    array.append(DATA)
    array.attrs["title"] = "longer"
    put(memory, "t/c/0/0", b"no chunk")

    with pytest.raises(CorruptChunkError, match="the stored chunk is damaged"):
        ds.t.load()


@pytest.mark.parametrize("document", [None, b"{", b"[]", b'{"zarr_format": 3, "node_type": "group"}'])
def test_an_array_whose_metadata_cannot_be_told_any_more_has_a_damaged_chunk(memory, document):
    write(memory, DATA, PLAIN)
    ds = open_ours(memory, consolidated=False)
    put(memory, "t/c/0/0", b"no chunk")
    drop(memory, "t/zarr.json")
    if document is not None:
        put(memory, "t/zarr.json", document)

    with pytest.raises(CorruptChunkError, match="the stored chunk is damaged"):
        ds.t.load()


class AskedForMetadata(Wrapper):
    """Remembers requests for an array's metadata."""

    asked: ClassVar = []

    async def get(self, key, prototype, byte_range=None):
        self.asked += [key] * key.endswith("t/zarr.json")
        return await super().get(key, prototype, byte_range)


def test_metadata_are_asked_for_once_and_only_by_a_read_that_fails(memory):
    write(memory, DATA, PLAIN)
    ds = open_ours(AskedForMetadata(memory), consolidated=False)
    AskedForMetadata.asked.clear()

    ds.t.copy().load()
    assert AskedForMetadata.asked == []

    put(memory, "t/c/0/0", b"no chunk")
    with pytest.raises(CorruptChunkError):
        ds.t.load()
    assert AskedForMetadata.asked == ["t/zarr.json"]


def test_an_array_that_zarr_reads_says_what_has_changed(memory):
    around = {"serializer": zarr.codecs.ShardingCodec(chunk_shape=(4, 4)), "chunks": (8, 8), "compressors": ZstdCodec()}
    write(memory, DATA, around)
    array = zarr.open_array(memory, path="t", mode="r")
    write(memory, DATA.astype("f8"), around)

    with explained(MetadataError, 'data_type was "float32" and is "float64"'):
        read_array(array, device="host")

    write(memory, DATA, around)
    put(memory, "t/c/0/0", b"no shard")
    with pytest.raises(StoreReadError, match="zarr-python cannot read array '/t'"):
        read_array(array, device="host")
