"""Compressors on the host: for each, what decodes a frame, how quickly, and what the compiled loops call it.

Each decoder accepts what zarr-python accepts, such as gzip files of several members, and decides whether a frame is
damaged; the compiled loops are quicker. No frame gets more memory than the chunk may have: a few bytes may stand for
terabytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable

import numcodecs
import numcodecs.blosc

from xarray_gpuzarr.decoders.host.zstd_frames import check_declared, zstd_at_most
from xarray_gpuzarr.frames.headers import FrameError, blosc_nbytes, check_blosc
from xarray_gpuzarr.native.codec_functions import Codec, slow_codecs, why_slow
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesBytesSpec,
    CompressorSpec,
    GzipSpec,
    Lz4Spec,
    PipelineSpec,
    ZlibSpec,
    ZstdSpec,
    of_each,
)


@record
class Compressor:
    """How the host decodes the frames of a compressor."""

    at_most: Callable[[memoryview, int], memoryview]
    """Decode a frame, or several where the format allows that; one byte more than allowed shows that there are more."""
    rate: float
    """About how many bytes a second one thread decodes."""
    native: Codec | None
    """Name of the codec for the loops; None if they do not know it."""


LIBRARY_ERRORS = (
    FrameError,
    RuntimeError,  # numcodecs' errors, and imagecodecs'
    SystemError,  # numcodecs.blosc, of a frame that claims to hold 2 GiB or more
    ValueError,
    TypeError,
    OSError,  # gzip.BadGzipFile
    EOFError,
    zlib.error,
    MemoryError,  # a frame that declares an absurd length
    ImportError,  # a codec whose library is missing
)
_COPY_RATE = 4e9
_LZ4 = numcodecs.get_codec({"id": "lz4"})
_BLOSC_CNAME_BIT, _BLOSC_STORED, _SNAPPY = 5, 2, 2
"""First bit of a frame's compressor in its flags, flag of a frame that is not compressed, and number of snappy."""


def _gzip_at_most(src: memoryview, most: int) -> memoryview:
    with gzip.GzipFile(fileobj=io.BytesIO(src)) as members:
        return memoryview(members.read(most + 1))


def _zlib_at_most(src: memoryview, most: int) -> memoryview:
    stream = zlib.decompressobj()
    decoded = stream.decompress(src, most + 1)
    if len(decoded) <= most and not stream.eof:
        raise FrameError("a stream cut short")
    return memoryview(decoded)


def _blosc_at_most(src: memoryview, _most: int) -> memoryview:
    nbytes, encoded_nbytes = blosc_nbytes(src)
    frame = src[:encoded_nbytes]
    if frame[2] >> _BLOSC_CNAME_BIT == _SNAPPY and not frame[2] & _BLOSC_STORED:
        try:
            import imagecodecs  # noqa: PLC0415  # an extra
        except ImportError as err:
            raise ImportError("Blosc frames of snappy need imagecodecs: pip install 'xarray-gpuzarr[snappy]'") from err
        return memoryview(imagecodecs.blosc_decode(frame, numthreads=1))
    check_blosc(frame)
    decoded = bytearray(nbytes)
    if nbytes:
        numcodecs.blosc.decompress(frame, decoded)
    return memoryview(decoded)


HOST_COMPRESSORS: dict[type, Compressor] = of_each(
    CompressorSpec,
    {
        ZstdSpec: Compressor(at_most=zstd_at_most, rate=0.7e9, native="zstd"),
        GzipSpec: Compressor(at_most=_gzip_at_most, rate=0.3e9, native="gzip"),
        ZlibSpec: Compressor(at_most=_zlib_at_most, rate=0.3e9, native="zlib"),
        # Of the next two, the declared length was looked at.
        Lz4Spec: Compressor(at_most=lambda src, _: memoryview(_LZ4.decode(src)).cast("B"), rate=2e9, native="lz4"),
        BloscSpec: Compressor(at_most=_blosc_at_most, rate=2e9, native="blosc"),
    },
)


def native_name(spec: BytesBytesSpec) -> Codec | None:
    """Return what the loops call a compressor; None if they do not know it."""
    if isinstance(spec, BloscSpec) and spec.cname == "snappy":
        return "blosc of snappy"
    return HOST_COMPRESSORS[type(spec)].native


def why_decoded_slowly(pipeline: PipelineSpec) -> str:
    """Return why the loops cannot call the library of a codec, and what to install; empty if they can."""
    names = [native_name(stage) for stage in pipeline.stages if type(stage) in HOST_COMPRESSORS]
    return "; ".join(why for name in names if name is not None and (why := why_slow(name)))


def advise_of_slow_codecs() -> None:
    """Warn, once in a process, of all codecs whose library does not export what the loops call."""
    slow = slow_codecs()
    if slow:
        advise(
            "slow codecs",
            "the compiled loops cannot call the library of a codec: its chunks take longer",
            found="; ".join(slow),
            do="install what is named; gpuzarr doctor says whether that helped",
        )


def decode_at_most(spec: CompressorSpec, src: memoryview, most: int) -> memoryview:
    """Decode a frame, or several where the format allows that, to at most so many bytes of memory of its own.

    Both are uint8 in host memory. Raises `FrameError` for more bytes, or a frame cut short; other damage raises what
    the library of the format raises.
    """
    check_declared(spec, src, most)
    decoded = HOST_COMPRESSORS[type(spec)].at_most(src, most)
    if len(decoded) > most:
        raise FrameError(f"more than {most} bytes")
    return decoded


def decoded_rate(pipeline: PipelineSpec) -> float:
    """Return about how many bytes a second one thread decodes, and brings to their place."""
    if pipeline.other is not None:
        return min(compressor.rate for compressor in HOST_COMPRESSORS.values())
    rates = [HOST_COMPRESSORS[type(stage)].rate for stage in pipeline.stages if type(stage) in HOST_COMPRESSORS]
    return min(rates, default=_COPY_RATE)
