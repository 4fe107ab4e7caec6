"""Addresses of decoders and encoders of other libraries, which the compiled loops call for each chunk.

The extension modules of numcodecs, which zarr-python requires, contain libzstd, C-Blosc and lz4; that of deflate
contains libdeflate. Their functions are looked up by name in the module; `docs/decisions/upstream.md` lists the names.
If a module does not export a function, Python decodes or encodes the chunks, and `why_slow` says so. Blosc frames of
snappy are decoded by the C-Blosc of imagecodecs, since that of numcodecs does not know snappy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

Codec = Literal["raw", "zstd", "blosc", "blosc of snappy", "lz4", "zlib", "gzip"]
"""Names of the codecs that the loops know."""
_Direction = Literal["decode", "encode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCodec:
    """Addresses of the functions that decode a codec; 0 where the codec has no such function."""

    number: int
    """Number of the codec in `enum codec` of `job.h`."""
    decode: int = 0
    """Decodes a whole chunk."""
    make_context: int = 0
    free_context: int = 0
    decode_part: int = 0
    """Decodes a part of a chunk."""
    restart: int = 0
    """Prepares a context for `decode_part`."""
    error_name: int = 0
    """Returns the name of an error code. Only Python calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEncoder:
    """Addresses of the functions that encode a codec; 0 where the codec has no such function."""

    encode: int
    """Encodes a whole chunk; 0 for chunks that are stored raw."""
    make_context: int = 0
    free_context: int = 0
    set_parameter: int = 0
    """Sets a parameter of a context, such as the level. Without it, `make_context` takes the level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Functions:
    """Names of a library's functions."""

    module: str
    """Extension module that exports the functions."""
    names: Mapping[str, str]
    """Name of each function in C, by the field of `NativeCodec` or `NativeEncoder` that takes its address."""


_NUMBERS: Mapping[Codec, int] = {
    "raw": 0,
    "zstd": 1,
    "blosc": 2,
    "blosc of snappy": 2,
    "lz4": 3,
    "zlib": 4,
    "gzip": 5,
}
"""Numbers of the codecs in `enum codec` of `job.h`."""
_BLOSC = {"decode": "blosc_decompress_ctx", "decode_part": "blosc_getitem"}
_DECOMPRESSOR = {
    "make_context": "libdeflate_alloc_decompressor",
    "free_context": "libdeflate_free_decompressor",
}
_DECODERS: Mapping[Codec, _Functions] = {
    "zstd": _Functions(
        module="numcodecs.zstd",
        names={
            "decode": "ZSTD_decompressDCtx",
            "make_context": "ZSTD_createDCtx",
            "free_context": "ZSTD_freeDCtx",
            "decode_part": "ZSTD_decompressStream",
            "restart": "ZSTD_initDStream",
            "error_name": "ZSTD_getErrorName",
        },
    ),
    "blosc": _Functions(module="numcodecs.blosc", names=_BLOSC),
    "blosc of snappy": _Functions(module="imagecodecs._blosc", names=_BLOSC),
    "lz4": _Functions(
        module="numcodecs.lz4",
        names={"decode": "LZ4_decompress_safe", "decode_part": "LZ4_decompress_safe_partial"},
    ),
    "zlib": _Functions(module="deflate._deflate", names={"decode": "libdeflate_zlib_decompress_ex", **_DECOMPRESSOR}),
    "gzip": _Functions(module="deflate._deflate", names={"decode": "libdeflate_gzip_decompress_ex", **_DECOMPRESSOR}),
}
_COMPRESSOR = {
    "make_context": "libdeflate_alloc_compressor",
    "free_context": "libdeflate_free_compressor",
}
_ENCODERS: Mapping[Codec, _Functions] = {
    "zstd": _Functions(
        module="numcodecs.zstd",
        names={
            "encode": "ZSTD_compress2",
            "make_context": "ZSTD_createCCtx",
            "free_context": "ZSTD_freeCCtx",
            "set_parameter": "ZSTD_CCtx_setParameter",
        },
    ),
    "blosc": _Functions(module="numcodecs.blosc", names={"encode": "blosc_compress_ctx"}),
    "lz4": _Functions(module="numcodecs.lz4", names={"encode": "LZ4_compress_fast"}),
    "zlib": _Functions(module="deflate._deflate", names={"encode": "libdeflate_zlib_compress", **_COMPRESSOR}),
    "gzip": _Functions(module="deflate._deflate", names={"encode": "libdeflate_gzip_compress", **_COMPRESSOR}),
}


@cache
def _addresses(direction: _Direction, codec: Codec) -> dict[str, int] | str:
    """Return the addresses of a codec's functions by field name, or a text that says why they cannot be called."""
    table = _DECODERS if direction == "decode" else _ENCODERS
    functions = table[codec]
    try:
        library = ctypes.CDLL(import_module(functions.module).__file__)
    except (ImportError, OSError) as err:
        return f"{functions.module}: {err}"
    addresses: dict[str, int] = {}
    for field, name in functions.names.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            return f"{functions.module} does not export {name}"
        addresses[field] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return addresses


@cache
def native_codec(codec: Codec) -> NativeCodec | None:
    """Return the functions that decode a codec; None if its library cannot be loaded or does not export them."""
    if codec == "raw":
        return NativeCodec(number=_NUMBERS[codec])
    addresses = _addresses("decode", codec)
    return None if isinstance(addresses, str) else NativeCodec(number=_NUMBERS[codec], **addresses)


@cache
def native_encoder(codec: Codec) -> NativeEncoder | None:
    """Return the functions that encode a codec.

    Returns None if its library cannot be loaded or does not export them, or if the loops only decode the codec.
    """
    if codec == "raw":
        return NativeEncoder(encode=0)
    if codec not in _ENCODERS:
        return None
    addresses = _addresses("encode", codec)
    return None if isinstance(addresses, str) else NativeEncoder(**addresses)


def why_slow(codec: Codec) -> str:
    """Return why the loops cannot call the library of a codec, and what to install; an empty string if they can.

    The text is also empty for "raw", which has no library. Nothing is said about encoding a codec that the loops only
    decode.
    """
    reasons = []
    if codec in _DECODERS:
        reasons.append(_why_slow("decode", codec, _DECODERS[codec]))
    if codec in _ENCODERS:
        reasons.append(_why_slow("encode", codec, _ENCODERS[codec]))
    return "; ".join(filter(None, reasons))


def _why_slow(direction: _Direction, codec: Codec, functions: _Functions) -> str:
    addresses = _addresses(direction, codec)
    if not isinstance(addresses, str):
        return ""
    package = functions.module.split(".", maxsplit=1)[0]
    return f"{codec} is {direction}d slowly, as {addresses}; install the wheel of a {package} that does"


def slow_codecs() -> list[str]:
    """Return `why_slow` of each codec that the loops cannot call, except for codecs of optional dependencies."""
    # All codecs of required dependencies are in `_ENCODERS`. "blosc of snappy", of imagecodecs, is only in `_DECODERS`.
    return [*filter(None, map(why_slow, _ENCODERS))]
