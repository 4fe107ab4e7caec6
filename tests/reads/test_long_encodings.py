"""Chunks that are longer encoded than decoded, as far as writers go: all are read, as zarr-python reads them."""

import gzip
import struct
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits, assert_same_values
from helpers.data.corpus import counting
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore

from xarray_gpuzarr import read_array

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.both_ways,
    pytest.mark.doubtful_frames,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(120),
]

KIB, MIB = 1024, 1024 * 1024
LENGTHS = [8, 64, 32 * KIB]
FLAGS = {"extra": 4, "name": 8, "comment": 16}


def in_pieces(encode, n):
    return lambda data: b"".join(encode(data[i : i + n]) for i in range(0, len(data), n))


def deflated(data, wbits, n, **parameters):
    """Return one stream whose writer flushes every `n` bytes."""
    stream = zlib.compressobj(wbits=wbits, **parameters)
    written = [stream.compress(data[i : i + n]) + stream.flush(zlib.Z_FULL_FLUSH) for i in range(0, len(data), n)]
    return b"".join(written) + stream.flush()


def named_gzip(data):
    """Return a member with all fields that a header may have, as long as they may be."""
    extra, text = struct.pack("<H", 65535) + bytes(65535), b"x" * 4095 + b"\0"
    head = bytes([0x1F, 0x8B, 8, sum(FLAGS.values())]) + bytes(6)
    plain = gzip.compress(data, 0, mtime=0)
    return head + extra + text + text + plain[10:]


def flushed_zstd(data):
    """Return a frame of a block for each byte."""
    blocks = [(8 | (i + 1 == len(data))).to_bytes(3, "little") + data[i : i + 1] for i in range(len(data))]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


def skippable(nbytes, kind=0):
    return struct.pack("<II", 0x184D2A50 + kind, nbytes) + bytes(nbytes)


def small_blocks(data):
    return numcodecs.Blosc(cname="lz4", clevel=9, shuffle=0, blocksize=128).encode(np.frombuffer(data, "u1"))


zstd = numcodecs.Zstd().encode
FIXED, LITTLE = {"strategy": zlib.Z_FIXED}, {"memLevel": 1, "wbits": 9}
ENCODINGS = {
    "gzip, stored": (GzipCodec(), lambda data: gzip.compress(data, 0)),
    "gzip with long fields": (GzipCodec(), named_gzip),
    "gzip, a member for each byte": (GzipCodec(), in_pieces(gzip.compress, 1)),
    "gzip, flushed after each byte": (GzipCodec(), lambda data: deflated(data, 31, 1)),
    "zlib, stored, with little memory": (zn.Zlib(), lambda data: deflated(data, n=KIB, level=0, **LITTLE)),
    "zlib, fixed codes": (zn.Zlib(), lambda data: deflated(data, 15, KIB, **FIXED)),
    "zlib, flushed after each byte": (zn.Zlib(), lambda data: deflated(data, 15, 1)),
    "zstd, a frame for each byte": (ZstdCodec(), in_pieces(zstd, 1)),
    "zstd, a block for each byte": (ZstdCodec(), flushed_zstd),
    "zstd behind a skippable frame": (ZstdCodec(), lambda data: skippable(900 * KIB) + zstd(data)),
    "zstd between skippable frames": (ZstdCodec(), in_pieces(lambda part: skippable(20) + zstd(part), 64)),
    "lz4": (zn.LZ4(), numcodecs.LZ4().encode),
    "blosc of small blocks": (BloscCodec(), small_blocks),
    "blosc with bytes behind": (BloscCodec(), lambda data: bytes(small_blocks(data)) + bytes(900 * KIB)),
    "zstd and checksums": ([ZstdCodec(), *[Crc32cCodec()] * 5], None),
    "checksums in gzip": ([zn.Fletcher32(), zn.CRC32(), zn.Adler32(), zn.JenkinsLookup3(), GzipCodec(level=0)], None),
    "compressors of compressors": ([GzipCodec(level=0), ZstdCodec(), BloscCodec(), zn.LZ4(), zn.Zlib(level=0)], None),
}


@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
@pytest.mark.parametrize("nbytes", LENGTHS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chunk_that_is_longer_encoded_is_read(tmp_path, encoding, nbytes, layout):
    codecs, encode = ENCODINGS[encoding]
    shards = {"shards": (2 * nbytes,)} if layout == "sharded" else {}
    array = zarr.create_array(
        LocalStore(tmp_path), shape=(2 * nbytes,), chunks=(nbytes,), dtype="u1", compressors=codecs, **shards
    )
    data = np.random.default_rng(0).integers(0, 256, 2 * nbytes, "u1")
    array[...] = data
    if encode is not None:
        encoded = bytes(encode(data[:nbytes].tobytes()))
        put(array.store, "c/0", with_chunk(take(array.store, "c/0"), 2, 0, encoded) if shards else encoded)

    assert_same_bits(read_array(array, device="host"), array[...])


WIDENED = {
    "astype": numcodecs.AsType(decode_dtype="|u1", encode_dtype="<f8"),
    "delta": numcodecs.Delta(dtype="|u1", astype="<i8"),
    "fixedscaleoffset": numcodecs.FixedScaleOffset(dtype="|u1", astype="<f8", scale=3, offset=1),
}


@pytest.mark.parametrize("codec", WIDENED)
def test_chunk_of_longer_elements_is_read(tmp_path, codec):
    grid = {"shape": (2 * MIB,), "chunks": (MIB,), "dtype": "u1", "zarr_format": 2}
    array = zarr.create_array(tmp_path, **grid, filters=[WIDENED[codec]], compressors=numcodecs.Zlib(level=0))
    array[...] = np.resize(np.arange(251, dtype="u1"), array.shape)

    assert_same_bits(read_array(array, device="host"), array[...])


@pytest.mark.host_decoder
def test_codecs_that_zarr_python_decodes_have_no_bound(tmp_path):
    array = zarr.create_array(
        tmp_path, shape=(16,), chunks=(8,), dtype="i4", filters=[numcodecs.Base64()], compressors=None, zarr_format=2
    )
    array[...] = np.arange(16, dtype="i4")
    (tmp_path / "0").write_bytes((tmp_path / "0").read_bytes() + b"\n" * 2 * MIB)

    assert_same_bits(read_array(array, device="host"), array[...])


@pytest.mark.every_value
@pytest.mark.parametrize("nbytes", [0, 1, 5, 100])
@pytest.mark.parametrize("chunks", [(0, 1), (1,)], ids=["all", "second"])
@pytest.mark.parametrize("n_rows", [2, 1024], ids=["short chunks", "chunks that are decoded as they are read"])
def test_a_frame_after_a_skippable_one_is_read(memory, n_rows, chunks, nbytes):
    array = zarr.create_array(
        memory, shape=(2 * n_rows, 4096), chunks=(n_rows, 4096), dtype="i4", compressors=ZstdCodec()
    )
    array[...] = counting(array.shape, "i4")
    for chunk in chunks:
        put(memory, f"c/{chunk}/0", skippable(nbytes, chunk) + take(memory, f"c/{chunk}/0"))

    assert_same_values(read_array(array, device="host"), array[...])
