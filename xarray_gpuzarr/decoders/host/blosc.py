"""What the host does with Blosc frames beyond one call of C-Blosc.

C-Blosc has the quickest code to undo a shuffle; it is reached through a frame of one block that is stored as it is.
With that, zlib streams can be decoded by libdeflate, which takes half the time of the zlib that C-Blosc is built with.

References
----------
c-blosc 1.x README_CHUNK_FORMAT, but for the table of blocks, whose offsets count from the start of the frame.
"""

from __future__ import annotations

import struct

import imagecodecs
import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.frames.headers import FrameError

_HEADER = struct.Struct("<4B3I")
_STORED_BLOCK = struct.Struct("<4B5I")
"""The header of a frame, its table of one block, and the length of that block's one stream."""
SHUFFLE, BIT_SHUFFLE, UNSPLIT = 0x1, 0x4, 0x10
"""Flags of a frame."""
_STORED, _RESERVED = 0x2, 0x8
_ZLIB = 3
_VERSION = b"\x02\x01"
"""Of the format, and of the streams."""
MOST_NBYTES, MOST_TYPESIZE = 512 * 1024 * 1024, 255
"""Of a stored block, and of its elements."""
_MAX_SPLITS, _MIN_SPLIT_NBYTES = 16, 128
_LEAST_NBYTES = 32 * 1024
"""C-Blosc decodes shorter chunks sooner than Python finds their streams."""


def stored_block(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return the memory of this thread for a frame of one stored block, and in it the block, shape (nbytes,)."""
    return buffer("blosc frame", _STORED_BLOCK.size + nbytes)[_STORED_BLOCK.size :]


def unshuffle_stored_block(flags: int, typesize: int, dst: memoryview) -> None:
    """Undo the shuffle of what `stored_block` holds.

    Parameters
    ----------
    flags : int
        `SHUFFLE` or `BIT_SHUFFLE`.
    typesize : int
        Bytes of an element, 1 to 255.
    dst : memoryview of uint8, shape (nbytes,), host memory
        Written; at most 512 MiB.
    """
    n, head = len(dst), _STORED_BLOCK.size
    frame = buffer("blosc frame", head + n)
    _STORED_BLOCK.pack_into(frame, 0, 2, 1, flags | UNSPLIT, typesize, n, n, head + n, head - 4, n)
    imagecodecs.blosc_decode(frame, numthreads=1, out=dst)


def is_worth_inflating(src: memoryview, dst: memoryview) -> bool:
    """Say whether `inflate_frame` decodes a frame sooner than C-Blosc; its lengths are those of its header."""
    version, flags = src[:2], src[2]
    return (
        len(dst) >= _LEAST_NBYTES and flags >> 5 == _ZLIB and not flags & (_STORED | _RESERVED) and version == _VERSION
    )


def inflate_frame(src: memoryview, dst: memoryview) -> None:
    """Decode a frame of zlib streams block by block.

    Parameters
    ----------
    src : memoryview of uint8, host memory
        A frame for which `is_worth_inflating`.
    dst : memoryview of uint8, shape (nbytes of the frame,), host memory
        Written.

    Raises
    ------
    FrameError
        A block or stream does not lie inside the frame, or has another length.
    """
    _, _, flags, typesize, nbytes, blocksize, _ = _HEADER.unpack_from(src)
    if not 0 < blocksize <= nbytes or typesize == 0:
        raise FrameError(f"blosc blocks of {blocksize} bytes")
    n_blocks = -(-nbytes // blocksize)
    if len(src) < _HEADER.size + 4 * n_blocks:
        raise FrameError(f"{len(src)} bytes, too short for {n_blocks} blosc blocks")
    splits = not flags & UNSPLIT and typesize <= _MAX_SPLITS and blocksize // typesize >= _MIN_SPLIT_NBYTES
    filtered = flags & (SHUFFLE | BIT_SHUFFLE)
    for number, at in enumerate(struct.unpack_from(f"<{n_blocks}I", src, _HEADER.size)):
        block = dst[number * blocksize : (number + 1) * blocksize]
        decoded = memoryview(stored_block(len(block))) if filtered else block
        _inflate_block(src, at, decoded, typesize if splits and len(block) == blocksize else 1)
        if filtered:
            unshuffle_stored_block(filtered, typesize, block)


def _inflate_block(src: memoryview, at: int, dst: memoryview, n_splits: int) -> None:
    """Decode the streams of one block, each behind its length."""
    step, rest = divmod(len(dst), n_splits)
    if rest:
        raise FrameError(f"a blosc block of {len(dst)} bytes in {n_splits} streams")
    for first in range(0, len(dst), step):
        nbytes = int.from_bytes(src[at : at + 4], "little")
        stream, target = src[at + 4 : at + 4 + nbytes], dst[first : first + step]
        if not 0 < len(stream) == nbytes <= step:
            raise FrameError(f"a blosc stream of {nbytes} bytes where {len(stream)} are left")
        at += 4 + nbytes
        if nbytes == step:
            target[:] = stream
        elif len(found := imagecodecs.deflate_decode(stream, out=target)) != step:
            raise FrameError(f"a blosc stream of {len(found)} bytes, expected {step}")
