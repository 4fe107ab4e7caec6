"""Decoders and encoders of other libraries, by address: what the loops call for a chunk.

imagecodecs brings libzstd, C-Blosc, lz4 and libdeflate as libraries of their own, or takes those of the system; each is
found through the module that is linked with it. Encoders are zarr-python's, those of numcodecs, where it shows them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

Codec = Literal["raw", "zstd", "blosc", "lz4", "zlib", "gzip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCodec:
    """A codec as `loops.c` knows it; addresses are 0 where it has none."""

    number: int
    decode: int = 0
    make_context: int = 0
    free_context: int = 0
    decode_part: int = 0
    restart: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEncoder:
    """What encodes chunks; addresses are 0 where it needs none."""

    encode: int
    make_context: int = 0
    free_context: int = 0
    set_parameter: int = 0


_DEFLATE = {"make_context": "libdeflate_alloc_decompressor", "free_context": "libdeflate_free_decompressor"}
_ZSTD = {"make_context": "ZSTD_createDCtx", "free_context": "ZSTD_freeDCtx"}
_ZSTD |= {"decode_part": "ZSTD_decompressStream", "restart": "ZSTD_initDStream"}
_DECODERS: Mapping[Codec, tuple[int, str, Mapping[str, str]]] = {
    "zstd": (1, "_zstd", {"decode": "ZSTD_decompressDCtx", **_ZSTD}),
    "blosc": (2, "_blosc", {"decode": "blosc_decompress_ctx", "decode_part": "blosc_getitem"}),
    "lz4": (3, "_lz4", {"decode": "LZ4_decompress_safe", "decode_part": "LZ4_decompress_safe_partial"}),
    "zlib": (4, "_deflate", {"decode": "libdeflate_zlib_decompress_ex", **_DEFLATE}),
    "gzip": (5, "_deflate", {"decode": "libdeflate_gzip_decompress_ex", **_DEFLATE}),
}
"""The number of each, its module of imagecodecs, and the functions of that module's library."""

_COMPRESSOR = ("libdeflate_alloc_compressor", "libdeflate_free_compressor")
_ENCODERS: Mapping[Codec, tuple[str, ...]] = {
    "zstd": ("numcodecs.zstd", "ZSTD_compress2", "ZSTD_createCCtx", "ZSTD_freeCCtx", "ZSTD_CCtx_setParameter"),
    "blosc": ("numcodecs.blosc", "blosc_compress_ctx"),
    "lz4": ("numcodecs.lz4", "LZ4_compress_fast"),
    "zlib": ("imagecodecs._deflate", "libdeflate_zlib_compress", *_COMPRESSOR),
    "gzip": ("imagecodecs._deflate", "libdeflate_gzip_compress", *_COMPRESSOR),
}
"""Modules of codecs that the loops encode, and their functions in the order of `NativeEncoder`."""


def _addresses(module: str, names: Mapping[str, str]) -> dict[str, int] | None:
    """Return where functions of a module's library are; None where one is not shown."""
    try:
        library = ctypes.CDLL(import_module(module).__file__)
        functions = {name: getattr(library, function) for name, function in names.items()}
        return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in functions.items()}
    except (ImportError, OSError, AttributeError):
        return None


@cache
def native_codec(codec: Codec) -> NativeCodec | None:
    """Return a codec with the addresses of its functions; None where its library shows none."""
    if codec == "raw":
        return NativeCodec(number=0)
    number, module, functions = _DECODERS[codec]
    addresses = _addresses(f"imagecodecs.{module}", functions)
    return None if addresses is None else NativeCodec(number=number, **addresses)


@cache
def native_encoder(codec: Codec) -> NativeEncoder | None:
    """Return the addresses of what encodes chunks; None if its library shows none, or the loops only decode it."""
    if codec == "raw":
        return NativeEncoder(encode=0)
    if codec not in _ENCODERS:
        return None
    module, *functions = _ENCODERS[codec]
    addresses = _addresses(module, dict(zip(NativeEncoder.__slots__, functions, strict=False)))
    return None if addresses is None else NativeEncoder(**addresses)
