"""Of a chunk that is wanted in part, the loops decode no more than they must; values are those of the whole chunk."""

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import write
from helpers.loops import rows_taken
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.errors import CorruptChunkError

pytestmark = [
    pytest.mark.usefixtures("compiled"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]

SHAPE, CHUNKS = (24, 64, 100), (16, 64, 128)
"""Chunks of 512 KiB, one of them cut at the array's edge."""
DATA = np.random.default_rng(0).integers(0, 60, SHAPE).cumsum(axis=2).astype("f4")
COMPRESSORS = {
    "zstd": ZstdCodec(),
    "zstd with checksum": ZstdCodec(checksum=True),
    **{
        f"{cname} {shuffle}": BloscCodec(cname=cname, shuffle=shuffle)
        for cname in ("lz4", "zstd", "blosclz", "zlib")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
    "lz4": zn.LZ4(),
    "gzip": GzipCodec(level=1),
}
ARRAYS = {name: write(MemoryStore(), DATA, chunks=CHUNKS, compressors=c) for name, c in COMPRESSORS.items()}
STARTS = st.tuples(*(st.integers(0, n - 1) for n in SHAPE))


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(ARRAYS)), start=STARTS, length=st.tuples(*(st.integers(1, n) for n in SHAPE)))
def test_boxes_anywhere(name, start, length):
    key = tuple(slice(a, a + n) for a, n in zip(start, length, strict=True))
    with rows_taken() as taken:
        assert_same_bits(read_array(ARRAYS[name], key, device="host"), DATA[key])
    assert taken.n_rows or name.startswith("zlib")


def damaged(directory, compressor):
    """Return an array of one chunk, the last byte of which is another one, and the values."""
    data = DATA[:16]
    array = write(LocalStore(directory), data, chunks=data.shape, compressors=compressor)
    (chunk,) = (file for file in directory.rglob("*") if file.is_file() and file.name != "zarr.json")
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 0xFF
    chunk.write_bytes(content[:-1])
    return array, data


@pytest.mark.parametrize("compressor", [ZstdCodec(), zn.LZ4()], ids=["zstd", "lz4"])
def test_what_lies_behind_is_not_decoded(tmp_path, compressor):
    array, data = damaged(tmp_path, compressor)
    assert_same_bits(read_array(array, np.s_[:3], device="host"), data[:3])
    with pytest.raises(CorruptChunkError):
        read_array(array, device="host")


def test_a_checksum_is_of_the_whole_chunk(tmp_path):
    array, _ = damaged(tmp_path, ZstdCodec(checksum=True))
    with pytest.raises(CorruptChunkError):
        read_array(array, np.s_[:3], device="host")
