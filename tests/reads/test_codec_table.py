"""The table in docs/codecs.md: every codec of it is decoded where its row says, and `explain` says so too."""

from pathlib import Path

import numpy as np
import pytest
from helpers.data.corpus import write, write_nested_shards
from helpers.data.registered_filters import CastValue, ScaleOffset
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import stored_array

PAGE = Path(__file__).parents[2] / "docs" / "codecs.md"
RAW = {"compressors": None}
CHAINS = {
    "bytes, both orders": [("i4", RAW), ("i4", RAW | {"serializer": BytesCodec(endian="big")})],
    "transpose": [("i4", RAW | {"filters": TransposeCodec(order=(1, 0))})],
    "zstd": [("i4", {"compressors": ZstdCodec()}), ("i4", {"compressors": zn.Zstd()})],
    "gzip": [("i4", {"compressors": GzipCodec()}), ("i4", {"compressors": zn.GZip()})],
    "zlib": [("i4", {"compressors": zn.Zlib()})],
    "lz4": [("i4", {"compressors": zn.LZ4()})],
    "blosc: blosclz, lz4, lz4hc, zlib, zstd, snappy; all shuffles": [
        ("i4", {"compressors": BloscCodec(cname=cname, shuffle=shuffle, typesize=4)})
        for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    ],
    "crc32c": [("i4", {"compressors": Crc32cCodec()}), ("i4", {"compressors": [ZstdCodec(), zn.CRC32C()]})],
    "crc32, adler32": [("i4", {"compressors": [zn.Zlib(), zn.CRC32(), zn.Adler32()]})],
    "fletcher32, jenkins_lookup3": [("i4", {"compressors": [zn.Fletcher32(), zn.JenkinsLookup3(initval=1)]})],
    "shuffle": [("i4", {"compressors": [zn.Shuffle(elementsize=4), ZstdCodec()]})],
    "delta": [("i4", RAW | {"filters": zn.Delta(dtype="<i4")}), ("f4", {"filters": zn.Delta(dtype="<f4")})],
    "fixedscaleoffset": [("f4", {"filters": zn.FixedScaleOffset(offset=0, scale=9, dtype="<f4", astype="<i2")})],
    "astype": [("f4", {"filters": zn.AsType(encode_dtype="<i2", decode_dtype="<f4")})],
    "quantize, bitround": [("f4", {"filters": [zn.Quantize(digits=2, dtype="<f4"), zn.BitRound(keepbits=9)]})],
    "packbits": [("?", RAW | {"filters": zn.PackBits()})],
    "scale_offset": [("i4", {"filters": ScaleOffset(offset=1, scale=2)}), ("f4", {"filters": ScaleOffset(scale=0.5)})],
    "cast_value": [("f4", {"filters": CastValue(data_type="int16", out_of_range="clamp")})],
    "sharding, index at start or end, with or without crc32c": [
        ("i4", {"shards": {"shape": (4, 6), "index_location": "start"}})
    ],
    "everything else: bz2, lzma, zfp, pcodec, nested shards …": [
        ("i4", {"compressors": zn.BZ2()}),
        ("i4", {"compressors": zn.LZMA()}),
    ],
}
"""Arrays of each row: dtype and keywords."""


def rows():
    """Return the cells of each row of the first table of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return {row[0]: row[1:] for row in cells[1:] if len(row) == 5}


ROWS = rows()


def arrays(name):
    for dtype, keywords in CHAINS[name]:
        yield write(MemoryStore(), np.ones((4, 6), dtype), **({"chunks": (2, 3), "fill_value": 0} | keywords))


def test_every_row_has_a_chain():
    assert [*ROWS] == [*CHAINS]


@pytest.mark.parametrize("name", CHAINS)
def test_codec_is_decoded_where_its_row_says(name):
    host, cuda = ROWS[name][2:]
    by = "host, by zarr-python" if host == "by zarr-python" else "host"
    on_device = f"{by}, then one copy to the device" if cuda == "decoded on the host, then copied up" else "cuda"
    for array in arrays(name):
        stored = stored_array(array)
        assert stored.route(decoder_for("host")).where == by
        assert stored.route(CudaDecoder(SimulatedDevice)).where == on_device


def test_nested_shards_are_decoded_where_their_row_says(memory):
    route = stored_array(write_nested_shards(memory, np.ones((4, 6)))).route(CudaDecoder(SimulatedDevice))

    assert route.where == "host, by zarr-python, then one copy to the device"
