"""Compressors on the host: the Python decoder of each, its approximate speed, and its name in the compiled loops.

The Python decoders accept whatever zarr-python accepts, such as gzip files of several members. They decide whether a
frame is damaged: the compiled loops are faster, but leave a frame that they cannot decode. A decoder never takes more
memory than the chunk may need, since a frame of a few bytes may declare terabytes.
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
    complete_table,
)


@record
class Compressor:
    """A compressor whose frames the host decodes."""

    decode_at_most: Callable[[memoryview, int], memoryview]
    """Decodes a frame, or several where the format allows it. The second argument is the largest number of bytes that
    the caller accepts; the result is longer if the frames hold more."""
    rate: float
    """Approximate number of bytes that one thread decodes in a second."""
    native: Codec | None
    """Name of the codec in the loops; None if they do not know it. At present, they know all codecs of the table."""


LIBRARY_ERRORS = (
    FrameError,
    RuntimeError,  # numcodecs and imagecodecs
    SystemError,  # numcodecs.blosc, for a frame that declares 2 GiB or more
    ValueError,
    TypeError,
    OSError,  # gzip.BadGzipFile
    EOFError,
    zlib.error,
    MemoryError,  # a frame that declares an absurd length
    ImportError,  # a codec whose library is missing
)
"""Exceptions that libraries raise for damaged frames, and for codecs that cannot run."""
_COPY_RATE = 4e9
"""Approximate number of bytes that one thread copies in a second."""
_LZ4 = numcodecs.get_codec({"id": "lz4"})
_BLOSC_CNAME_BIT = 5
"""First bit of the compressor's number in the flags of a Blosc frame, which are its third byte."""
_BLOSC_STORED = 2
"""Flag of a Blosc frame whose blocks are not compressed."""
_SNAPPY = 2
"""Number of the compressor snappy in a Blosc frame."""


def _gzip_at_most(src: memoryview, most_nbytes: int) -> memoryview:
    with gzip.GzipFile(fileobj=io.BytesIO(src)) as members:
        return memoryview(members.read(most_nbytes + 1))


def _zlib_at_most(src: memoryview, most_nbytes: int) -> memoryview:
    stream = zlib.decompressobj()
    decoded = stream.decompress(src, most_nbytes + 1)
    if len(decoded) <= most_nbytes and not stream.eof:
        raise FrameError("a stream cut short")
    return memoryview(decoded)


def _lz4_at_most(src: memoryview, _most_nbytes: int) -> memoryview:
    return memoryview(_LZ4.decode(src)).cast("B")


def _blosc_at_most(src: memoryview, _most_nbytes: int) -> memoryview:
    nbytes, encoded_nbytes = blosc_nbytes(src)
    frame = src[:encoded_nbytes]
    flags = frame[2]
    is_compressed = not flags & _BLOSC_STORED
    if is_compressed and flags >> _BLOSC_CNAME_BIT == _SNAPPY:
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


HOST_COMPRESSORS: dict[type, Compressor] = complete_table(
    CompressorSpec,
    {
        ZstdSpec: Compressor(decode_at_most=zstd_at_most, rate=0.7e9, native="zstd"),
        GzipSpec: Compressor(decode_at_most=_gzip_at_most, rate=0.3e9, native="gzip"),
        ZlibSpec: Compressor(decode_at_most=_zlib_at_most, rate=0.3e9, native="zlib"),
        # LZ4 and Blosc frames declare their length, which `check_declared` has checked.
        Lz4Spec: Compressor(decode_at_most=_lz4_at_most, rate=2e9, native="lz4"),
        BloscSpec: Compressor(decode_at_most=_blosc_at_most, rate=2e9, native="blosc"),
    },
)


def native_name(spec: BytesBytesSpec) -> Codec | None:
    """Return the name that a compressor of `HOST_COMPRESSORS` has in the loops; None if they do not know it."""
    if isinstance(spec, BloscSpec) and spec.cname == "snappy":
        return "blosc of snappy"
    return HOST_COMPRESSORS[type(spec)].native


def why_decoded_slowly(pipeline: PipelineSpec) -> str:
    """Return why the loops cannot call the library of a codec, and what to install; an empty string if they can."""
    names = [native_name(stage) for stage in pipeline.stages if type(stage) in HOST_COMPRESSORS]
    reasons = [why_slow(name) for name in names if name is not None]
    return "; ".join(filter(None, reasons))


def advise_of_slow_codecs() -> None:
    """Warn, once in a process, of all codecs whose library does not export the functions that the loops call."""
    slow = slow_codecs()
    if slow:
        advise(
            "slow codecs",
            "the compiled loops cannot call the library of a codec: its chunks take longer",
            found="; ".join(slow),
            do="install what is named; gpuzarr doctor says whether that helped",
        )


def decode_at_most(spec: CompressorSpec, src: memoryview, most_nbytes: int) -> memoryview:
    """Decode a frame, or several where the format allows it, into new memory.

    Parameters
    ----------
    spec : CompressorSpec
        The compressor.
    src : memoryview of uint8, host memory
        Encoded bytes.
    most_nbytes : int
        Most bytes that the result may have.

    Returns
    -------
    memoryview of uint8, host memory
        Decoded bytes.

    Raises
    ------
    FrameError
        If there are more decoded bytes, or a frame is cut short. For other damage, the library of the format raises
        one of `LIBRARY_ERRORS`.
    """
    check_declared(spec, src, most_nbytes)
    decoded = HOST_COMPRESSORS[type(spec)].decode_at_most(src, most_nbytes)
    if len(decoded) > most_nbytes:
        raise FrameError(f"more than {most_nbytes} bytes")
    return decoded


def decoded_rate(pipeline: PipelineSpec) -> float:
    """Return the approximate number of bytes that one thread decodes and places in a second."""
    if pipeline.other is not None:  # a codec that only zarr-python knows counts as slow
        return min(compressor.rate for compressor in HOST_COMPRESSORS.values())
    rates = [HOST_COMPRESSORS[type(stage)].rate for stage in pipeline.stages if type(stage) in HOST_COMPRESSORS]
    return min(rates, default=_COPY_RATE)
