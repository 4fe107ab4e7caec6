"""A few hundred mutated metadata documents, and sizes that no machine has; the helper reads any number of them."""

import json

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data import metadata_mutants
from helpers.data.corpus import counting
from helpers.data.damage import explained
from helpers.data.datasets import open_ours, open_stock
from helpers.stores.fakes import put, take
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from xarray_gpuzarr import HostMemoryError, MetadataError, StoreReadError, read_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.read import read_points, stored_array

pytestmark = [
    pytest.mark.every_combination,
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]


UNPLANNED = ShardingCodec(chunk_shape=(2,), index_codecs=[BytesCodec(), Crc32cCodec(), Crc32cCodec()])
"""Shards whose index only zarr-python reads."""


@pytest.mark.doubtful_frames
def test_mutated_metadata_are_refused_or_read_right():
    counts = metadata_mutants.fuzz(250, seed=5)

    assert min(counts[kind] for kind in ("read alike", "opened alike", "refused")) > 10


def test_values_that_nobody_wrote_are_found_out(monkeypatch):
    monkeypatch.setattr(
        metadata_mutants,
        "read_array",
        lambda array, corner, **_: metadata_mutants.host_memory.empty((2, 2), np.dtype("i4")),
    )

    with pytest.raises(AssertionError):
        metadata_mutants.fuzz(50, seed=1)


def sharded(memory, shard, chunk):
    """Return an array whose metadata name other shards than it was written in."""
    zarr.create_group(memory)
    array = zarr.create_array(
        memory, name="t", shape=(8, 12), dtype="f8", chunks=(2, 3), shards=(4, 6), dimension_names=["y", "x"]
    )
    array[...] = counting((8, 12), "f8")
    document = json.loads(take(memory, "t/zarr.json"))
    document["chunk_grid"]["configuration"]["chunk_shape"] = shard
    document["codecs"][0]["configuration"]["chunk_shape"] = chunk
    put(memory, "t/zarr.json", json.dumps(document).encode())
    return zarr.open_array(memory, path="t", mode="r")


SIZES_OF_NO_MACHINE = [
    pytest.param([2**32, 2**32], [1, 1], id="chunks of a shard that wrap around to 0"),
    pytest.param([2**32, 2**31], [1, 1], id="chunks of a shard that wrap around to a negative number"),
    pytest.param([2**63, 6], [2**62, 3], id="an axis that wraps around"),
    pytest.param([2**40, 2**40], [2**40, 2**40], id="a chunk that no machine addresses"),
]


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("shard", "chunk"), SIZES_OF_NO_MACHINE)
def test_what_is_stored_in_sizes_that_no_machine_has_is_an_error(memory, shard, chunk, chunks):
    array = sharded(memory, shard, chunk)

    with explained(StoreReadError, "'/t'"):
        read_array(array, device="host")
    with pytest.raises(StoreReadError):
        open_ours(memory, consolidated=False, chunks=chunks).t.load()


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("shard", "chunk"), SIZES_OF_NO_MACHINE)
def test_what_is_missing_in_sizes_that_no_machine_has_is_the_fill_value(memory, shard, chunk, chunks):
    array = sharded(memory, shard, chunk)
    sync(memory.delete_dir("t/c"))

    assert_same_bits(read_array(array, device="host"), array[...])
    assert_same_bits(open_ours(memory, consolidated=False, chunks=chunks).t.values, array[...])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("selection", [slice(2**63 - 4, None), slice(-1, -3, -1), -1, slice(0, 5, 2)])
def test_the_longest_axis_that_xarray_opens_is_read(memory, selection, zarr_format):
    zarr.create_group(memory, zarr_format=zarr_format)
    named = {"dimension_names": ["x"]} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    keywords = {"chunks": (3,), "dtype": "i4", "zarr_format": zarr_format, "fill_value": 7} | named
    array = zarr.create_array(memory, name="t", shape=(2**63 - 1,), **keywords)
    array[2**63 - 2] = 1
    opened = open_ours(memory, consolidated=False, mask_and_scale=False)

    expected = open_stock(memory, consolidated=False, mask_and_scale=False).t[selection].values
    assert_same_bits(read_array(array, selection, device="host"), expected)
    assert_same_bits(opened.t[selection].values, expected)
    (row,) = opened.gpuzarr.explain().rows
    assert (row.where, row.why) == ("host, by zarr-python", "9223372036854775807 elements along axis 0")


@pytest.mark.parametrize("length", [2**63, 2**70])
def test_axes_that_no_integer_counts_are_refused_when_a_store_is_opened(memory, length):
    sharded(memory, [4, 6], [2, 3])
    document = json.loads(take(memory, "t/zarr.json"))
    document["shape"][0] = length
    put(memory, "t/zarr.json", json.dumps(document).encode())

    with explained(MetadataError, "'/t'"):
        open_ours(memory)


def test_a_chunk_that_memory_does_not_suffice_for(memory):
    array = zarr.create_array(memory, shape=(8, 12), chunks=(2**25, 2**24), dtype="f8")
    put(memory, "c/0/0", bytes(99))

    with explained(HostMemoryError, "'/'", str(2**52), "Unable to allocate"):
        read_array(array, device="host")


@pytest.mark.host_decoder
@pytest.mark.both_ways
@pytest.mark.parametrize("layout", [{}, {"shards": (2**25, 2**24)}, {"shards": (2**26, 2**24)}], ids=str)
@pytest.mark.parametrize("selection", [(slice(3), 0), ([7, 0], slice(None, None, 5)), ...], ids=str)
def test_a_missing_chunk_that_memory_does_not_suffice_for_is_the_fill_value(store, selection, layout):
    array = zarr.create_array(store, shape=(8, 12), chunks=(2**25, 2**24), dtype="f8", fill_value=7, **layout)

    assert_same_bits(read_array(array, selection, device="host"), array.oindex[selection])
    assert_same_bits(read_points(stored_array(array), ([0, 7], [1, 2]), decoder_for("host")), np.full(2, 7.0))


@pytest.mark.host_decoder
@pytest.mark.both_ways
def test_a_missing_chunk_beside_one_that_memory_does_not_suffice_for(local):
    array = zarr.create_array(local, shape=(8,), chunks=(4,), shards=(8,), dtype="f8", fill_value=7)
    array[:4] = 1
    document = json.loads(take(local, "zarr.json"))
    document["shape"] = [2**50]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [2**50]
    document["codecs"][0]["configuration"]["chunk_shape"] = [2**49]
    put(local, "zarr.json", json.dumps(document).encode())
    array = zarr.open_array(local, mode="r")

    with pytest.raises(HostMemoryError):
        read_array(array, [0, 2**49 + 1], device="host")

    assert_same_bits(read_array(array, [2**49 + 1], device="host"), np.full(1, 7.0))


@pytest.mark.parametrize("how", [{"dtype": "S3"}, {"dtype": "i4", "serializer": UNPLANNED}], ids=["text", "shards"])
@pytest.mark.parametrize("selection", [0, (-1,), [0, 0], slice(None, None, -2), slice(3)])
def test_lengths_beyond_any_machine_of_arrays_that_zarr_reads(memory, how, selection):
    zarr.create_array(memory, name="t", shape=(8,), chunks=(4,), **how)
    document = json.loads(take(memory, "t/zarr.json"))
    put(memory, "t/zarr.json", json.dumps(document | {"shape": [2**64]}).encode())

    with pytest.raises(MetadataError):
        read_array(zarr.open_array(memory, path="t", mode="r"), selection, device="host")


@pytest.mark.parametrize("shape", [(2**62,), (2**40, 2**40), (3, 2**61, 2**62)])
@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
def test_arrays_of_more_elements_than_any_memory_are_read_in_part(shape, layout):
    ones = (1,) * (len(shape) - 1)
    grid = {"chunks": (*ones, 3), "shards": (*ones, 6)} if layout == "sharded" else {"chunks": (*ones, 3)}
    array = zarr.create_array(MemoryStore(), shape=shape, dtype="i4", fill_value=7, **grid)
    last = tuple(slice(n - 1, n) for n in shape[:-1])
    array[(*last, slice(shape[-1] - 5, None))] = np.arange(5, dtype="i4").reshape((*ones, 5))
    points = tuple(np.array([0, n - 1]) for n in shape)

    got = read_array(array, (*last, slice(shape[-1] - 7, None)), device="host")

    assert_same_bits(got.ravel(), np.array([7, 7, 0, 1, 2, 3, 4], "i4"))
    assert_same_bits(read_points(stored_array(array), points, decoder_for("host")), np.array([7, 4], "i4"))


@pytest.mark.parametrize("step", [2**60, -(2**60), 2**61 - 1])
def test_long_steps_touch_only_the_chunks_of_their_elements(memory, step):
    array = zarr.create_array(memory, shape=(2**62,), chunks=(3,), dtype="i4", fill_value=7)
    array[2**61 - 1] = 1
    array[2**61] = 2
    array[2**62 - 2**60 - 1] = 3

    got = read_array(array, slice(None, None, step), device="host")

    expected = {2**60: [7, 7, 2, 7], -(2**60): [7, 3, 1, 7], 2**61 - 1: [7, 1, 7]}[step]
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        (..., (2**61, 2**61)),
        ((slice(0), slice(None)), (0, 2**61)),
        ((slice(None, None, 2), 0), (2**60,)),
        ((slice(9, 2**40), [1, 0, 1]), (2**40 - 9, 3)),
    ],
)
def test_more_than_memory_holds_is_an_error_that_says_how_much_was_selected(memory, selection, shape):
    array = zarr.create_array(memory, shape=(2**61, 2**61), chunks=(1, 3), dtype="i4")

    with explained(HostMemoryError, "'/'", f"a selection of shape {shape}, in chunks of 12 bytes"):
        read_array(array, selection, device="host")


def test_too_many_points_for_memory_are_counted(memory):
    array = zarr.create_array(memory, shape=(2**61, 2**61), chunks=(1, 3), dtype="i4")
    points = (np.broadcast_to(np.int64(0), (2**40, 2)), np.array([1, 2]))

    with explained(HostMemoryError, "'/'", f"a selection of shape {(2**40, 2)}"):
        read_points(stored_array(array), points, decoder_for("host"))
