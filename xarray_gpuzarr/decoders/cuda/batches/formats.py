"""Formats of compressed streams that the device decodes, and the bytes that codecs put around a stream.

A stream is what is decompressed in one go. A chunk of most codecs is one stream with a header or a trailer, its
envelope; a Blosc frame has many streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from xarray_gpuzarr.cuda import blosc, checksum
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.nvcomp_formats import MAX_CHUNK_NBYTES, Format
from xarray_gpuzarr.frames import blosc as blosc_frames
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    CompressorSpec,
    DeviceCompressorSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
    complete_table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFormat:
    """Format of a stream, and what decompresses it."""

    name: str
    """Name, without which some formats would be equal."""
    nvcomp: Format | None
    """Format of nvCOMP; None if a kernel of this package decodes it."""
    checksum: Kind | None = None
    """Kind of the checksum of the decoded bytes that is stored with them; None if none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Header and trailer around a stream."""

    format: StreamFormat
    head_nbytes: int = 0
    """Bytes before the stream."""
    tail_nbytes: int = 0
    """Bytes after the stream."""
    checksum_from_end: int = 0
    """Bytes from the first byte of the stored checksum to the end of the envelope; 0 if no checksum is stored."""
    checksum_dtype: str = "<u4"
    """Dtype of the stored checksum, with its byte order."""


ZSTD = StreamFormat(name="zstd", nvcomp="zstd")
BLOSCLZ = StreamFormat(name="blosclz", nvcomp=None)
RAW = StreamFormat(name="raw", nvcomp=None)
_LZ4 = StreamFormat(name="lz4", nvcomp="lz4")
_SNAPPY = StreamFormat(name="snappy", nvcomp="snappy")
_GZIP = StreamFormat(name="gzip", nvcomp="gzip", checksum="crc32")
_DEFLATE = StreamFormat(name="zlib", nvcomp="deflate", checksum="adler32")

FORMATS = (ZSTD, _LZ4, _SNAPPY, _GZIP, _DEFLATE, BLOSCLZ, RAW)
"""All formats. Raw streams are only moved, and must be the last ones: see `decoding.batch_plan`."""

_ZLIB = Envelope(format=_DEFLATE, head_nbytes=2, tail_nbytes=4, checksum_from_end=4, checksum_dtype=">u4")

ENVELOPES: dict[type, Envelope | None] = complete_table(
    DeviceCompressorSpec,
    {
        ZstdSpec: Envelope(format=ZSTD),
        Lz4Spec: Envelope(format=_LZ4, head_nbytes=4),
        GzipSpec: Envelope(format=_GZIP, checksum_from_end=8),
        ZlibSpec: _ZLIB,
        BloscSpec: None,
    },
)
"""Envelope of each compressor; None for Blosc, whose frames have many streams.

A gzip member ends with a CRC-32 and the length of what it decodes to (RFC 1952). zlib puts 2 bytes before a deflate
stream and an Adler-32 after it (RFC 1950). numcodecs puts the decoded length before an LZ4 block.
"""

BLOSC_ENVELOPES = {
    blosc_frames.BLOSCLZ: Envelope(format=BLOSCLZ),
    blosc_frames.LZ4: Envelope(format=_LZ4),
    blosc_frames.SNAPPY: Envelope(format=_SNAPPY),
    blosc_frames.ZLIB: _ZLIB,
    blosc_frames.ZSTD: Envelope(format=ZSTD),
    blosc_frames.RAW: Envelope(format=RAW),
}
"""Envelope of the streams inside a Blosc frame, by the codec that `frames.blosc` finds."""


def longest_stream(compressor: CompressorSpec) -> int:
    """Return the largest length in bytes that a stream may have on the device, both compressed and decompressed."""
    envelope = ENVELOPES.get(type(compressor))
    if envelope is None or envelope.format.nvcomp is None:  # Blosc: the streams of its frames have many formats
        return blosc.MAX_NBYTES
    longest = min(MAX_CHUNK_NBYTES[envelope.format.nvcomp])
    if envelope.format.checksum is None:
        return longest
    return min(longest, checksum.MAX_NBYTES)  # a kernel computes the checksum
