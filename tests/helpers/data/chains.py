"""Strategies for chains of codecs: filters of elements, then compressors, checksums and filters of bytes."""

from typing import Any, NamedTuple

import numcodecs
import numpy as np
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8")
NUMBERS = tuple(d for d in DTYPES if d[0] in "iuf")
SHAPES = [((12,), (6,), (12,)), ((7, 6), (4, 3), (8, 6)), ((3, 5, 4), (2, 3, 4), (2, 6, 4)), ((1, 1), (1, 1), (2, 2))]
"""(shape, inner chunks, shards)."""


class Chain(NamedTuple):
    """Codecs of elements by their names in numcodecs, and the dtypes before and behind them."""

    start: str
    codecs: tuple = ()
    end: str = ""


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
def chains(draw: Any, orders: str = "<") -> Chain:
    """Up to three codecs of elements, each dtype in one of some byte orders."""
    start = end = draw(st.sampled_from(DTYPES))
    codecs = []
    for _ in range(draw(st.integers(0, 3)) if start != "c8" else 0):
        name, conf, end = codec(draw, end, orders)
        codecs.append((name, conf))
    return Chain(start, tuple(codecs), end)


STORED_V3 = {
    "stored": BloscCodec(cname="lz4", clevel=0, shuffle="noshuffle", typesize=1),
    "shuffle of 2": zn.Shuffle(elementsize=2),
    "shuffle of 4": zn.Shuffle(elementsize=4),
}
STORED_V2 = {
    "stored": numcodecs.Blosc("lz4", 0, 0),
    "shuffle of 2": numcodecs.Shuffle(2),
    "shuffle of 4": numcodecs.Shuffle(4),
    "delta of bytes": numcodecs.Delta("|u1"),
    "long bytes": numcodecs.AsType(encode_dtype="<i8", decode_dtype="|u1"),
}
"""A compressor whose result is a whole number of elements, and filters that take it."""

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
} | STORED_V3
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
} | STORED_V2


def zn_codec(codec_id: str, conf: dict[str, Any]) -> Any:
    """Return a codec as format 3 has it."""
    names = {"fixedscaleoffset": "FixedScaleOffset", "astype": "AsType", "packbits": "PackBits", "bitround": "BitRound"}
    return getattr(zn, names.get(codec_id, codec_id.title()))(**conf)


def some_of(shape: tuple[int, ...], draw: Any) -> tuple[slice, ...]:
    """Draw a slice along each axis."""
    return tuple(slice(draw(st.integers(0, n - 1)), None, draw(st.integers(1, 2))) for n in shape)
