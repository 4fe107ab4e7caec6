"""Chains of filters, checksums and compressors: what zarr-python reads is read, bit for bit, and damage is told."""

from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, edge_values, write
from helpers.data.damage import read
from helpers.profiles import at_least
from helpers.stores.fakes import put, take
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    CastValue,
    Crc32cCodec,
    GzipCodec,
    ScaleOffset,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.read import stored_array

pytestmark = pytest.mark.every_decoder

thorough = at_least(40, full=150)

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8")
NUMBERS = tuple(d for d in DTYPES if d[0] in "iuf")
SHAPES = [((12,), (6,), (12,)), ((7, 6), (4, 3), (8, 6)), ((3, 5, 4), (2, 3, 4), (2, 6, 4)), ((1, 1), (1, 1), (2, 2))]
"""(shape, inner chunks, shards)."""


def codec(draw: Any, dtype: str, orders: str) -> tuple[str, dict[str, Any], str]:
    """Draw a codec for elements of `dtype`: its name, its configuration, the dtype that it encodes to."""
    to = draw(st.sampled_from(NUMBERS))
    before, behind = (np.dtype(d).newbyteorder(draw(st.sampled_from(orders))).str for d in (dtype, to))
    dtypes = {"dtype": before, "astype": behind}
    scale, offset = draw(st.sampled_from([1, 10, 0.5, 0.1])), draw(st.sampled_from([0, -3, 2.5, 273]))
    table = [
        ("", "astype", {"encode_dtype": behind, "decode_dtype": before}, to),
        ("", "fixedscaleoffset", dtypes | {"scale": scale, "offset": offset}, to),
        ("iuf", "delta", dtypes, to),
        ("f", "quantize", {"digits": 2, "dtype": before}, dtype),
        ("f", "bitround", {"keepbits": 3}, dtype),
        ("?", "packbits", {}, "u1"),
    ]
    return draw(st.sampled_from([row[1:] for row in table if dtype[0] in (row[0] or "?iuf")]))


@st.composite
def chains(draw: Any, orders: str) -> tuple[str, list[tuple[str, dict[str, Any]]], str]:
    """Up to three codecs of elements, and the dtypes before and behind them, each in one of some byte orders."""
    start = end = draw(st.sampled_from(DTYPES))
    codecs = []
    for _ in range(draw(st.integers(0, 3)) if start != "c8" else 0):
        name, conf, end = codec(draw, end, orders)
        codecs.append((name, conf))
    return start, codecs, end


BYTES_V3 = {
    "zstd": ZstdCodec(),
    "gzip": GzipCodec(level=1),
    "zlib": zn.Zlib(level=1),
    "lz4": zn.LZ4(),
    "blosc": BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2),
    "blosclz": BloscCodec(cname="blosclz", shuffle="shuffle", typesize=4),
    "crc32c": Crc32cCodec(),
    "crc32": zn.CRC32(),
    "adler32": zn.Adler32(location="end"),
    "fletcher32": zn.Fletcher32(),
    "jenkins": zn.JenkinsLookup3(initval=11),
    "shuffle": zn.Shuffle(),
    "stored": BloscCodec(cname="lz4", clevel=0, shuffle="noshuffle", typesize=1),
    "shuffle of 2": zn.Shuffle(elementsize=2),
    "shuffle of 4": zn.Shuffle(elementsize=4),
}
BYTES_V2 = {
    "zstd": numcodecs.Zstd(),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc("lz4", 5, 2),
    "crc32c": numcodecs.checksum32.CRC32C(),
    "crc32": numcodecs.CRC32(location="end"),
    "adler32": numcodecs.Adler32(),
    "fletcher32": numcodecs.Fletcher32(),
    "jenkins": numcodecs.JenkinsLookup3(initval=11),
    "shuffle of 3": numcodecs.Shuffle(3),
    "stored": numcodecs.Blosc("lz4", 0, 0),
    "shuffle of 2": numcodecs.Shuffle(2),
    "shuffle of 4": numcodecs.Shuffle(4),
    "delta of bytes": numcodecs.Delta("|u1"),
    "long bytes": numcodecs.AsType(encode_dtype="<i8", decode_dtype="|u1"),
}
"""The last ones stand behind a compressor whose result is a whole number of elements."""


def zn_codec(codec_id: str, conf: dict[str, Any]) -> Any:
    """Return a codec as format 3 has it."""
    names = {"fixedscaleoffset": "FixedScaleOffset", "astype": "AsType", "packbits": "PackBits", "bitround": "BitRound"}
    return getattr(zn, names.get(codec_id, codec_id.title()))(**conf)


def some_of(shape: tuple[int, ...], draw: Any) -> tuple[slice, ...]:
    """Draw a slice along each axis."""
    return tuple(slice(draw(st.integers(0, n - 1)), None, draw(st.integers(1, 2))) for n in shape)


def assert_reads_as_zarr_does(array, selection=None, *, by_zarr=False):
    """Compare with zarr-python, and see that this package did not ask it unless it may."""
    assert by_zarr or HostDecoder().route(stored_array(array).spec, None).where == "host"
    with np.errstate(all="ignore"):
        expected = array[...]
        assert_same_bits(read(array), np.ascontiguousarray(expected))
        if selection is not None:
            assert_same_bits(read(array, selection), np.ascontiguousarray(expected[selection]))


def written(data, **keywords):
    """Write with zarr-python, or give this example up if it cannot, or cannot read what a codec has spoiled."""
    with np.errstate(all="ignore"):
        try:
            array = write(MemoryStore(), data, **keywords)
            array[...]
        except (KeyError, ValueError, TypeError, OverflowError):
            assume(False)
    return array


@pytest.mark.doubtful_frames
@pytest.mark.filterwarnings("ignore")
@thorough
@given(
    chains("<") | chains("<>"),
    st.lists(st.sampled_from([*BYTES_V3]), max_size=4),
    st.sampled_from(SHAPES),
    st.booleans(),
    st.data(),
)
def test_any_chain_of_v3(chain, after, sizes, is_sharded, data):
    (start, codecs, end), (shape, chunks, shards) = chain, sizes
    filters = [zn_codec(*codec) for codec in codecs]
    if len(shape) > 1 and data.draw(st.booleans(), "transposed"):
        filters.insert(0, TransposeCodec(order=tuple(data.draw(st.permutations(range(len(shape))), "order"))))
    if np.dtype(end).itemsize == 1:
        serializer = BytesCodec(endian=None)
    else:
        serializer = BytesCodec(endian=data.draw(st.sampled_from(["little", "big"]), "endian"))
    array = written(
        edge_values(start, shape, len(after)),
        chunks=chunks,
        shards=shards if is_sharded else None,
        filters=filters,
        serializer=serializer,
        compressors=[BYTES_V3[name] for name in after],
    )

    by_zarr = any(">" in str(conf) for _, conf in codecs)
    assert_reads_as_zarr_does(array, some_of(shape, data.draw), by_zarr=by_zarr)


CORE = st.lists(
    st.one_of(
        st.builds(ScaleOffset, offset=st.integers(-3, 0), scale=st.integers(1, 3)),
        st.builds(
            CastValue,
            data_type=st.sampled_from(["int16", "uint16", "int32", "int64", "float32", "float64"]),
            out_of_range=st.sampled_from([None, "clamp"]),
        ),
        st.just(TransposeCodec(order=(1, 0))),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.doubtful_frames
@given(st.sampled_from(NUMBERS), CORE, st.sampled_from(["little", "big"]), st.booleans())
def test_any_chain_of_registered_codecs(dtype, filters, endian, is_sharded):
    array = written(
        counting((7, 6), dtype),
        chunks=(4, 3),
        shards=(8, 6) if is_sharded else None,
        filters=filters,
        serializer=BytesCodec(endian=endian),
        compressors=ZstdCodec(),
    )

    assert_reads_as_zarr_does(array)


@pytest.mark.doubtful_frames
@pytest.mark.filterwarnings("ignore")
@thorough
@given(
    chains("<>"),
    st.lists(st.sampled_from([*BYTES_V2]), max_size=4),
    st.sampled_from([*BYTES_V2, None]),
    st.sampled_from(SHAPES),
    st.sampled_from(["C<", "C>", "F<", "F>"]),
    st.data(),
)
def test_any_chain_of_v2(chain, after, compressor, sizes, layout, data):
    (start, codecs, _), (shape, chunks, _), (order, endian) = chain, sizes, layout
    filters = [numcodecs.get_codec({"id": name} | conf) for name, conf in codecs]
    filters += [BYTES_V2[name] for name in after]
    array = written(
        edge_values(np.dtype(start).newbyteorder(endian), shape, len(after)),
        chunks=chunks,
        zarr_format=2,
        order=order,
        filters=filters or None,
        compressors=BYTES_V2[compressor] if compressor else None,
    )

    assert_reads_as_zarr_does(array, some_of(shape, data.draw))


IDENTITIES = {
    "quantize": ("f4", {"filters": zn.Quantize(digits=2, dtype="<f4"), "compressors": None}),
    "bitround": ("f8", {"filters": zn.BitRound(keepbits=5), "compressors": None}),
    "astype": ("i4", {"filters": zn.AsType(encode_dtype="<i4", decode_dtype="<i4"), "compressors": None}),
    "shuffle of bytes": ("i4", {"compressors": zn.Shuffle(elementsize=1)}),
}


@pytest.mark.parametrize(("dtype", "codecs"), IDENTITIES.values(), ids=IDENTITIES)
@pytest.mark.parametrize("endian", ["little", "big"])
def test_codec_that_decodes_to_what_is_stored(memory, dtype, codecs, endian):
    data = (counting((8, 12)) / 7).astype(dtype)
    array = write(memory, data, chunks=(2, 3), shards=(4, 12), serializer=BytesCodec(endian=endian), **codecs)

    assert stored_array(array).spec.codecs.stages == ()
    assert_reads_as_zarr_does(array, np.s_[1:, ::2])


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("filters", "dtype"),
    [
        pytest.param(zn.FixedScaleOffset(offset=1, scale=2, dtype="<i4", astype=">i2"), "i4", id="stored swapped"),
        pytest.param(zn.Delta(dtype=">i4"), "i4", id="swapped"),
        pytest.param(zn.Delta(dtype=">f4", astype=">i4"), "f4", id="swapped numbers of another kind"),
        pytest.param(ScaleOffset(offset="0x3f800000"), "f4", id="number as text"),
    ],
)
def test_chain_that_means_something_else_to_zarr_is_left_to_it(memory, filters, dtype, endian):
    serializer = BytesCodec(endian=endian)
    array = write(
        memory, counting((7, 6), dtype), chunks=(2, 3), filters=filters, serializer=serializer, compressors=None
    )

    assert HostDecoder().route(stored_array(array).spec, None).where == "host, by zarr-python"
    assert_reads_as_zarr_does(array, (slice(1, None, 2), [0, 0, 1, 5, 5]), by_zarr=True)


@pytest.mark.host_decoder
@pytest.mark.parametrize("shards", [None, (4, 6)], ids=["no shards", "shards"])
@pytest.mark.parametrize("dtype", [">i4", ">f8"])
@pytest.mark.parametrize(
    "filters",
    [
        lambda dtype: zn.Delta(dtype=dtype),
        lambda dtype: zn.AsType(encode_dtype=">f4", decode_dtype=dtype),
        lambda dtype: zn.FixedScaleOffset(offset=1, scale=2, dtype=dtype),
        lambda dtype: zn.FixedScaleOffset(offset=1, scale=2, dtype=dtype, astype="<i2"),
        lambda dtype: zn.Quantize(digits=3, dtype=dtype.replace("i", "f")),
        lambda dtype: ScaleOffset(offset=1, scale=2),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_filters_of_an_array_that_was_just_made_with_swapped_elements(memory, filters, dtype, shards):
    def made(store):
        return write(store, counting((7, 6), dtype), chunks=(2, 3), shards=shards, filters=filters(dtype))

    array = made(memory)
    opened = zarr.open_array(memory, mode="r")  # may have other values: a fault of zarr-python
    with zarr_pipeline():
        ours, again = made(MemoryStore()), zarr.open_array(memory, mode="r")

    for found, expected in ((ours, array), (again, opened)):
        assert_same_bits(found[...], expected[...])
        assert_same_bits(read_array(found, device="host"), expected[...])


def test_filter_may_make_what_a_compressor_gave_much_longer(memory):
    data = edge_values("u1", (100_000,))
    filters = [numcodecs.Zlib(), numcodecs.AsType(encode_dtype="<i8", decode_dtype="|u1")]
    array = write(memory, data, chunks=data.shape, zarr_format=2, filters=filters, compressors=numcodecs.Zstd())

    assert_reads_as_zarr_does(array)


@pytest.mark.doubtful_frames
def test_values_that_overflow_when_they_are_decoded_are_an_error(memory):
    array = write(
        memory, counting((4, 6), "i2"), name="t", chunks=(4, 6), filters=ScaleOffset(offset=-1), compressors=None
    )
    put(memory, "t/c/0/0", np.full(24, 2**15 - 1, "<i2").tobytes())
    assert_same_bits(read(array), np.full((4, 6), 2**15 - 2, "i2"))
    put(memory, "t/c/0/0", np.full(24, -(2**15), "<i2").tobytes())

    with pytest.raises(CorruptChunkError, match="scale_offset"):
        read(array)


def test_zeros_of_either_sign_are_different_summands():
    """They are equal, and what is kept for one is not for the other."""
    stored = write(MemoryStore(), np.full(100, -0.0, "f4"), compressors=None, config={"write_empty_chunks": True})

    for zero in (0.0, -0.0):
        filters = zn.FixedScaleOffset(offset=zero, scale=1, dtype="<f4")
        array = write(MemoryStore(), np.ones(100, "f4"), filters=filters, compressors=None)
        put(array.store, "c/0", take(stored.store, "c/0"))
        assert_reads_as_zarr_does(array)
