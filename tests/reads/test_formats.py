"""Every format that zarr-python reads is read, bit for bit, on both kinds of source."""

import gzip

import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from helpers.compare import assert_same_bits
from helpers.data.corpus import (
    GRIDS,
    NUMERIC_DTYPES,
    V2_CODECS,
    V2_CODECS_BY_ZARR,
    V2_FILTERS,
    V3_CODECS,
    V3_CODECS_BY_ZARR,
    V3_FILTERS,
    checked_shards,
    counting,
    edge_values,
    write,
    write_in_shards,
    write_nested_shards,
)
from helpers.older_versions import needs_rectilinear_grids
from helpers.stores.fakes import put, take
from helpers.stores.shards import MISSING, index_bytes, index_entries, with_entry
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.compat import ensure_bytes
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, read_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.read import stored_array

SHARDED = {"chunks": (2, 3), "shards": (4, 6)}
UNSHARDED = {"chunks": (2, 3)}
LAYOUTS = pytest.mark.parametrize("layout", [SHARDED, UNSHARDED], ids=["sharded", "unsharded"])
KEYS_V3 = [{"name": name, "separator": separator} for name in ("default", "v2") for separator in ("/", ".")]


def codec_table(table):
    return pytest.mark.parametrize("codecs", [*table.values()], ids=[*table])


pytestmark = [pytest.mark.every_decoder, pytest.mark.both_ways]

DATA = counting((11, 13))
DATA[:4, :6] = DATA[4:6, 6:9] = DATA[8, 8] = 0
"""A shard, an inner chunk and an element are zero: not written, if fill is 0."""


def read(array, **keywords):
    return read_array(array, device="host", **keywords)


@LAYOUTS
@codec_table(V3_CODECS | V3_FILTERS | V3_CODECS_BY_ZARR)
def test_v3_codecs(store, layout, codecs):
    array = write(store, DATA, name="t", **layout, **codecs)

    assert_same_bits(read(array), DATA)


@codec_table(V2_CODECS | V2_FILTERS | V2_CODECS_BY_ZARR)
def test_v2_codecs(store, codecs):
    array = write(store, DATA, name="t", chunks=(2, 3), zarr_format=2, **codecs)

    assert_same_bits(read(array), DATA)


ROWS = {"chunks": (1, 13), "shards": (4, 13)}
"""Chunks that are one run of memory in the result."""


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("dtype", NUMERIC_DTYPES)
@pytest.mark.parametrize("layout", [SHARDED, UNSHARDED, ROWS], ids=["sharded", "unsharded", "rows"])
@pytest.mark.parametrize("compressors", [None, ZstdCodec()], ids=["raw", "zstd"])
def test_v3_dtypes(memory, dtype, byte_order, layout, compressors):
    data = edge_values(dtype, (11, 13))
    array = write(memory, data, **layout, serializer=BytesCodec(endian=byte_order), compressors=compressors)

    assert_same_bits(read(array), data)


@pytest.mark.parametrize("byte_order", "<>")
@pytest.mark.parametrize("dtype", NUMERIC_DTYPES)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("compressors", [None, numcodecs.LZ4()], ids=["raw", "lz4"])
def test_v2_dtypes(memory, dtype, byte_order, order, compressors):
    data = edge_values(np.dtype(dtype).newbyteorder(byte_order), (11, 13))
    array = write(memory, data, chunks=(2, 3), zarr_format=2, order=order, compressors=compressors)

    assert_same_bits(read(array), data)


@pytest.mark.parametrize(("shape", "chunks", "shards"), GRIDS.values(), ids=[*GRIDS])
@pytest.mark.parametrize("compressors", [None, ZstdCodec(), GzipCodec()], ids=["raw", "zstd", "gzip"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "unsharded"])
def test_v3_grids(store, shape, chunks, shards, compressors, sharded):
    data = counting(shape, "f8")
    array = write(store, data, chunks=chunks, shards=shards if sharded and shape else None, compressors=compressors)

    assert_same_bits(read(array), data)


@pytest.mark.parametrize(("shape", "chunks", "_shards"), GRIDS.values(), ids=[*GRIDS])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("separator", "./")
def test_v2_grids(store, shape, chunks, _shards, order, separator):
    data = counting(shape, "i2")
    keys = {"name": "v2", "separator": separator}
    array = write(
        store, data, name="a/b", chunks=chunks, zarr_format=2, order=order, chunk_key_encoding=keys, fill_value=-1
    )

    assert_same_bits(read(array), data)


@pytest.mark.parametrize("encoding", KEYS_V3, ids=lambda e: f"{e['name']}{e['separator']}")
@pytest.mark.parametrize("path", ["", "t", "a/b/t", "größe x/t"])
@LAYOUTS
def test_v3_chunk_keys(store, encoding, path, layout):
    array = write(store, DATA, name=path, chunk_key_encoding=encoding, **layout)

    assert_same_bits(read(array), DATA)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    "index_codecs",
    [
        pytest.param([BytesCodec(), Crc32cCodec()], id="crc32c"),
        pytest.param([BytesCodec()], id="no checksum"),
        pytest.param([BytesCodec(endian="big"), Crc32cCodec()], id="big endian, crc32c"),
        pytest.param([BytesCodec(endian="big")], id="big endian"),
    ],
)
def test_shard_index(store, location, index_codecs):
    array = write_in_shards(store, DATA, **SHARDED, index_codecs=index_codecs, index_location=location)

    assert_same_bits(read(array), DATA)


@pytest.mark.parametrize(
    "index_codecs",
    [
        pytest.param([TransposeCodec(order=(2, 1, 0)), BytesCodec(), Crc32cCodec()], id="transposed index"),
        pytest.param([BytesCodec(), Crc32cCodec(), Crc32cCodec()], id="two checksums"),
    ],
)
def test_unusual_shard_index_is_read_by_zarr(store, index_codecs):
    array = write_in_shards(store, DATA, **SHARDED, index_codecs=index_codecs)

    assert_same_bits(read(array), DATA)
    assert stored_array(array).route(decoder_for("host")).where == "host, by zarr-python"


@pytest.mark.parametrize("fill_value", [None, 0, 7, -(2**31)])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_that_was_never_written_is_fill_value(store, fill_value, zarr_format):
    array = zarr.create_array(
        store, shape=(11, 13), dtype="i4", chunks=(2, 3), fill_value=fill_value, zarr_format=zarr_format
    )

    assert_same_bits(read(array), np.full((11, 13), fill_value or 0, "i4"))


@pytest.mark.parametrize("dtype", NUMERIC_DTYPES)
@LAYOUTS
def test_missing_chunk_is_fill_value_of_any_dtype(memory, dtype, layout):
    fill = edge_values(dtype, (7,), seed=3)[5]
    array = zarr.create_array(memory, shape=(11, 13), dtype=dtype, fill_value=fill, **layout)
    array[4:6, :3] = edge_values(dtype, (2, 3))

    assert_same_bits(read(array), np.ascontiguousarray(array[...]))


@pytest.mark.parametrize("fill_value", ["NaN", "Infinity", "-Infinity", "0x7fc00001", 1.5])
def test_missing_chunk_is_fill_value_to_the_bit(memory, fill_value):
    array = zarr.create_array(memory, shape=(4, 6), dtype="f4", fill_value=0.0, **SHARDED)
    document = array.metadata.to_dict() | {"fill_value": fill_value}
    array = zarr.Array.from_dict(array.store_path, document)

    assert_same_bits(read(array), array[...])


@pytest.mark.parametrize(
    ("zarr_format", "compressors"),
    [(2, numcodecs.BZ2()), (3, zn.BZ2()), (3, [Crc32cCodec(), ZstdCodec()])],
    ids=["v2 bz2", "v3 bz2", "crc32c inside"],
)
@pytest.mark.parametrize("written", [True, False])
def test_array_without_axes_that_no_device_decodes(memory, zarr_format, compressors, written):
    array = zarr.create_array(memory, shape=(), dtype="f8", zarr_format=zarr_format, compressors=compressors)
    array[...] = 2.5 * written

    assert_same_bits(read(array), np.array(2.5 * written))


@pytest.mark.parametrize("layout", [{"chunks": (9_500_000,)}, {"chunks": (4_750_000,), "shards": (9_500_000,)}])
@pytest.mark.parametrize("start", [0, 12_345_678])
def test_raw_runs_longer_than_one_request(store, layout, start):
    data = np.arange(19_000_000, dtype="u4").view("u1")[:19_000_000]
    array = write(store, data, compressors=None, **layout)

    assert_same_bits(read(array, selection=slice(start, None)), data[start:])


def test_chunk_of_nothing_but_fill_value_may_be_stored(memory):
    array = write(memory, np.zeros((11, 13)), **SHARDED, config={"write_empty_chunks": True})

    assert_same_bits(read(array), np.zeros((11, 13)))


def assert_refused(array, chunk, *errors):
    """Put a chunk in place of the only one; zarr-python raises one of `errors`."""
    put(array.store, "t/c/0", chunk)
    with pytest.raises(errors):
        array[...]
    with pytest.raises(CorruptChunkError):
        read(array)


@pytest.mark.host_decoder  # the device compares the last length and checksum, which a repeated member has
@pytest.mark.parametrize(
    "follows",
    [
        *(lambda member: member, lambda member: member[:-1], lambda _: gzip.compress(b"more")),
        *(lambda _: b"nonsense", lambda _: b"\x1f\x8b", lambda _: bytes(5) + b"x"),
    ],
    ids=["the same once more", "a cut member", "another member", "nonsense", "magic bytes", "zeros and nonsense"],
)
def test_what_zarr_refuses_behind_a_gzip_member_is_an_error(memory, follows):
    array = write(memory, counting((100,), "u2"), name="t", chunks=(100,), compressors=GzipCodec())
    member = take(memory, "t/c/0")

    assert_refused(array, member + follows(member), OSError, EOFError, ValueError)


@pytest.mark.doubtful_frames
@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
@pytest.mark.parametrize("n_elements", [100, 100_000])
@pytest.mark.parametrize(
    "follows",
    [
        *(lambda frame: frame, lambda frame: frame[:-1], lambda frame: frame[:1], lambda frame: frame[:4]),
        *(lambda frame: frame[:5], lambda _: bytes(1), lambda _: zstandard.compress(b"more")),
    ],
    ids=["the same once more", "a cut frame", "1 byte", "magic bytes", "5 bytes", "a zero", "another frame"],
)
def test_what_zarr_refuses_behind_a_zstd_frame_is_an_error(memory, follows, n_elements, checksum):
    data = counting((n_elements,), "u2")
    array = write(memory, data, name="t", chunks=data.shape, compressors=ZstdCodec(checksum=checksum))
    frame = take(memory, "t/c/0")

    assert_refused(array, frame + follows(frame), RuntimeError, ValueError)


@pytest.mark.parametrize("follows", [bytes(1), bytes(40), gzip.compress(b"")], ids=["a zero", "zeros", "no more bytes"])
def test_what_zarr_accepts_behind_a_gzip_member(memory, follows):
    array = write(memory, counting((100,), "u2"), name="t", chunks=(100,), compressors=GzipCodec())

    put(memory, "t/c/0", take(memory, "t/c/0") + follows)

    assert_same_bits(read(array), array[...])


@pytest.mark.parametrize("typesize", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("blocksize", [0, 256])
@pytest.mark.parametrize("clevel", [0, 9])
def test_blosc_frame_header_rules_not_the_metadata(memory, typesize, blocksize, clevel):
    data = counting((960,), "u2")
    array = write(memory, data, name="t", chunks=(960,), compressors=V3_CODECS["blosc-lz4-shuffle"]["compressors"])
    raw = np.frombuffer(data.tobytes(), f"V{typesize}")
    frame = numcodecs.blosc.compress(raw, b"zstd", clevel, 2, blocksize, typesize)

    put(memory, "t/c/0", ensure_bytes(frame))

    assert_same_bits(read(array), data)


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize(
    "written",
    [write_nested_shards, lambda store, data: write(store, data, chunks=(4, 6), **checked_shards((2, 3)))],
    ids=["shards of shards", "shards with a checksum around them"],
)
def test_shards_that_zarr_decodes(store, written):
    assert_same_bits(read(written(store, DATA)), DATA)


@needs_rectilinear_grids
@pytest.mark.parametrize(
    "grid",
    [
        pytest.param({"chunks": [[2, 4, 6], [6, 9]]}, id="chunks"),
        pytest.param({"chunks": (2, 3), "shards": [[4, 2, 6], [6, 9]]}, id="shards"),
    ],
)
def test_rectilinear_grid(store, grid):
    data = counting((12, 15))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = write(store, data, **grid)

        assert_same_bits(read(array), data)
        assert_same_bits(read(array, selection=(slice(3, 9, 2), [12, 0])), data[3:9:2][:, [12, 0]])


@pytest.mark.parametrize("selection", [..., slice(1, None, 2), (slice(None), [0, 3, 12]), (3, slice(9))])
def test_forward_selection_is_in_c_order(memory, selection):
    array = write(memory, DATA, **SHARDED)

    assert read(array, selection=selection).flags.c_contiguous


@st.composite
def layouts(draw):
    """(offset of each of five chunks, bytes of a shard without its index): any order, any gaps; one is missing."""
    order = draw(st.permutations(range(4)))
    gaps = draw(st.lists(st.integers(0, 9), min_size=5, max_size=5))
    body, offsets = b"\xff" * gaps[4], [None] * 5
    for number, gap in zip(order, gaps, strict=False):
        offsets[number] = len(body)
        body += RAW_CHUNKS[number] + b"\xff" * gap
    return offsets, body


RAW_CHUNKS = [counting((10,))[at : at + 2].tobytes() for at in range(0, 10, 2)]


@given(layouts(), st.sampled_from(["start", "end"]))
def test_chunks_may_lie_anywhere_in_a_shard(layout, location):
    offsets, body = layout
    store, first = MemoryStore(), 84 * (location == "start")
    array = zarr.create_array(
        store, shape=(10,), chunks=(2,), shards={"shape": (10,), "index_location": location}, dtype="i4",
        compressors=None, fill_value=9,
    )  # fmt: skip
    index = index_bytes([(MISSING, MISSING) if at is None else (at + first, 8) for at in offsets])
    put(store, "c/0", index + body if location == "start" else body + index)

    assert_same_bits(read(array), array[...])
    assert_same_bits(read(array), np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 9], "i4"))


@pytest.mark.parametrize("codecs", ["bytes", "zstd", "crc32c"])
def test_chunks_may_share_their_bytes(store, codecs):
    data = counting((4, 6))
    array = write(store, data, chunks=(2, 3), shards=(4, 6), **V3_CODECS[codecs])
    shard = take(store, "c/0/0")

    put(store, "c/0/0", with_entry(shard, 4, 3, index_entries(shard, 4)[0]))

    expected = np.block([[data[:2]], [data[2:, :3], data[:2, :3]]])
    assert_same_bits(read(array), expected)
    assert_same_bits(read(array), array[...])


def test_result_is_writable_and_not_shared(memory):
    array = write(memory, counting((8,)), chunks=(8,), compressors=None)

    read(array)[:] = 0

    assert_same_bits(read(array), counting((8,)))
