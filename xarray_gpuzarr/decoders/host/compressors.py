"""Compressors on the host: for each, what decodes a frame, how quickly, and what the compiled loops call it.

Each row calls the library that decodes that format fastest into a caller's buffer without the GIL. A frame that the
fast call refuses is decoded once more to memory of its own, by what accepts all that zarr-python does, such as gzip
files of several members. Its word on damaged frames is final. No frame gets more memory than the chunk may have: a few
bytes may stand for terabytes.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import imagecodecs
import numcodecs
import zstandard

from xarray_gpuzarr.decoders.host.scratch import copy_bytes
from xarray_gpuzarr.decoders.host.streams import check_declared, decode_zstd, zstd_at_most
from xarray_gpuzarr.frames.headers import FrameError, blosc_nbytes, declared_nbytes
from xarray_gpuzarr.native import Codec
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    CodecPipeline,
    CompressorSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
    of_each,
)


@record
class Compressor:
    """How the host decodes the frames of a compressor."""

    into: Callable[[memoryview, memoryview], None]
    """Decode `src` into exactly the whole of `dst`, or raise one of `LIBRARY_ERRORS`."""
    at_most: Callable[[memoryview, int], memoryview]
    """Decode a frame, or several where the format allows that; one byte more than allowed shows that there are more."""
    rate: float
    """About how many bytes a second one thread decodes."""
    native: Codec | None
    """What the loops call it; None if they do not know it."""


LIBRARY_ERRORS = (
    FrameError,
    zstandard.ZstdError,
    RuntimeError,  # imagecodecs' errors, numcodecs.blosc
    SystemError,  # numcodecs.blosc, of a frame that claims to hold 2 GiB or more
    ValueError,
    TypeError,
    OSError,  # gzip.BadGzipFile
    EOFError,
    zlib.error,
    MemoryError,  # a frame that declares an absurd length
    ImportError,  # a codec whose library is missing; imagecodecs imports its parts when they are called
)
_ONE_SHOT_NBYTES = 128 * 1024
"""From here on a new context costs less than imagecodecs' assembly for Huffman codes saves."""
_LZ4 = Lz4Spec()
_GZIP_MEMBER = re.compile(rb"\x1f\x8b\x08")
"""How a member begins. Within one these bytes occur once in 16 MB; to look costs 3 % of what decoding does."""
_COPY_RATE = 4e9


def _zstd(src: memoryview, dst: memoryview) -> None:
    if len(dst) < _ONE_SHOT_NBYTES:
        with suppress(zstandard.ZstdError):  # also for windows of over 128 MiB, for which one call needs no memory
            decode_zstd(src, dst)
            return
    _same(imagecodecs.zstd_decode(src, out=dst), dst)


def _blosc(src: memoryview, dst: memoryview) -> None:
    # The C decoder trusts the header's lengths, so they are compared with the real ones first.
    decoded, encoded = blosc_nbytes(src)
    if decoded != len(dst):
        raise FrameError("a frame of another length")
    if dst:
        imagecodecs.blosc_decode(src[:encoded], numthreads=1, out=dst)


def _lz4(src: memoryview, dst: memoryview) -> None:
    if declared_nbytes(_LZ4, src) != len(dst):
        raise FrameError("another length")
    _same(imagecodecs.lz4_decode(src, header=True, out=dst), dst)


def _gzip(src: memoryview, dst: memoryview) -> None:
    # libdeflate decodes the first member and ignores what follows it.
    if int.from_bytes(src[-4:], "little") != len(dst) % 2**32 or _GZIP_MEMBER.search(src, 1):
        raise FrameError("something behind a member")
    _same(imagecodecs.gzip_decode(src, out=dst), dst)


def _zlib(src: memoryview, dst: memoryview) -> None:
    _same(imagecodecs.deflate_decode(src, out=dst), dst)


def _same(result: Any, dst: memoryview) -> None:
    if len(result) != len(dst):
        raise FrameError(f"{len(result)} bytes")


def _gzip_at_most(src: memoryview, most: int) -> memoryview:
    with gzip.GzipFile(fileobj=io.BytesIO(src)) as members:
        return memoryview(members.read(most + 1))


def _zlib_at_most(src: memoryview, most: int) -> memoryview:
    stream = zlib.decompressobj()
    decoded = stream.decompress(src, most + 1)
    if len(decoded) <= most and not stream.eof:
        raise FrameError("a stream cut short")
    return memoryview(decoded)


def _by_numcodecs(codec_id: str) -> Callable[[memoryview, int], memoryview]:
    """Return what decodes frames that always declare their length, which was looked at."""
    codec = numcodecs.get_codec({"id": codec_id})
    return lambda src, _most: memoryview(codec.decode(src)).cast("B")


COMPRESSORS: dict[type, Compressor] = of_each(
    CompressorSpec,
    {
        ZstdSpec: Compressor(into=_zstd, at_most=zstd_at_most, rate=0.7e9, native="zstd"),
        GzipSpec: Compressor(into=_gzip, at_most=_gzip_at_most, rate=0.3e9, native="gzip"),
        ZlibSpec: Compressor(into=_zlib, at_most=_zlib_at_most, rate=0.3e9, native="zlib"),
        Lz4Spec: Compressor(into=_lz4, at_most=_by_numcodecs("lz4"), rate=2e9, native="lz4"),
        BloscSpec: Compressor(into=_blosc, at_most=_by_numcodecs("blosc"), rate=2e9, native="blosc"),
    },
)


def decompress(spec: CompressorSpec, src: memoryview, dst: memoryview) -> None:
    """Decode a frame into exactly the whole of `dst`, or raise one of `LIBRARY_ERRORS`."""
    try:
        COMPRESSORS[type(spec)].into(src, dst)
    except LIBRARY_ERRORS as refusal:
        decoded = decode_at_most(spec, src, most=len(dst))
        if len(decoded) != len(dst):
            raise FrameError(f"{len(decoded)} bytes") from refusal
        copy_bytes(decoded, dst)


def decode_at_most(spec: CompressorSpec, src: memoryview, most: int) -> memoryview:
    """Decode a frame, or several where the format allows that, to memory of its own.

    Parameters
    ----------
    spec : CompressorSpec
    src : memoryview of uint8, host memory
    most : int
        Bytes that it may decode to.

    Returns
    -------
    memoryview of uint8, shape (n,) with n <= most

    Raises
    ------
    FrameError
        More bytes, or a frame cut short; other damage raises what the library of the format raises.
    """
    check_declared(spec, src, most)
    decoded = COMPRESSORS[type(spec)].at_most(src, most)
    if len(decoded) > most:
        raise FrameError(f"more than {most} bytes")
    return decoded


def decoded_rate(pipeline: CodecPipeline) -> float:
    """Return about how many bytes a second one thread decodes, and brings to their place."""
    if pipeline.other is not None:
        return min(compressor.rate for compressor in COMPRESSORS.values())
    rates = [COMPRESSORS[type(stage)].rate for stage in pipeline.stages if type(stage) in COMPRESSORS]
    return min(rates, default=_COPY_RATE)
