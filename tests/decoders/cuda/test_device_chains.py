"""Chains that no kernels undo: why, and that the host decodes them."""

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.registered_filters import CastValue
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.chain import Chain, chunk_device_nbytes, find_chain
from xarray_gpuzarr.read import read, stored_array

IN_ORDER = "are undone, in this order"
V2 = {"zarr_format": 2}
SHUFFLE, DELTA = numcodecs.Shuffle(4), numcodecs.Delta("<i4")
MAPPED = {"decode": [("NaN", 0)]}

CHAINS = {
    "two compressors": ("i4", {"compressors": [GzipCodec(), ZstdCodec()]}, IN_ORDER),
    "checksum of what is compressed": ("i4", {"compressors": [Crc32cCodec(), ZstdCodec()]}, IN_ORDER),
    "elements inside a shuffle": ("i4", V2 | {"filters": [SHUFFLE, DELTA], "compressors": None}, IN_ORDER),
    "checksum of elements": ("i4", V2 | {"filters": [numcodecs.CRC32(), SHUFFLE], "compressors": None}, IN_ORDER),
    "shuffle around Blosc": ("i4", {"compressors": [zn.Shuffle(elementsize=4), BloscCodec()]}, "unshuffled once"),
    "long elements": ("i4", {"compressors": zn.Shuffle(elementsize=256)}, "up to 255 bytes"),
    "complex elements": ("c8", {"filters": zn.AsType(encode_dtype="<c16", decode_dtype="<c8")}, "complex128"),
    "sums of a third kind": ("i8", {"filters": zn.Delta(dtype="<i8", astype="<u8")}, "adds up elements of float64"),
    "differences of booleans": ("?", {"filters": zn.Delta(dtype="|b1", astype="|i1")}, "adds up elements of int8"),
    "cast from halves": ("f4", {"filters": CastValue(data_type="float16")}, "float16"),
    "cast to halves": ("f2", {"filters": CastValue(data_type="int8")}, "float16"),
    "mapped floats": ("i4", {"filters": CastValue(data_type="float64", scalar_map=MAPPED)}, "scalar map of floating"),
    "rounded up": ("f4", {"filters": CastValue(data_type="int32", rounding="towards-positive")}, "towards-positive"),
}
"""dtype, keywords, part of the reason."""


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(("dtype", "keywords", "why"), CHAINS.values(), ids=CHAINS)
def test_host_decodes_what_no_kernels_undo(memory, dtype, keywords, why):
    data = (counting((512, 8)) % 100).astype(dtype)
    array = write(memory, data, chunks=(128, 8), fill_value=0, **keywords)
    stored, device = stored_array(array), SimulatedDevice()
    route = stored.route(CudaDecoder(lambda: device))

    assert why in route.why
    assert route.where == "host, then one copy to the device"
    with device.activate():
        assert_same_bits(read(stored, ..., CudaDecoder(lambda: device)).get(), np.ascontiguousarray(array[...]))


EXACT = {
    "exact, however rounded": ("f4", {"filters": CastValue(data_type="int16", rounding="towards-zero")}),
    "integers, however rounded": ("i4", {"filters": CastValue(data_type="int16", rounding="towards-zero")}),
    "mapped integers": ("f4", {"filters": CastValue(data_type="int16", scalar_map={"decode": [(-1, "NaN")]})}),
}


@pytest.mark.parametrize(("dtype", "keywords"), EXACT.values(), ids=EXACT)
def test_kernels_undo_what_needs_no_rounding(memory, dtype, keywords):
    array = write(memory, counting((16, 8), dtype), chunks=(8, 8), **keywords)

    assert isinstance(find_chain(stored_array(array).spec), Chain)


N = 2**28
HUGE = {
    "shuffled": ("f8", V2 | {"filters": numcodecs.Shuffle(8), "compressors": None}, "shuffle(8) is decoded up to"),
    "compressed": (
        "f8",
        V2 | {"filters": numcodecs.Delta("<f8"), "compressors": numcodecs.Zstd()},
        "zstd is decoded up",
    ),
    "many elements": ("f8", V2 | {"filters": numcodecs.Delta("|u1"), "compressors": None}, "2147483648 elements"),
}


@pytest.mark.parametrize(("dtype", "keywords", "why"), HUGE.values(), ids=HUGE)
def test_chunks_beyond_what_kernels_count(dtype, keywords, why):
    array = zarr.create_array(MemoryStore(), shape=(4 * N,), chunks=(N,), dtype=dtype, **keywords)

    assert why in find_chain(stored_array(array).spec)


@pytest.mark.parametrize("compressors", [numcodecs.GZip(), numcodecs.Zlib()], ids=["crc32", "adler32"])
def test_chunks_beyond_what_checksums_count(compressors):
    keywords = {"dtype": "i8", "zarr_format": 2, "compressors": compressors}
    chains = [
        find_chain(stored_array(zarr.create_array(MemoryStore(), shape=(n,), chunks=(n,), **keywords)).spec)
        for n in (2**29 - 2, 2**29 - 1)
    ]

    assert [type(chain) for chain in chains] == [Chain, str]


def test_chunk_that_is_no_whole_number_of_elements(memory):
    filters = numcodecs.AsType(encode_dtype="<f4", decode_dtype="<f8")
    array = zarr.create_array(memory, shape=(9,), chunks=(3,), dtype="i2", zarr_format=2, filters=filters)

    assert "chunks of 6 bytes are no whole number" in find_chain(stored_array(array).spec)


@pytest.mark.parametrize("scale", [10, 10.0], ids=["an int", "a float"])
def test_chain_that_was_made_before_is_of_the_same_numbers(memory, scale):
    codecs = [zn.FixedScaleOffset(offset=0, scale=number, dtype="<f8", astype="<i4") for number in (10, 10.0)]
    chains = {
        type(codec.codec_config["scale"]): find_chain(
            stored_array(write(memory, np.zeros(8), name=f"t{n}", chunks=(4,), filters=codec)).spec
        )
        for n, codec in enumerate(codecs)
    }

    assert type(chains[type(scale)].elements[0].filter.scale) is type(scale)


@pytest.mark.parametrize(("n", "lengths"), [(16_384, 3), (65_536, 4)])
def test_scratch_of_long_gzip_counts(n, lengths):
    """Encoded, moved to where they are aligned, and decoded; from 64 KiB on nvCOMP looks ahead, in scratch memory."""
    spec = stored_array(zarr.create_array({}, shape=n, chunks=(n,), dtype="i4", compressors=GzipCodec())).spec

    assert chunk_device_nbytes(spec) == lengths * 4 * n
