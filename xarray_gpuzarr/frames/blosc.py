"""Columns for many Blosc 1.x frames: the streams to decompress and the blocks to unshuffle.

A frame is cut into blocks and a block into splits, each a compressed stream of its own. The streams of all frames of a
batch are found here at once, so that a device decodes them in a few batched calls and then undoes the shuffle of all
blocks in another. Nothing is decompressed here. A frame that is damaged or unusual is left to the host codec.
Decoders call this; `columns` judges the frames of the other codecs, and the inner streams of these.

References
----------
c-blosc 1.x README_CHUNK_FORMAT, but for the table of blocks, whose offsets count from the start of the frame;
snappy format_description, section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.frames.device_ready import Bytes, Flags, device_ready
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.codecs import BytesBytesSpec, ZlibSpec, ZstdSpec

BLOSCLZ, LZ4, SNAPPY, ZLIB, ZSTD = range(5)
_CODES = {"blosclz": BLOSCLZ, "lz4": LZ4, "lz4hc": LZ4, "snappy": SNAPPY, "zlib": ZLIB, "zstd": ZSTD}
"""Codecs of streams, by their number in a frame's header; lz4hc is lz4."""
_SPECS: dict[int, BytesBytesSpec] = {ZLIB: ZlibSpec(), ZSTD: ZstdSpec()}
RAW = 255
"""In place of a codec: the stream is the decoded bytes."""
UNFILTERED, SHUFFLE, BITSHUFFLE = range(3)
"""Filters of blocks."""

_HEADER_NBYTES = 16
_MAX_NBYTES = 2**31 - 1 - _HEADER_NBYTES  # BLOSC_MAX_BUFFERSIZE
_MAX_BLOCK_NBYTES = (2**31 - 1 - 4 * 255) // 3  # BLOSC_MAX_BLOCKSIZE
_LEAST_BLOCK_NBYTES = 64
"""Shortest block of a frame of more than two: C-Blosc makes none shorter, and the columns here would take a hundred
times the chunk."""
_MAX_SPLITS = 16
_MIN_SPLIT_NBYTES = 128
_MAX_LENGTHS = 1000
"""Decoded lengths of zstd or zlib streams in one walk. A writer makes two; far more would only make the walk slow."""
_BYTE_SHUFFLED, _STORED, _BIT_SHUFFLED, _RESERVED, _UNSPLIT = 1, 2, 4, 8, 16
_BOTH_SHUFFLES = _BYTE_SHUFFLED | _BIT_SHUFFLED


@dataclass(frozen=True, slots=True, kw_only=True)
class BloscStreams:
    """Streams and blocks of the frames that a device may decode; int64 columns in host memory unless said otherwise."""

    ready: Flags
    """bool, shape (n,): whether the frame is one of them. The rows below are of such frames only."""
    chunk: Column
    """Shape (n_streams,), like the next five: number of the frame."""
    source: Column
    """First byte of the stream in the data."""
    source_nbytes: Column
    """Its length in bytes."""
    target: Column
    """Where its bytes go, from the start of the decoded, still shuffled chunk. The streams of a chunk fill it."""
    target_nbytes: Column
    """Its decoded length in bytes."""
    codec: npt.NDArray[np.uint8]
    """uint8: how to decode it, `RAW` included."""
    block_chunk: Column
    """Shape (n_blocks,), like the next four: number of the frame. A frame without any filter to undo has no rows."""
    block_start: Column
    """First byte of the block in the chunk."""
    block_nbytes: Column
    """Its length in bytes. The blocks of a frame that has rows fill the chunk."""
    block_typesize: Column
    """Bytes of an element, 1 to 255; bytes beyond the last whole element are not shuffled."""
    block_filter: npt.NDArray[np.uint8]
    """uint8: `UNFILTERED`, `SHUFFLE` or `BITSHUFFLE`; the latter only over a multiple of 8 elements."""


def walk_blosc(data: Bytes, start: Column, nbytes: Column, expected: int, *, cname: str | None = None) -> BloscStreams:
    """Return the streams and blocks of all frames that a device decoder may be given.

    Parameters
    ----------
    data, start, nbytes, expected
        As for `device_ready`.
    cname : str, optional
        Inner codec that frames should have, as the metadata say; frames of any other are left out. None: any.

    Raises
    ------
    ValueError
        A chunk lies outside `data`; never what the bytes of a chunk say.

    Notes
    -----
    Every stream lies inside its chunk and behind the header and table, and every target inside the `expected` bytes.
    Rows, and so the memory of this walk, are at most a fifth of the bytes of all chunks. Chunks of more than two blocks
    have no more rows than a 32nd of the bytes that they decode to.

    Streams of zstd, zlib and snappy have sound headers and, but for zlib, declare the length of their target. What lz4
    and blosclz streams decode to is not known before they are decoded. Streams may overlap in a frame made for it.
    """
    if ((start < 0) | (nbytes < 0) | (start > data.size - nbytes)).any():
        raise ValueError(f"a chunk lies outside the {data.size} bytes of data")
    frames = _sound_frames(data, start, nbytes, expected)
    if cname is not None:
        is_of_codec = (frames.flags >> 5 == _CODES.get(cname)) | (frames.flags & _STORED != 0)
        if not is_of_codec.all():
            frames = _Frames._make(column[is_of_codec] for column in frames)
    blocks = _cut_blocks(data, frames, expected)
    # Each frame that is not compressed is one stream.
    at = np.flatnonzero(frames.flags & _STORED)
    source = frames.start[at] + _HEADER_NBYTES
    stored = np.stack(np.broadcast_arrays(frames.chunk[at], source, expected, 0, expected, RAW))
    streams = np.concatenate([stored, *_walk_splits(data, frames, blocks)], axis=1)  # rows as in BloscStreams
    ready = np.zeros(len(start), np.bool_)
    ready[frames.chunk] = True
    ready[streams[0, ~_sound_streams(data, streams)]] = False
    is_whole = ready[streams[0]]
    if not is_whole.all():
        streams = streams[:, is_whole]
    chunk, source, source_nbytes, target, target_nbytes, codec = streams
    block_filter = _filters(frames, blocks)
    filtered = np.bincount(blocks.frame, block_filter, len(frames.chunk)) > 0
    at = np.flatnonzero((filtered & ready[frames.chunk])[blocks.frame])
    return BloscStreams(
        ready=ready,
        chunk=chunk,
        source=source,
        source_nbytes=source_nbytes,
        target=target,
        target_nbytes=target_nbytes,
        codec=codec.astype(np.uint8),
        block_chunk=frames.chunk[blocks.frame[at]],
        block_start=blocks.start[at],
        block_nbytes=blocks.nbytes[at],
        block_typesize=frames.typesize[blocks.frame[at]],
        block_filter=block_filter[at],
    )


class _Frames(NamedTuple):
    """Headers, one row per frame."""

    chunk: Column
    start: Column
    nbytes: Column
    flags: Column
    typesize: Column
    blocksize: Column

    def n_splits(self) -> Column:
        """Return the splits of a block of full length."""
        split = (self.flags & _UNSPLIT == 0) & (self.typesize <= _MAX_SPLITS)
        split &= self.blocksize // self.typesize >= _MIN_SPLIT_NBYTES
        return np.where(split, self.typesize, 1)

    def n_blocks(self, expected: int) -> Column:
        """Return the blocks of a frame; a stored one has none."""
        return np.where(self.flags & _STORED, 0, -(-expected // self.blocksize))


class _Blocks(NamedTuple):
    """One row per block: its frame, its place in the chunk, and where its streams are in the data."""

    frame: Column
    start: Column
    nbytes: Column
    n_splits: Column
    first: Column
    end: Column


def _words(data: Bytes) -> npt.NDArray[np.uint32]:
    """View the little-endian integer that begins at each byte, aligned or not."""
    return np.ndarray((max(data.size - 3, 0),), "<u4", data, strides=(1,))


def _sound_frames(data: Bytes, start: Column, nbytes: Column, expected: int) -> _Frames:
    """Return the frames whose headers are sound and leave room for their table and streams.

    What lies behind a frame in its chunk is passed over.
    """
    chunk = np.flatnonzero(nbytes > _HEADER_NBYTES)
    start, nbytes = start[chunk], nbytes[chunk]
    # Four integers of each, read once from memory.
    headers = np.ndarray((max(data.size - 15, 0),), "V16", data, strides=(1,))[start].view("<u4")
    head, declared, blocksize, stored_nbytes = headers.reshape(-1, 4).T.astype(np.int64, order="C")
    flags, typesize = head >> 16 & 0xFF, head >> 24
    sound = (head & 0xFFFF == 0x0102) & (flags & _RESERVED == 0) & (flags >> 5 <= ZSTD) & (typesize > 0)
    sound &= flags & _BOTH_SHUFFLES != _BOTH_SHUFFLES
    sound &= (declared == expected) & (declared <= _MAX_NBYTES) & (stored_nbytes <= nbytes)
    sound &= (blocksize > 0) & (blocksize <= min(expected, _MAX_BLOCK_NBYTES))
    sound &= (blocksize >= _LEAST_BLOCK_NBYTES) | (2 * blocksize >= expected) | (flags & _STORED != 0)
    frames = _Frames._make(column[sound] for column in (chunk, start, stored_nbytes, flags, typesize, blocksize))
    n_splits = frames.n_splits()
    whole, leftover = np.divmod(expected, frames.blocksize)
    # An entry of the table for each block, and for each stream its length and a byte.
    least = 4 * frames.n_blocks(expected) + 5 * (whole * n_splits + (leftover > 0))
    payload = frames.nbytes - _HEADER_NBYTES
    fits = np.where(frames.flags & _STORED, payload == expected, payload >= least)
    # c-blosc would leave the end of such a block undefined.
    fits &= frames.blocksize % n_splits == 0
    return _Frames._make(column[fits] for column in frames)


def _cut_blocks(data: Bytes, frames: _Frames, expected: int) -> _Blocks:
    """Cut frames into blocks, in the order of the frames."""
    n_blocks = frames.n_blocks(expected)
    frame = np.repeat(np.arange(len(n_blocks)), n_blocks)
    number = np.arange(frame.size) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    blocksize, begin = frames.blocksize[frame], frames.start[frame]
    start = number * blocksize
    nbytes = np.minimum(blocksize, expected - start)
    table = begin + _HEADER_NBYTES
    first = begin + _words(data)[table + 4 * number]
    end = begin + frames.nbytes[frame]
    # A stream at the end of the frame is outside it, which the walk will find.
    first = np.where(first < table + 4 * n_blocks[frame], end, first)
    n_splits = np.where(nbytes == blocksize, frames.n_splits()[frame], 1)
    return _Blocks(frame, start, nbytes, n_splits, first, end)


def _walk_splits(data: Bytes, frames: _Frames, blocks: _Blocks) -> Iterator[Column]:
    """Follow the lengths of the splits of all blocks at once; yield columns of `BloscStreams`, shape (6, n_streams).

    A stream that does not lie inside its frame has no bytes.
    """
    words = _words(data)
    chunk, codec = frames.chunk[blocks.frame], frames.flags[blocks.frame] >> 5
    target_nbytes = blocks.nbytes // blocks.n_splits
    # Only snappy is kept where it is longer than what it stands for.
    longest = np.where(codec == SNAPPY, 32 + target_nbytes + target_nbytes // 6, target_nbytes)
    at = blocks.first.copy()
    for split in range(blocks.n_splits.max(initial=0)):
        block = np.flatnonzero(blocks.n_splits > split)
        here, end, decoded = at[block] + 4, blocks.end[block], target_nbytes[block]
        length = words[np.minimum(here, end) - 4].astype(np.int64)
        inside = length <= np.minimum(longest[block], end - here)
        kind = np.where(length == decoded, RAW, codec[block])
        target = blocks.start[block] + split * decoded
        yield np.stack([chunk[block], here, length * inside, target, decoded, kind])
        at[block] = here + length


def _sound_streams(data: Bytes, streams: Column) -> Flags:
    """Return which streams are inside their frame and have a sound header."""
    _, source, source_nbytes, _, target_nbytes, kind = streams
    sound: Flags = source_nbytes > 0
    for codec, spec in _SPECS.items():
        at = np.flatnonzero(sound & (kind == codec))
        sound[at] = False
        # In parts of one decoded length each, the longest first.
        in_order = at[np.argsort(target_nbytes[at], kind="stable")]
        parts = np.split(in_order, np.flatnonzero(np.diff(target_nbytes[in_order])) + 1)
        for rows in sorted((part for part in parts if part.size), key=len, reverse=True)[:_MAX_LENGTHS]:
            sound[rows] = device_ready(spec, data, source[rows], source_nbytes[rows], int(target_nbytes[rows[0]]))
    at = np.flatnonzero(sound & (kind == SNAPPY))
    # Of snappy, read the decoded length that a stream begins with.
    first, last = source[at], source_nbytes[at] - 1
    length, unread = np.zeros(at.size, np.int64), np.ones(at.size, np.bool_)
    for number in range(5):
        # In a stream that ends before its length does, the last byte is read again: it goes on, too.
        byte = data[first + np.minimum(number, last)]
        length += np.where(unread, byte & 0x7F, 0).astype(np.int64) << 7 * number
        unread &= byte >= 0x80
    sound[at] = ~unread & (length == target_nbytes[at])
    return sound


def _filters(frames: _Frames, blocks: _Blocks) -> npt.NDArray[np.uint8]:
    """Return the filter of every block."""
    typesize, flags = frames.typesize[blocks.frame], frames.flags[blocks.frame]
    n_elements = blocks.nbytes // typesize
    shuffled = (flags & _BYTE_SHUFFLED != 0) & (typesize > 1) & (n_elements > 0)
    # c-blosc 1.x leaves all of a block as it is where the bits of its elements do not fill bytes.
    bit_shuffled = (flags & _BIT_SHUFFLED != 0) & (n_elements > 0) & (n_elements % 8 == 0)
    return np.select([shuffled, bit_shuffled], [SHUFFLE, BITSHUFFLE], UNFILTERED).astype(np.uint8)
