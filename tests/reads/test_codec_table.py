"""The table in docs/codecs.md: every codec of it is decoded where its row says, and `explain` says so too."""

from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.data.corpus import write, write_nested_shards
from helpers.data.registered_filters import CastValue, ScaleOffset
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders import decoder_for
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.codec_json import parse_codecs, parse_v2_codecs
from xarray_gpuzarr.stored.codecs import OtherSpec

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
    "quantize, bitround": [
        ("f4", {"filters": [zn.Quantize(digits=2, dtype="<f4"), zn.BitRound(keepbits=9)]}),
    ],
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


def backticked(cell):
    return [
        name for name in cell.split("`")[1::2] if name not in ("order: F", "sharding_indexed", "bytes", "transpose")
    ]


CONFIGURATIONS = {
    "blosc": {"cname": "lz4", "shuffle": "shuffle"},
    "delta": {"dtype": "<f4"},
    "fixedscaleoffset": {"dtype": "<f4", "scale": 1, "offset": 0},
    "astype": {"encode_dtype": "<i2", "decode_dtype": "<f4"},
    "quantize": {"dtype": "<f4"},
    "cast_value": {"data_type": "int16"},
}
OF_ELEMENTS = {"fixedscaleoffset", "delta", "astype", "quantize", "bitround", "packbits", "scale_offset", "cast_value"}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.mark.parametrize("name", [name for row in ROWS.values() for name in backticked(row[0])])
def test_v3_name_is_known(name):
    plain = name.removeprefix("numcodecs.")
    entry = {"name": name, "configuration": CONFIGURATIONS.get(plain, {})}
    entries = [entry, LITTLE] if plain in OF_ELEMENTS else [LITTLE, entry]

    assert parse_codecs(entries, np.dtype("?" if plain == "packbits" else "f4")).other is None


@pytest.mark.parametrize("name", [name for row in ROWS.values() for name in backticked(row[1])])
def test_v2_id_is_known(name):
    conf = {"id": name} | CONFIGURATIONS.get(name, {})
    pipeline = parse_v2_codecs(compressor=None, filters=[conf], order="C", endian="little", ndim=1)

    assert pipeline.other is None


def test_codecs_of_numcodecs_that_are_not_in_the_table_are_left_to_zarr():
    known = {name for row in ROWS.values() for name in backticked(row[1])}
    other = [codec_id for codec_id in numcodecs.registry.codec_registry if codec_id not in known]

    assert other
    for codec_id in other:
        pipeline = parse_v2_codecs(compressor={"id": codec_id}, filters=None, order="C", endian="little", ndim=1)
        assert isinstance(pipeline.other, OtherSpec)


def test_zarr_knows_no_other_names_of_these_codecs():
    named = {name for row in ROWS.values() for name in row[0].split("`")[1::2]}
    known = {name for name in zarr.registry._codec_registries if name.startswith("numcodecs.")}

    assert {name for name in named if name.startswith("numcodecs.")} == known - {
        *("numcodecs.bz2", "numcodecs.lzma", "numcodecs.zfpy", "numcodecs.pcodec"),
    }
