"""Tiny arrays of every kind, written by zarr-python and TensorStore."""

from typing import Any

import numcodecs
import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from helpers.older_versions import FILTERS_TAKE_ANY_ELEMENTS
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import parse_metadata

BLOSC_CNAMES = tuple(numcodecs.blosc.list_compressors())
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
NUMERIC_DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")

Keywords = dict[str, Any]

V3_CODECS: dict[str, Keywords] = {
    "bytes": {"compressors": None},
    "zstd": {"compressors": ZstdCodec()},
    "zstd-checksum": {"compressors": ZstdCodec(checksum=True)},
    "gzip": {"compressors": GzipCodec()},
    "crc32c": {"compressors": Crc32cCodec()},
    "zstd+crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "crc32c+zstd": {"compressors": [Crc32cCodec(), ZstdCodec()]},
    "crc32c+crc32c": {"compressors": [Crc32cCodec(), Crc32cCodec()]},
    "gzip+zstd+blosc": {"compressors": [GzipCodec(), ZstdCodec(), BloscCodec()]},
    "transpose": {"filters": TransposeCodec(order=(1, 0)), "compressors": None},
    "transpose+zstd": {"filters": TransposeCodec(order=(1, 0)), "compressors": ZstdCodec()},
    "transpose+transpose+crc32c": {
        "filters": [TransposeCodec(order=(1, 0)), TransposeCodec(order=(1, 0))],
        "compressors": Crc32cCodec(),
    },
    "big-endian": {"serializer": BytesCodec(endian="big"), "compressors": None},
    "big-endian+transpose+blosc": {
        "filters": TransposeCodec(order=(1, 0)),
        "serializer": BytesCodec(endian="big"),
        "compressors": BloscCodec(),
    },
    "numcodecs.zstd": {"compressors": zn.Zstd(level=3)},
    "numcodecs.gzip": {"compressors": zn.GZip(level=3)},
    "numcodecs.zlib": {"compressors": zn.Zlib(level=3)},
    "numcodecs.lz4": {"compressors": zn.LZ4(acceleration=1)},
    "numcodecs.blosc": {"compressors": zn.Blosc(cname="zstd", clevel=5, shuffle=2)},
} | {
    f"blosc-{cname}-{shuffle}": {"compressors": BloscCodec(cname=cname, shuffle=shuffle, typesize=4)}
    for cname in BLOSC_CNAMES
    for shuffle in SHUFFLES
}
"""Chains that the host decodes in bulk; every one suits a 2-d array of 4-byte integers."""

I4_DELTA, TRANSPOSE = zn.Delta(dtype="<i4"), TransposeCodec(order=(1, 0))

V3_FILTERS: dict[str, Keywords] = {
    "shuffle": {"compressors": zn.Shuffle(elementsize=4)},
    "shuffle+zstd": {"compressors": [zn.Shuffle(elementsize=4), ZstdCodec()]},
    "shuffle+blosc": {"compressors": [zn.Shuffle(elementsize=12), BloscCodec(cname="blosclz", shuffle="shuffle")]},
    "zstd+shuffle of bytes": {"compressors": [ZstdCodec(), zn.Shuffle(elementsize=1)]},
    "blosc+shuffle": {"compressors": [BloscCodec(clevel=0), zn.Shuffle(elementsize=4)]},
    "blosc+crc32+shuffle+zstd": {
        "compressors": [BloscCodec(clevel=0), zn.CRC32(), zn.Shuffle(elementsize=2), ZstdCodec()],
    },
    "crc32": {"compressors": zn.CRC32()},
    "crc32 at the end": {"compressors": zn.CRC32(location="end")},
    "numcodecs.crc32c": {"compressors": zn.CRC32C()},
    "adler32": {"compressors": zn.Adler32()},
    "fletcher32": {"compressors": zn.Fletcher32()},
    "jenkins_lookup3": {"compressors": zn.JenkinsLookup3(initval=7)},
    "zlib+fletcher32": {"compressors": [zn.Zlib(), zn.Fletcher32()]},
    "fletcher32+zlib": {"compressors": [zn.Fletcher32(), zn.Zlib()]},
    "zstd that the host decodes+crc32": {"compressors": [ZstdCodec(checksum=True), zn.CRC32()]},
    "zstd+adler32+crc32": {"compressors": [ZstdCodec(), zn.Adler32(), zn.CRC32()]},
    "delta": {"filters": I4_DELTA, "compressors": None},
    "delta+zstd": {"filters": I4_DELTA, "compressors": ZstdCodec()},
    "delta+zstd that the host decodes": {"filters": I4_DELTA, "compressors": ZstdCodec(checksum=True)},
    "delta as another dtype": {"filters": zn.Delta(dtype="<i4", astype="<i2"), "compressors": zn.LZ4()},
    "delta+shuffle+gzip+crc32": {
        "filters": I4_DELTA,
        "compressors": [zn.Shuffle(elementsize=4), GzipCodec(), zn.CRC32()],
    },
    "fixedscaleoffset": {"filters": zn.FixedScaleOffset(offset=5, scale=2, dtype="<i4", astype="<i2")},
    "fixedscaleoffset+delta": {
        "filters": [zn.FixedScaleOffset(offset=5, scale=1, dtype="<i4", astype="<i2"), zn.Delta(dtype="<i2")],
        "compressors": ZstdCodec(),
    },
    "astype": {"filters": zn.AsType(encode_dtype="<i8", decode_dtype="<i4")},
    "astype+shuffle+zstd": {
        "filters": zn.AsType(encode_dtype="<f8", decode_dtype="<i4"),
        "compressors": [zn.Shuffle(elementsize=8), ZstdCodec()],
    },
    "astype+transpose": {"filters": [zn.AsType(encode_dtype="<f8", decode_dtype="<i4"), TRANSPOSE]},
    "elements that begin anywhere+crc32": {
        "filters": zn.AsType(encode_dtype="<f8", decode_dtype="<i4"),
        "compressors": zn.CRC32(),
    },
}
"""Chains with filters that are decoded in bulk, for the same arrays."""

if FILTERS_TAKE_ANY_ELEMENTS:
    from zarr.codecs import CastValue, ScaleOffset

    V3_FILTERS |= {
        "transpose+delta": {"filters": [TRANSPOSE, I4_DELTA]},
        "big-endian+delta": {"filters": I4_DELTA, "serializer": BytesCodec(endian="big")},
        "big-endian+astype+crc32c": {
            "filters": zn.AsType(encode_dtype="<u2", decode_dtype="<i4"),
            "serializer": BytesCodec(endian="big"),
            "compressors": Crc32cCodec(),
        },
        "scale_offset": {"filters": ScaleOffset(offset=5, scale=3)},
        "scale_offset+transpose": {"filters": [ScaleOffset(offset=-5), TRANSPOSE], "compressors": zn.Zlib()},
        "cast_value": {"filters": CastValue(data_type="int16")},
        "big-endian+scale_offset+cast_value": {
            "filters": [ScaleOffset(offset=-1), CastValue(data_type="uint8")],
            "serializer": BytesCodec(endian="big"),
        },
    }

V3_CODECS_BY_ZARR: dict[str, Keywords] = {
    "bz2": {"compressors": zn.BZ2(level=1)},
    "lzma": {"compressors": zn.LZMA()},
    "delta+bz2": {"filters": I4_DELTA, "compressors": [zn.BZ2(), ZstdCodec()]},
}
"""Chains that only zarr-python decodes, for the same arrays."""

V2_CODECS: dict[str, Keywords] = {
    "none": {"compressors": None},
    "zstd": {"compressors": numcodecs.Zstd()},
    "zstd-checksum": {"compressors": numcodecs.Zstd(checksum=True)},
    "gzip": {"compressors": numcodecs.GZip()},
    "zlib": {"compressors": numcodecs.Zlib()},
    "lz4": {"compressors": numcodecs.LZ4()},
    "order-F": {"compressors": None, "order": "F"},
    "order-F+zstd": {"compressors": numcodecs.Zstd(), "order": "F"},
} | {
    f"blosc-{cname}-{shuffle}": {"compressors": numcodecs.Blosc(cname=cname, shuffle=shuffle)}
    for cname in BLOSC_CNAMES
    for shuffle in (0, 1, 2, -1)
}

V2_FILTERS: dict[str, Keywords] = {
    "delta+zstd": {"filters": numcodecs.Delta(dtype="<i4"), "compressors": numcodecs.Zstd()},
    "delta+order-F": {"filters": numcodecs.Delta(dtype="<i4"), "compressors": None, "order": "F"},
    "shuffle+lz4": {"filters": numcodecs.Shuffle(4), "compressors": numcodecs.LZ4()},
    "fixedscaleoffset": {"filters": numcodecs.FixedScaleOffset(offset=5, scale=2, dtype="<i4", astype=">i2")},
    "astype": {"filters": numcodecs.AsType(encode_dtype=">i8", decode_dtype="<i4")},
    "fletcher32": {"filters": numcodecs.Fletcher32(), "compressors": numcodecs.Zlib()},
    "two filters": {
        "filters": [numcodecs.Delta(dtype="<i4"), numcodecs.Shuffle(4)],
        "compressors": numcodecs.Blosc(shuffle=0),
    },
    "elements behind bytes": {
        "filters": [numcodecs.Shuffle(4), numcodecs.Delta(dtype="<u2"), numcodecs.CRC32(location="end")],
        "compressors": numcodecs.Zstd(),
    },
    "compressors among filters": {
        "filters": [numcodecs.Shuffle(4), numcodecs.Zlib(), numcodecs.Adler32()],
        "compressors": None,
    },
    "elements behind a compressor": {
        "filters": [numcodecs.Zlib(), numcodecs.Delta(dtype="|u1"), numcodecs.AsType(">i8", "|u1")],
        "compressors": numcodecs.Zstd(),
    },
    "filter as compressor": {"filters": None, "compressors": numcodecs.Delta(dtype=">i4")},
}
"""Chains with filters that are decoded in bulk."""

V2_CODECS_BY_ZARR: dict[str, Keywords] = {
    "bz2": {"compressors": numcodecs.BZ2()},
    "lzma": {"compressors": numcodecs.LZMA()},
    "delta+bz2": {"filters": numcodecs.Delta(dtype="<i4"), "compressors": numcodecs.BZ2()},
}

GRIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "0-d": ((), (), ()),
    "1-d divides": ((12,), (2,), (6,)),
    "1-d does not divide": ((11,), (2,), (6,)),
    "1-d smaller than a chunk": ((3,), (5,), (10,)),
    "one element": ((1,), (1,), (1,)),
    "one chunk a shard": ((7, 5), (3, 2), (3, 2)),
    "2-d does not divide": ((7, 5), (2, 3), (4, 3)),
    "3-d": ((5, 4, 7), (2, 4, 3), (4, 4, 6)),
    "3-d long last axis": ((3, 2, 29), (1, 2, 2), (2, 2, 20)),
    "4-d": ((3, 4, 2, 5), (1, 2, 2, 2), (2, 4, 2, 4)),
    "no elements": ((0,), (2,), (4,)),
    "no elements along one axis": ((3, 0, 2), (2, 1, 2), (4, 1, 2)),
}
"""(shape, inner chunks, shards)."""


def edge_values(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits, so that every NaN payload, subnormal and extreme integer turns up, with runs that compress."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(bool).reshape(shape)
    bits = np.frombuffer(rng.bytes(n * dtype.itemsize), dtype).copy()
    bits[: n // 3] = bits[:1]
    return bits.reshape(shape)


def counting(shape: tuple[int, ...], dtype: Any = "i4") -> np.ndarray:
    """1, 2, 3 ...: no element equals the fill value, every one tells where it came from."""
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


def spec_of(array: zarr.Array) -> ArraySpec | Unplanned:
    """Return the description of an open array."""
    return parse_metadata(array.metadata, array.path)


def write(store: Any, data: np.ndarray, **keywords: Any) -> zarr.Array:
    """Create an array with zarr-python and write `data`; chunks of nothing but the fill value stay missing."""
    array = zarr.create_array(store, shape=data.shape, dtype=data.dtype, **keywords)
    if data.size:
        array[...] = data
    return array


def write_in_shards(
    store: Any,
    data: np.ndarray,
    *,
    chunks: tuple[int, ...],
    shards: tuple[int, ...],
    index_codecs: list[Any],
    index_location: str = "end",
    **keywords: Any,
) -> zarr.Array:
    """As `write`, with the codecs of the shard index in the caller's hand."""
    sharding = ShardingCodec(
        chunk_shape=chunks,
        codecs=[BytesCodec(), ZstdCodec()],
        index_codecs=index_codecs,
        index_location=index_location,
    )
    return write(store, data, chunks=shards, serializer=sharding, compressors=None, **keywords)


def write_nested_shards(store: Any, data: np.ndarray) -> zarr.Array:
    """Write a 2-d array in shards of (4, 6), each in shards of (2, 6), each in chunks of (2, 3)."""
    inner = ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec(), ZstdCodec()])
    outer = ShardingCodec(chunk_shape=(2, 6), codecs=[inner])
    return write(store, data, chunks=(4, 6), serializer=outer, compressors=None)


def checked_shards(chunk_shape: tuple[int, ...]) -> Keywords:
    """Give the codecs of an array that zarr-python reads as a whole: each shard has a checksum around it."""
    sharded = ShardingCodec(chunk_shape=chunk_shape, codecs=[BytesCodec(), ZstdCodec()])
    return {"serializer": sharded, "compressors": Crc32cCodec()}


def tensorstore_write(path: str, data: np.ndarray, spec: Keywords) -> None:
    """Create a local array with TensorStore and write `data`."""
    full = {"kvstore": {"driver": "file", "path": path}, **spec}
    ts.open(full, create=True, dtype=data.dtype, shape=data.shape).result().write(data).result()
