"""`declared_nbytes` and `check_blosc`: read and check the header of a single frame. Nothing is decoded.

Decoders use them to refuse a frame before a library that trusts its header decodes it. They know the formats that a GPU
may decode: zstd, gzip, zlib, lz4 and blosc. For all other formats, `decoders.host.compressors` limits the output.

References
----------
RFC 8878 section 3.1.1 (zstd), RFC 1952 section 2.3 (gzip), RFC 1950 section 2.2 (zlib), numcodecs LZ4, c-blosc 1.x
README_CHUNK_FORMAT.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesBytesSpec,
    DeviceCompressorSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
    complete_table,
)

_BLOSC_HEADER = struct.Struct("<BxxxIII")
_LEAST_GZIP_NBYTES, _LEAST_ZLIB_NBYTES = 18, 6
"""Bytes around the deflate stream. Gzip has a header of 10 and a trailer of 8, zlib a header of 2 and a checksum of
4."""
_BLOSC_VERSION = 2
_BLOSC_STORED, _BLOSC_UNSPLIT = 2, 16
"""Flags of a frame that is not compressed, and of a frame whose blocks are one stream each."""
_BLOSC_MAX_SPLITS, _BLOSC_MIN_SPLIT_NBYTES = 16, 128
"""MAX_SPLITS and MIN_BUFFERSIZE in c-blosc's blosc.c. A block beyond these limits is one stream, too."""


class FrameError(Exception):
    """A frame is not valid for its codec. The text completes "found: ..." in a message."""


class CodecFailure(FrameError):  # noqa: N818  # the name says that the frame need not be damaged
    """A codec could not run, for example because a package is missing. ``__cause__`` is the error that it raised."""


def blosc_nbytes(frame: memoryview | bytes) -> tuple[int, int]:
    """Return the decoded and the encoded length in bytes that the header of a blosc frame declares.

    Some writers, such as z5, leave bytes after the frame, which readers ignore.

    Raises
    ------
    FrameError
        If the header is invalid, or the frame is truncated.
    """
    if len(frame) < 16:
        raise FrameError(f"{len(frame)} bytes, too short for a blosc header")
    version, nbytes, _blocksize, cbytes = _BLOSC_HEADER.unpack_from(frame)
    if version != _BLOSC_VERSION:
        raise FrameError(f"blosc format version {version}, expected {_BLOSC_VERSION}")
    if not 16 <= cbytes <= len(frame):
        raise FrameError(f"{len(frame)} bytes where the blosc header says {cbytes}")
    return int(nbytes), int(cbytes)


def check_blosc(frame: memoryview | bytes) -> None:
    """Raise a `FrameError` for a frame that would make numcodecs read or return memory outside the frame.

    C-Blosc reads as many bytes as the header declares, even if the frame is shorter. If a block is not a whole number
    of streams, C-Blosc leaves its end uninitialised, and numcodecs does not check the number of decoded bytes.
    """
    blosc_nbytes(frame)
    flags, typesize = frame[2], frame[3]
    blocksize = int.from_bytes(frame[8:12], "little")
    is_split = typesize and not flags & (_BLOSC_STORED | _BLOSC_UNSPLIT)
    if not is_split or typesize > _BLOSC_MAX_SPLITS or blocksize // typesize < _BLOSC_MIN_SPLIT_NBYTES:
        return  # each block is one stream
    if blocksize % typesize:
        raise FrameError(f"blosc blocks of {blocksize} bytes, which is not a multiple of the typesize {typesize}")


def _lz4_nbytes(frame: memoryview | bytes) -> int:
    if len(frame) < 4:
        raise FrameError(f"{len(frame)} bytes, too short for an lz4 size prefix")
    return int.from_bytes(frame[:4], "little")


def _gzip_nbytes(frame: memoryview | bytes) -> None:
    """Return None, after checking the header: it declares no decoded length."""
    if len(frame) < _LEAST_GZIP_NBYTES or bytes(frame[:3]) != b"\x1f\x8b\x08":
        raise FrameError(f"no gzip header in {len(frame)} bytes")


def _zlib_nbytes(frame: memoryview | bytes) -> None:
    """Return None, after checking the header: it declares no decoded length."""
    if len(frame) < _LEAST_ZLIB_NBYTES or frame[0] & 15 != 8 or (frame[0] << 8 | frame[1]) % 31:
        raise FrameError(f"no zlib header in {len(frame)} bytes")


def _zstd_nbytes(frame: memoryview | bytes) -> int | None:
    """Return Frame_Content_Size, whose width and offset depend on the descriptor; None if the frame declares none."""
    if len(frame) >= 8 and frame[0] & 0xF0 == 0x50 and bytes(frame[1:4]) == b"\x2a\x4d\x18":
        return None  # the first frame is a skippable one
    if len(frame) < 6 or bytes(frame[:4]) != b"\x28\xb5\x2f\xfd":
        raise FrameError(f"no zstd frame header in {len(frame)} bytes")
    descriptor = frame[4]
    is_single_segment = bool(descriptor & 0x20)
    window_nbytes = 0 if is_single_segment else 1
    dictionary_id_nbytes = (0, 1, 2, 4)[descriptor & 3]
    width = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    offset = 5 + window_nbytes + dictionary_id_nbytes
    if len(frame) < offset + width:
        raise FrameError(f"{len(frame)} bytes, too short for a zstd frame header")
    if width == 0:
        return None
    nbytes = int.from_bytes(frame[offset : offset + width], "little")
    return nbytes + 256 if width == 2 else nbytes  # a field of two bytes holds the length less 256


def is_plain_zstd(frame: memoryview | bytes, decoded_nbytes: int) -> bool:
    """Whether bytes begin with a zstd frame without dictionary or checksum that declares `decoded_nbytes` bytes."""
    try:
        # The five low bits of the descriptor stand for a dictionary and a checksum, or are reserved.
        return _zstd_nbytes(frame) == decoded_nbytes and not frame[4] & 0x1F
    except FrameError:
        return False


_NBYTES: dict[type, Callable[[memoryview | bytes], int | None]] = complete_table(
    DeviceCompressorSpec,
    {
        ZstdSpec: _zstd_nbytes,
        GzipSpec: _gzip_nbytes,
        ZlibSpec: _zlib_nbytes,
        Lz4Spec: _lz4_nbytes,
        BloscSpec: lambda frame: blosc_nbytes(frame)[0],
    },
)


def declared_nbytes(spec: BytesBytesSpec, frame: memoryview | bytes) -> int | None:
    """Return the decoded length in bytes that the header of a frame declares.

    None if it declares none, or if this module does not know the codec.

    Raises
    ------
    FrameError
        If the bytes do not begin with a valid header of this codec.
    """
    parse = _NBYTES.get(type(spec))
    return None if parse is None else parse(frame)
