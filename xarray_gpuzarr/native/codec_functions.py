"""Addresses of decoders and encoders of other libraries, which the compiled loops call for each chunk.

numcodecs, which zarr-python requires, brings libzstd, C-Blosc and lz4 inside of its extension modules, and deflate
brings libdeflate. Their functions are found by name in the module that is linked with them; the names are listed in
`docs/decisions/upstream.md`. Where a module does not export one, Python decodes or encodes the chunks, and `why_slow`
says so. The C-Blosc of numcodecs knows no snappy, that of imagecodecs does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal

Codec = Literal["raw", "zstd", "blosc", "blosc of snappy", "lz4", "zlib", "gzip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCodec:
    """A codec as `loops.c` knows it; addresses are 0 where it has none."""

    number: int
    decode: int = 0
    make_context: int = 0
    free_context: int = 0
    decode_part: int = 0
    restart: int = 0
    error_name: int = 0
    """Function that returns the name of an error; Python calls it, the loops do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEncoder:
    """Functions that encode chunks; addresses are 0 where a codec needs none."""

    encode: int
    make_context: int = 0
    free_context: int = 0
    set_parameter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Functions:
    """Functions of one library: the extension module that is linked with it, and the name of each in C."""

    module: str
    names: Mapping[str, str]
    """By the field of `NativeCodec` or `NativeEncoder`."""


_NUMBERS: Mapping[Codec, int] = {
    "raw": 0,
    "zstd": 1,
    "blosc": 2,
    "blosc of snappy": 2,
    "lz4": 3,
    "zlib": 4,
    "gzip": 5,
}
"""The numbers of `enum codec` in `loops.c`."""
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
def _addresses(functions: Literal["decode", "encode"], codec: Codec) -> dict[str, int] | str:
    """Return where the functions of a codec are, or why they cannot be called."""
    wanted = (_DECODERS if functions == "decode" else _ENCODERS)[codec]
    try:
        library = ctypes.CDLL(import_module(wanted.module).__file__)
    except (ImportError, OSError) as err:
        return f"{wanted.module}: {err}"
    addresses: dict[str, int] = {}
    for field, name in wanted.names.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            return f"{wanted.module} does not export {name}"
        addresses[field] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return addresses


@cache
def native_codec(codec: Codec) -> NativeCodec | None:
    """Return a codec with the addresses of its functions; None where its library does not export them."""
    if codec == "raw":
        return NativeCodec(number=_NUMBERS[codec])
    addresses = _addresses("decode", codec)
    return None if isinstance(addresses, str) else NativeCodec(number=_NUMBERS[codec], **addresses)


@cache
def native_encoder(codec: Codec) -> NativeEncoder | None:
    """Return what encodes chunks; None if its library does not export it, or the loops only decode the codec."""
    if codec == "raw":
        return NativeEncoder(encode=0)
    if codec not in _ENCODERS:
        return None
    addresses = _addresses("encode", codec)
    return None if isinstance(addresses, str) else NativeEncoder(**addresses)


def why_slow(codec: Codec) -> str:
    """Return why the loops do not decode or encode a codec, and what to install; empty if they do both."""
    reasons = []
    for functions, table in (("decode", _DECODERS), ("encode", _ENCODERS)):
        if codec not in table:
            continue
        addresses = _addresses("decode" if functions == "decode" else "encode", codec)
        if isinstance(addresses, str):
            package = table[codec].module.split(".", maxsplit=1)[0]
            reasons.append(
                f"{codec} is {functions}d slowly, as {addresses}; install the wheel of a {package} that does"
            )
    return "; ".join(reasons)


def slow_codecs() -> list[str]:
    """Return `why_slow` of each codec that the loops should know and do not; those of extras are not among them."""
    return [why for codec in _ENCODERS if (why := why_slow(codec))]
