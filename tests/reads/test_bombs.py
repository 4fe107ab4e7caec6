"""Chunks of a few kilobytes that stand for gigabytes: refused, in memory of about the size of a chunk."""

import gzip
import struct
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.data import blosc_frames
from helpers.data.damage import explained
from helpers.data.zstd_frames import KIB, header
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from helpers.traced import takes_less_than
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, read_array

pytestmark = [pytest.mark.every_decoder, pytest.mark.doubtful_frames, pytest.mark.timeout(120)]

MIB = 1024 * KIB
GIB = 1024 * MIB
CHUNKS = {"chunk in one piece": MIB, "chunk as a stream": 16 * MIB}
SLACK_NBYTES = 32 * MIB
"""Of pinned slots, tables and buffers of pieces, beside a few chunks."""


def endless_zstd(content_size, width, n_blocks=16384):
    """Return a frame of 64 KB whose blocks say "one byte, 131072 times": 2 GiB."""
    repeated = (128 * KIB << 3 | 2).to_bytes(3, "little") + b"x"
    end = (128 * KIB << 3 | 3).to_bytes(3, "little") + b"x"
    return header(content_size=content_size, width=width, window=7 << 3) + repeated * n_blocks + end


def zeros_deflated(n_mib):
    """Return raw deflate blocks of zeros, and no last one."""
    stream = zlib.compressobj(9, wbits=-15)
    return (stream.compress(bytes(MIB)) + stream.flush(zlib.Z_FULL_FLUSH)) * n_mib


def many_gzip(n):
    return gzip.compress(bytes(n - 1)) * (2 * GIB // n)


def endless_gzip(n):
    return gzip.compress(b"")[:10] + zeros_deflated(2048) + b"\3\0" + struct.pack("<II", 0, n)


def endless_zlib(_):
    return b"\x78\x9c" + zeros_deflated(2048) + b"\3\0" + bytes(4)


def lz4_block(_, nbytes=MIB):
    """Return a block of one repeated byte, 255 times as long."""
    return b"\x1fx\1\0" + b"\xff" * nbytes


def endless_lz4(declared):
    return struct.pack("<I", declared) + lz4_block(declared, 8 * MIB) + b"\0"


def blosc(cname, stream, **fields):
    flags = 16 | blosc_frames.CODECS.index(cname) << 5
    return lambda n: blosc_frames.assemble(
        [blosc_frames.streams(stream(n))],
        **{"flags": flags, "typesize": 4, "nbytes": n, "blocksize": n} | fields,
    )


BOMBS = {
    "zstd that declares 8 TiB": (ZstdCodec(), lambda _: endless_zstd(8 * 1024 * GIB, 8)),
    "zstd that declares a chunk": (ZstdCodec(), lambda n: endless_zstd(n, 4)),
    "zstd that declares nothing": (ZstdCodec(), lambda _: endless_zstd(0, 0)),
    "many zstd frames": (ZstdCodec(), lambda _: bytes(numcodecs.Zstd().encode(bytes(MIB))) * 2048),
    "gzip": (GzipCodec(), endless_gzip),
    "many gzip members": (GzipCodec(), many_gzip),
    "zlib": (zn.Zlib(), endless_zlib),
    "lz4 that declares 2 GiB": (zn.LZ4(), lambda _: endless_lz4(2 * GIB - 1)),
    "lz4 that declares a chunk": (zn.LZ4(), endless_lz4),
    "blosc that declares 2 GiB": (BloscCodec(), blosc("lz4", lz4_block, nbytes=2 * GIB - 32)),
    "blosc of long blocks": (BloscCodec(), blosc("lz4", lz4_block, blocksize=2 * GIB - 32)),
    "blosc of lz4": (BloscCodec(), blosc("lz4", lz4_block)),
    "blosc of zstd": (BloscCodec(), blosc("zstd", lambda n: endless_zstd(n, 4))),
    "blosc of zlib": (BloscCodec(), blosc("zlib", endless_zlib)),
    "zstd in zstd": (
        [ZstdCodec(), zn.Zstd(level=1)],
        lambda n: bytes(numcodecs.Zstd().encode(endless_zstd(n, 4, n_blocks=65536))),
    ),
    "zstd that is no zstd inside": ([GzipCodec(), ZstdCodec()], lambda _: endless_zstd(0, 0)),
    "gzip that is no zstd inside": ([ZstdCodec(), GzipCodec()], many_gzip),
    "zlib that is no zstd inside": ([ZstdCodec(), zn.Zlib()], endless_zlib),
    "zstd that has no checksum": ([Crc32cCodec(), ZstdCodec()], lambda _: endless_zstd(0, 0)),
    "shuffled": ([zn.Shuffle(elementsize=4), ZstdCodec()], lambda n: endless_zstd(n, 4)),
}  # fmt: skip


@pytest.mark.every_value
@pytest.mark.parametrize("layout", ["sharded", "unsharded"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_bomb_is_refused_in_the_memory_of_a_chunk(bomb, chunk, layout):
    nbytes = CHUNKS[chunk]
    compressors, make = BOMBS[bomb]
    array, key = with_one_chunk(nbytes, compressors, make(nbytes), sharded=layout == "sharded")
    read_array(array, slice(-1, None), device="host")  # so that what is kept between reads is there

    with takes_less_than(8 * nbytes + SLACK_NBYTES), explained(CorruptChunkError, key, "chunk (0,)"):
        read_array(array, slice(nbytes), device="host")


def with_one_chunk(nbytes, compressors, encoded, *, sharded):
    """Return an array whose first chunk is `encoded`, and the name of its object; the last chunk is missing."""
    layout = {"chunks": (nbytes,), "shards": (2 * nbytes,)} if sharded else {"chunks": (nbytes,)}
    store = MemoryStore()
    array = zarr.create_array(store, shape=(4 * nbytes,), dtype="u1", fill_value=1, compressors=compressors, **layout)
    if sharded:
        array[:8] = np.arange(8, dtype="u1")
        encoded = with_chunk(take(store, "c/0"), 2, 0, encoded)
    put(store, "c/0", encoded)
    return array, "c/0"
