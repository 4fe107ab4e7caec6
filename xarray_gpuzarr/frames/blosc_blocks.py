"""`read_headers` and `cut_blocks`: the headers and the blocks of many Blosc 1.x frames, as columns.

`blosc` finds the streams of the blocks.

References
----------
c-blosc 1.x README_CHUNK_FORMAT and blosc.c.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.frames.device_ready import Bytes
from xarray_gpuzarr.process.records import Column

HEADER_NBYTES = 16
_MAX_NBYTES = 2**31 - 1 - HEADER_NBYTES  # BLOSC_MAX_BUFFERSIZE
_MAX_BLOCK_NBYTES = (2**31 - 1 - 4 * 255) // 3  # BLOSC_MAX_BLOCKSIZE
_LEAST_BLOCK_NBYTES = 64
"""Shortest block of a frame of more than two blocks. C-Blosc writes none that is shorter, and the columns of shorter
blocks would take a hundred times the memory of the chunk."""
_MAX_SPLITS, _MIN_SPLIT_NBYTES = 16, 128
"""MAX_SPLITS and MIN_BUFFERSIZE of blosc.c. A block beyond these limits is one stream."""
_LAST_CODEC = 4
"""Largest number of a codec, that of zstd."""
BYTE_SHUFFLED, STORED, BIT_SHUFFLED, _RESERVED, _UNSPLIT = 1, 2, 4, 8, 16
"""Flags in the header of a frame. A stored frame is not compressed, and a block of an unsplit one is one stream."""
_BOTH_SHUFFLES = BYTE_SHUFFLED | BIT_SHUFFLED


class BloscHeaders(NamedTuple):
    """The headers of frames, one row for each. All columns have the shape (n,)."""

    chunk: Column
    """Position of the frame's chunk among those that `read_headers` was given."""
    start: Column
    """First byte of the frame in the data."""
    nbytes: Column
    """Encoded length in bytes."""
    flags: Column
    """Flags such as `STORED`, and in the three highest of eight bits, the number of the codec."""
    typesize: Column
    """Bytes of an element."""
    blocksize: Column
    """Decoded bytes of a block."""

    def n_splits(self) -> Column:
        """Return the number of splits in a block of full length, shape (n,)."""
        is_split = (self.flags & _UNSPLIT == 0) & (self.typesize <= _MAX_SPLITS)
        is_split &= self.blocksize // self.typesize >= _MIN_SPLIT_NBYTES
        return np.where(is_split, self.typesize, 1)

    def n_blocks(self, decoded_nbytes: int) -> Column:
        """Return the number of blocks in each frame that decodes to `decoded_nbytes` bytes, shape (n,); 0 if stored."""
        return np.where(self.flags & STORED, 0, -(-decoded_nbytes // self.blocksize))


class BloscBlocks(NamedTuple):
    """The blocks of frames, one row for each."""

    frame: Column
    """Row of the frame in `BloscHeaders`."""
    start: Column
    """First byte of the block in the decoded chunk."""
    nbytes: Column
    """Decoded length in bytes."""
    n_splits: Column
    """Number of splits, each of which is a stream."""
    first: Column
    """First byte of the block's streams in the data."""
    end: Column
    """Byte after the last one of the frame in the data."""


def words_of(data: Bytes) -> npt.NDArray[np.uint32]:
    """Return a view of the little-endian uint32 that begin at each byte, aligned or not; shape (data.size - 3,)."""
    return np.ndarray((max(data.size - 3, 0),), "<u4", data, strides=(1,))


def read_headers(data: Bytes, start: Column, nbytes: Column, decoded_nbytes: int) -> BloscHeaders:
    """Return the valid headers of frames that are long enough for their table of blocks and their streams.

    Frames that declare another decoded length than `decoded_nbytes` are left out. Bytes of a chunk after its frame are
    ignored. Parameters are those of `blosc.walk_blosc`.
    """
    chunk = np.flatnonzero(nbytes > HEADER_NBYTES)
    start, nbytes = start[chunk], nbytes[chunk]
    # The four integers of each header are gathered at once, because memory is the bottleneck.
    headers_from_each_byte = np.ndarray((max(data.size - 15, 0),), "V16", data, strides=(1,))
    headers = headers_from_each_byte[start].view("<u4").reshape(-1, 4)
    head, declared, blocksize, encoded_nbytes = headers.T.astype(np.int64, order="C")
    flags, typesize = head >> 16 & 0xFF, head >> 24
    # 0x0102: version 2 of the format of frames, and version 1 of the format of streams.
    sound = (head & 0xFFFF == 0x0102) & (flags & _RESERVED == 0) & (flags >> 5 <= _LAST_CODEC) & (typesize > 0)
    sound &= flags & _BOTH_SHUFFLES != _BOTH_SHUFFLES
    sound &= (declared == decoded_nbytes) & (declared <= _MAX_NBYTES) & (encoded_nbytes <= nbytes)
    sound &= (blocksize > 0) & (blocksize <= min(decoded_nbytes, _MAX_BLOCK_NBYTES))
    sound &= (blocksize >= _LEAST_BLOCK_NBYTES) | (2 * blocksize >= decoded_nbytes) | (flags & STORED != 0)
    frames = BloscHeaders._make(column[sound] for column in (chunk, start, encoded_nbytes, flags, typesize, blocksize))
    n_splits = frames.n_splits()
    n_full_blocks, last_block_nbytes = np.divmod(decoded_nbytes, frames.blocksize)
    # A frame has at least an entry of the table for each block, and for each stream its length and one byte. A shorter
    # last block is one stream.
    least = 4 * frames.n_blocks(decoded_nbytes) + 5 * (n_full_blocks * n_splits + (last_block_nbytes > 0))
    payload = frames.nbytes - HEADER_NBYTES
    is_valid = np.where(frames.flags & STORED, payload == decoded_nbytes, payload >= least)
    # c-blosc leaves the end of a block undefined if it is not a whole number of splits.
    is_valid &= frames.blocksize % n_splits == 0
    return BloscHeaders._make(column[is_valid] for column in frames)


def cut_blocks(data: Bytes, frames: BloscHeaders, decoded_nbytes: int) -> BloscBlocks:
    """Return the blocks of all frames, in the order of the frames."""
    n_blocks = frames.n_blocks(decoded_nbytes)
    frame = np.repeat(np.arange(len(n_blocks)), n_blocks)
    number = np.arange(frame.size) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)  # of the block in its frame
    blocksize = frames.blocksize[frame]
    frame_start = frames.start[frame]
    start = number * blocksize
    nbytes = np.minimum(blocksize, decoded_nbytes - start)
    table = frame_start + HEADER_NBYTES
    first = frame_start + words_of(data)[table + 4 * number]
    end = frame_start + frames.nbytes[frame]
    # An offset into the header or the table is invalid. The end of the frame, where no stream fits, takes its place.
    first = np.where(first < table + 4 * n_blocks[frame], end, first)
    # C-Blosc does not split the last block if it is shorter than the others.
    n_splits = np.where(nbytes == blocksize, frames.n_splits()[frame], 1)
    return BloscBlocks(frame, start, nbytes, n_splits, first, end)
