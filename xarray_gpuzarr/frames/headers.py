"""Read the headers of compressed chunks and check every offset in them.

Parses those of the formats that a GPU may be given: zstd, gzip, zlib, lz4 and blosc; decodes nothing. Decoders use it
to refuse a frame before a library that trusts its header sees it. `decoders.host.compressors` bounds all others itself.

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

_BLOSC_LENGTHS = struct.Struct("<BxxxIII")
_BLOSC_VERSION = 2
_BLOSC_STORED, _BLOSC_UNSPLIT = 2, 16
"""Flags of a frame: it is not compressed; its blocks are one stream each."""
_BLOSC_MAX_SPLITS, _BLOSC_MIN_SPLIT_NBYTES = 16, 128
"""MAX_SPLITS and MIN_BUFFERSIZE of c-blosc's blosc.c: blocks beyond these limits are one stream, too."""


class FrameError(Exception):
    """A frame is not what its codec says; the text completes "found: ..."."""


class CodecFailure(FrameError):  # noqa: N818  # no damage, which other errors of frames are
    """A codec could not run, which says nothing of the frame; ``__cause__`` is what it raised."""


def blosc_nbytes(frame: memoryview | bytes) -> tuple[int, int]:
    """Return the decoded and encoded bytes that a blosc header declares; `FrameError` if it is none, or cut short.

    Some writers leave bytes behind the frame, as z5 does, and readers pass over them.
    """
    if len(frame) < 16:
        raise FrameError(f"{len(frame)} bytes, too short for a blosc header")
    version, nbytes, _blocksize, cbytes = _BLOSC_LENGTHS.unpack_from(frame)
    if version != _BLOSC_VERSION:
        raise FrameError(f"blosc format version {version}, expected {_BLOSC_VERSION}")
    if not 16 <= cbytes <= len(frame):
        raise FrameError(f"{len(frame)} bytes where the blosc header says {cbytes}")
    return int(nbytes), int(cbytes)


def check_blosc(frame: memoryview | bytes) -> None:
    """Raise `FrameError` for a frame for which C-Blosc, as numcodecs calls it, would return memory of other owners.

    It reads as many bytes as the header says. If a block is no whole number of streams, it leaves the end of the block
    as it was allocated, and numcodecs does not compare how many bytes it has decoded.
    """
    blosc_nbytes(frame)
    flags, typesize = frame[2], frame[3]
    blocksize = int.from_bytes(frame[8:12], "little")
    is_split = typesize and not flags & (_BLOSC_STORED | _BLOSC_UNSPLIT)
    if not is_split or typesize > _BLOSC_MAX_SPLITS or blocksize // typesize < _BLOSC_MIN_SPLIT_NBYTES:
        return
    if blocksize % typesize:
        raise FrameError(f"blosc blocks of {blocksize} bytes, which is not a multiple of the typesize {typesize}")


def _lz4_nbytes(frame: memoryview | bytes) -> int:
    if len(frame) < 4:
        raise FrameError(f"{len(frame)} bytes, too short for an lz4 size prefix")
    return int.from_bytes(frame[:4], "little")


def _gzip_nbytes(frame: memoryview | bytes) -> None:
    if len(frame) < 18 or bytes(frame[:3]) != b"\x1f\x8b\x08":
        raise FrameError(f"no gzip header in {len(frame)} bytes")


def _zlib_nbytes(frame: memoryview | bytes) -> None:
    if len(frame) < 6 or frame[0] & 15 != 8 or (frame[0] << 8 | frame[1]) % 31:
        raise FrameError(f"no zlib header in {len(frame)} bytes")


def _zstd_nbytes(frame: memoryview | bytes) -> int | None:
    """Read Frame_Content_Size, whose width and place depend on the descriptor byte; a skippable frame has none."""
    if len(frame) >= 8 and frame[0] & 0xF0 == 0x50 and bytes(frame[1:4]) == b"\x2a\x4d\x18":
        return None
    if len(frame) < 6 or bytes(frame[:4]) != b"\x28\xb5\x2f\xfd":
        raise FrameError(f"no zstd frame header in {len(frame)} bytes")
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if len(frame) < at + width:
        raise FrameError(f"{len(frame)} bytes, too short for a zstd frame header")
    if width == 0:
        return None
    return int.from_bytes(frame[at : at + width], "little") + (256 if width == 2 else 0)


def is_plain_zstd(frame: memoryview | bytes, expected: int) -> bool:
    """Say whether bytes begin a zstd frame of `expected` bytes, with no dictionary and no checksum."""
    try:
        return _zstd_nbytes(frame) == expected and not frame[4] & 0x1F
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
    """Return the decoded length in bytes that a frame's header declares; None if it does not say.

    Bytes that do not begin a frame of this codec are a `FrameError`.
    """
    parse = _NBYTES.get(type(spec))
    return None if parse is None else parse(frame)
