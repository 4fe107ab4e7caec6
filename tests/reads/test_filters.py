"""Chains of filters, checksums and compressors: what zarr-python reads is read, bit for bit, and damage is told."""

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.chains import BYTES_V2, BYTES_V3, NUMBERS, SHAPES, chains, some_of, zn_codec
from helpers.data.corpus import V2_FILTERS, V3_FILTERS, counting, edge_values, write
from helpers.data.damage import (
    DATA,
    KEY,
    assert_explains,
    assert_only_the_first_shard_is_lost,
    changed_chunk,
    damaged,
    read,
)
from helpers.effort import at_least
from helpers.stores.fakes import put, take
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, CastValue, ScaleOffset, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.read import stored_array

pytestmark = pytest.mark.every_decoder

thorough = at_least(40, full=150)


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
    shape, chunks, shards = sizes
    filters = [zn_codec(*codec) for codec in chain.codecs]
    if len(shape) > 1 and data.draw(st.booleans(), "transposed"):
        filters.insert(0, TransposeCodec(order=tuple(data.draw(st.permutations(range(len(shape))), "order"))))
    if np.dtype(chain.end).itemsize == 1:
        serializer = BytesCodec(endian=None)
    else:
        serializer = BytesCodec(endian=data.draw(st.sampled_from(["little", "big"]), "endian"))
    array = written(
        edge_values(chain.start, shape, len(after)),
        chunks=chunks,
        shards=shards if is_sharded else None,
        filters=filters,
        serializer=serializer,
        compressors=[BYTES_V3[name] for name in after],
    )

    by_zarr = any(">" in str(conf) for _, conf in chain.codecs)
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
    order, endian = layout
    shape, chunks, _ = sizes
    filters = [numcodecs.get_codec({"id": name} | conf) for name, conf in chain.codecs]
    filters += [BYTES_V2[name] for name in after]
    array = written(
        edge_values(np.dtype(chain.start).newbyteorder(endian), shape, len(after)),
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


BAD_CHUNKS = {
    "empty": lambda chunk: b"",
    "one byte": lambda chunk: chunk[:1],
    "zeros": lambda chunk: bytes(len(chunk)),
    "one byte less": lambda chunk: chunk[:-1],
    "half of it": lambda chunk: chunk[: len(chunk) // 2],
    "text": lambda chunk: b"<html>404 not found</html>",
}
NOTICED = [damage for damage in BAD_CHUNKS if damage != "zeros"]
VALID = ("shuffle", "delta", "fletcher32")
"""Of these, zeros are elements, and their Fletcher checksum is zero."""


def assert_damage_is_told(memory, name, damage):
    array = damaged(memory, changed_chunk(BAD_CHUNKS[damage]), **V3_FILTERS[name])

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "'/a/t'", KEY, "chunk (1, 1)", "expected")
    assert_only_the_first_shard_is_lost(array)
    assert_same_bits(read(array, (slice(0, 2), slice(0, 3))), DATA[:2, :3])


@pytest.mark.every_value
@pytest.mark.doubtful_frames
@pytest.mark.parametrize("damage", NOTICED)
@pytest.mark.parametrize("name", V3_FILTERS)
def test_damaged_chunk(memory, name, damage):
    assert_damage_is_told(memory, name, damage)


@pytest.mark.doubtful_frames
@pytest.mark.parametrize("name", [name for name in V3_FILTERS if name not in VALID])
def test_chunk_of_zeros(memory, name):
    assert_damage_is_told(memory, name, "zeros")


@pytest.mark.doubtful_frames
@pytest.mark.parametrize("damage", ["empty", "one byte", "one byte less", "half of it"])
@pytest.mark.parametrize("name", V2_FILTERS)
def test_damaged_v2_chunk(memory, name, damage):
    array = write(memory, DATA, name="a/t", chunks=(4, 12), zarr_format=2, **V2_FILTERS[name])
    put(memory, "a/t/0.0", BAD_CHUNKS[damage](take(memory, "a/t/0.0")))

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "'/a/t'", "a/t/0.0", "chunk (0, 0)", "expected")
    assert_only_the_first_shard_is_lost(array)


CHECKED = [
    name for name in V3_FILTERS if any(c in name for c in ("crc", "adler", "fletcher", "jenkins", "gzip", "zlib"))
]


@pytest.mark.every_value
@pytest.mark.doubtful_frames
@pytest.mark.parametrize("name", CHECKED)
def test_flipped_bits_never_give_other_numbers_where_a_checksum_is_stored(name):
    store = MemoryStore()
    array = write(store, DATA, name="t", chunks=(8, 12), **V3_FILTERS[name])
    chunk = take(store, "t/c/0/0")
    for bit in range(0, 8 * len(chunk), max(1, len(chunk) // 6)):
        put(store, "t/c/0/0", chunk[: bit // 8] + bytes([chunk[bit // 8] ^ 1 << bit % 8]) + chunk[bit // 8 + 1 :])
        try:
            assert_same_bits(read(array), DATA)
        except CorruptChunkError:
            continue


def test_zeros_of_either_sign_are_different_summands():
    """They are equal, and what is kept for one is not for the other."""
    stored = write(MemoryStore(), np.full(100, -0.0, "f4"), compressors=None, config={"write_empty_chunks": True})

    for zero in (0.0, -0.0):
        filters = zn.FixedScaleOffset(offset=zero, scale=1, dtype="<f4")
        array = write(MemoryStore(), np.ones(100, "f4"), filters=filters, compressors=None)
        put(array.store, "c/0", take(stored.store, "c/0"))
        assert_reads_as_zarr_does(array)
