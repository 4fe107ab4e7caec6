"""`Encoder`: how the compiled loops encode the chunks of an array, derived from its metadata once.

The loops write raw elements, transposed and in either byte order, compressed or not, with checksums behind them.
zarr-python writes everything else, such as filters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.compressors import advise_of_slow_codecs, native_name
from xarray_gpuzarr.decoders.host.host_array import HostArray, host_array
from xarray_gpuzarr.decoders.host.native_steps import Steps
from xarray_gpuzarr.native.codec_functions import Codec, NativeEncoder, native_encoder
from xarray_gpuzarr.native.library import address, loops, why_absent
from xarray_gpuzarr.native.structs import EncoderStruct
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesBytesSpec,
    BytesSpec,
    ChecksumSpec,
    CompressorSpec,
    GzipSpec,
    Lz4Spec,
    TransposeSpec,
    ZlibSpec,
    ZstdSpec,
)

_CRC_NBYTES = 4
_MOST_NBYTES = 0x7E000000
"""Largest chunk of LZ4; C-Blosc takes 17 MB more, and other compressors any."""
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_AUTO_SHUFFLE = -1
_MOST_OF_INT = 2**31
_LEVELS = range(-1, 10)
"""Levels of zlib; those of C-Blosc begin at 0."""
_CNAMES = (b"blosclz", b"lz4", b"lz4hc", b"zlib", b"zstd")
"""Compressors in the C-Blosc of numcodecs."""


@record
class Encoder:
    """How the chunks of an array are encoded, for all writes."""

    array: HostArray
    """The array as it is decoded, with the elements that are stored."""
    struct: EncoderStruct
    """Arguments of the loops, without those of a single write."""
    order: Column
    """Numbers of the chunks of an object in stored order."""
    referenced: object
    """Objects that `struct` points to."""


@lru_cache(maxsize=128)
def encoder_of(spec: ArraySpec, order: str) -> Encoder | str:
    """Return how the loops encode chunks, or why zarr-python has to.

    `order` says how the chunks of a shard follow each other; see `zarr.codecs.ShardingCodec`.
    """
    compiled = loops()
    if compiled is None:
        return f"no compiled loops: {why_absent()}"
    codecs, index = spec.codecs, spec.index
    of_bytes, compressor, n_checksums = list(codecs.bytes_to_bytes), None, 0
    while of_bytes and of_bytes[-1] == ChecksumSpec(algorithm="crc32c"):
        of_bytes.pop()
        n_checksums += 1
    if of_bytes and isinstance(of_bytes[0], CompressorSpec):
        compressor = of_bytes.pop(0)
    others = [c for c in codecs.array_to_array if not isinstance(c, TransposeSpec)], of_bytes
    if any(others) or not isinstance(codecs.array_to_bytes, BytesSpec):
        other = [*chain(*others), codecs.array_to_bytes][0]
        return f"codec {other} is encoded by zarr-python"
    if index is not None and index.endian != "little":
        return "a shard index in big endian is encoded by zarr-python"
    array = host_array(spec, Cast(dtype=spec.dtype), compiled)
    name = "raw" if compressor is None else native_name(compressor)
    functions = None if name is None or array.program is None else _functions_of(name)
    if functions is None or (name in ("lz4", "blosc") and array.chunk_nbytes > _MOST_NBYTES):
        return f"codec {compressor} is encoded by zarr-python"
    settings: dict[str, Any] | None = {}
    if compressor is not None:
        settings = _SETTINGS[type(compressor)](_configuration(spec, compressor), array.stored_dtype.itemsize)
    if settings is None:
        return f"the settings of codec {compressor} are zarr-python's to judge"
    most_nbytes = array.chunk_nbytes
    if compressor is not None:  # none adds more than a 255th, and its frame
        most_nbytes += most_nbytes // 128 + 512
    return _encoder(array, settings, functions, order, most_nbytes + n_checksums * _CRC_NBYTES)


def _functions_of(codec: Codec) -> NativeEncoder | None:
    """Return what encodes chunks; None, after advice to the user, if its library does not export it."""
    functions = native_encoder(codec)
    if functions is None:
        advise_of_slow_codecs()
    return functions


def _encoder(
    array: HostArray, settings: dict[str, Any], functions: NativeEncoder, order: str, most_nbytes: int
) -> Encoder:
    spec, stored, index = array.spec, array.stored_dtype, array.spec.index
    native = stored.newbyteorder("=")
    swap = None if stored.isnative else Steps(native, [], stored)
    per_object = np.array(spec.grid.chunks_per_shard, np.int64)
    places = _order(order, spec.grid.chunks_per_shard)
    # How many numbers of each element are compared with the fill value, 0 where their bits are. As zarr-python compares
    # them: real zeros by their bits, so that -0.0 is not 0.0, all else by value, and any NaN with any other. By value
    # and by bits is the same for what is neither zero nor NaN.
    fill = spec.fill_value
    n_numbers = 2 if fill.dtype.kind == "c" else int(fill.dtype.kind == "f" and bool(np.isnan(fill)))
    struct = EncoderStruct(
        swap=0 if swap is None else swap.address,
        **settings,
        encode=functions.encode,
        make_context=functions.make_context,
        free_context=functions.free_context,
        set_parameter=functions.set_parameter,
        most_nbytes=most_nbytes,
        n_numbers=n_numbers,
        swapped=not stored.isnative,
        n_entries=len(places),
        order=address(places),
        per_object=address(per_object),
        index_nbytes=index.nbytes if index else 0,
        index_is_first=index is not None and index.location == "start",
        index_has_checksum=index is not None and index.checksum,
    )
    return Encoder(array=array, struct=struct, order=places, referenced=(swap, per_object, functions, settings))


def _order(order: str, shape: tuple[int, ...]) -> Column:
    """Return the numbers, in C order, of the chunks of a shard in the order in which they are stored."""
    number = np.arange(math.prod(shape), dtype=np.int64)
    if order == "colexicographic":
        return np.ascontiguousarray(number.reshape(shape).T).reshape(-1)
    if order != "morton" or not shape:
        return number
    # Zarr v3 sharding: bits of the coordinates, the first axis' lowest, without those that an axis is too short for.
    coordinates = np.unravel_index(number, shape)
    key, at = np.zeros(len(number), np.uint64), 0
    for bit in range(max(shape).bit_length()):
        for axis, length in zip(coordinates, shape, strict=True):
            if bit < (length - 1).bit_length():
                key |= (axis.astype(np.uint64) >> np.uint64(bit) & np.uint64(1)) << np.uint64(at)
                at += 1
    return np.argsort(key, kind="stable").astype(np.int64)


def _configuration(spec: ArraySpec, compressor: BytesBytesSpec) -> Mapping[str, Any]:
    """Return the configuration of a compressor in the metadata of an array."""
    metadata = json.loads(spec.metadata)
    if metadata["zarr_format"] == 2:
        entries = [*(metadata.get("filters") or ()), metadata["compressor"]]
        entry = entries[spec.codecs.bytes_to_bytes.index(compressor)]
        return {**entry, "of_elements": True}
    codecs = metadata["codecs"]
    if spec.index is not None:
        (sharding,) = (c for c in codecs if isinstance(c, Mapping) and c.get("name") == "sharding_indexed")
        codecs = sharding["configuration"]["codecs"]
    entry = codecs[list(spec.codecs).index(compressor)]
    return {**entry.get("configuration", {})} if isinstance(entry, Mapping) else {}


def _integers(conf: Mapping[str, Any], **defaults: int) -> dict[str, int] | None:
    """Return settings, or their defaults where they are left out; None unless all are numbers that C takes for int."""
    settings = {name: conf.get(name, default) for name, default in defaults.items()}
    are_plain = all(isinstance(value, int) and abs(value) < _MOST_OF_INT for value in settings.values())
    return {name: int(value) for name, value in settings.items()} if are_plain else None


def _level(conf: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(conf, level=1)
    if settings is None or settings["level"] not in _LEVELS:
        return None
    return {"level": 6 if settings["level"] < 0 else settings["level"]}


def _lz4(conf: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(conf, acceleration=1)
    return None if settings is None else {"level": settings["acceleration"]}


def _zstd(conf: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(conf, level=0)
    return None if settings is None else {**settings, "checksum": bool(conf.get("checksum", False))}


def _blosc(conf: Mapping[str, Any], itemsize: int) -> dict[str, Any] | None:
    shuffle, cname = conf.get("shuffle", 1), conf.get("cname", "lz4")
    if isinstance(shuffle, str):
        shuffle = _SHUFFLES.get(shuffle)
    typesize = conf.get("typesize")
    if typesize is None:
        typesize = itemsize if conf.get("of_elements") else 1
    numbers = _integers(
        {**conf, "shuffle": shuffle, "typesize": typesize}, clevel=5, shuffle=1, typesize=1, blocksize=0
    )
    if numbers is None or not isinstance(cname, str):
        return None
    level = numbers.pop("clevel")
    if numbers["shuffle"] == _AUTO_SHUFFLE:
        numbers["shuffle"] = 2 if numbers["typesize"] == 1 else 1
    is_usual = level in _LEVELS[1:] and numbers["shuffle"] in _SHUFFLES.values()
    is_usual = is_usual and numbers["blocksize"] >= 0 and numbers["typesize"] > 0
    settings = {**numbers, "level": level, "cname": cname.encode()}
    return settings if is_usual and settings["cname"] in _CNAMES else None


_SETTINGS: Mapping[type, Callable[[Mapping[str, Any], int], dict[str, Any] | None]] = {
    ZstdSpec: _zstd,
    GzipSpec: _level,
    ZlibSpec: _level,
    Lz4Spec: _lz4,
    BloscSpec: _blosc,
}
"""Settings in `EncoderStruct` of each compressor that `native_encoder` knows; None: zarr-python judges them."""
