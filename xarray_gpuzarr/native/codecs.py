"""Decoders of other libraries, by address: what the loops call for a chunk.

imagecodecs brings libzstd, C-Blosc, lz4 and libdeflate as libraries of their own, or takes those of the system; each is
found through the module that is linked with it.
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


@dataclass(frozen=True, slots=True)
class _Functions:
    number: int
    module: str
    decode: str
    make_context: str = ""
    free_context: str = ""
    decode_part: str = ""
    restart: str = ""


_DEFLATE = ("libdeflate_alloc_decompressor", "libdeflate_free_decompressor")
_ZSTD = ("ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressStream", "ZSTD_initDStream")
_FUNCTIONS: Mapping[Codec, _Functions] = {
    "zstd": _Functions(1, "_zstd", "ZSTD_decompressDCtx", *_ZSTD),
    "blosc": _Functions(2, "_blosc", "blosc_decompress_ctx", decode_part="blosc_getitem"),
    "lz4": _Functions(3, "_lz4", "LZ4_decompress_safe", decode_part="LZ4_decompress_safe_partial"),
    "zlib": _Functions(4, "_deflate", "libdeflate_zlib_decompress_ex", *_DEFLATE),
    "gzip": _Functions(5, "_deflate", "libdeflate_gzip_decompress_ex", *_DEFLATE),
}


@cache
def native_codec(codec: Codec) -> NativeCodec | None:
    """Return a codec with the addresses of its functions; None where its library shows none."""
    if codec == "raw":
        return NativeCodec(number=0)
    functions = _FUNCTIONS[codec]
    try:
        module = import_module(f"imagecodecs.{functions.module}")
        library = ctypes.CDLL(module.__file__)
        found = {
            name: ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
            for name in ("decode", "make_context", "free_context", "decode_part", "restart")
            if (function := getattr(functions, name))
        }
    except (ImportError, OSError, AttributeError):
        return None
    return NativeCodec(number=functions.number, **found)
