"""`walk_blosc`: finds the streams to decompress and the blocks to unshuffle in many Blosc 1.x frames.

A frame is cut into blocks, and a block into splits, each of which is a compressed stream. The streams of all frames of
a batch are found at once, as columns, so that a device decompresses them in a few batched calls and unshuffles all
blocks in another. Nothing is decompressed here. Frames that are damaged or unusual are left to the host codec.
`blosc_blocks` reads the headers of frames and cuts them into blocks. `device_ready` checks the frames of other codecs,
and the zstd and zlib streams in Blosc frames.

References
----------
c-blosc 1.x README_CHUNK_FORMAT (but in practice, the offsets in the table of blocks count from the start of the frame);
snappy format_description, section 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.frames.blosc_blocks import (
    BIT_SHUFFLED,
    BYTE_SHUFFLED,
    HEADER_NBYTES,
    STORED,
    BloscBlocks,
    BloscHeaders,
    cut_blocks,
    read_headers,
    words_of,
)
from xarray_gpuzarr.frames.device_ready import Bytes, Flags, device_ready
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.codecs import BytesBytesSpec, ZlibSpec, ZstdSpec

BLOSCLZ, LZ4, SNAPPY, ZLIB, ZSTD = range(5)
"""Numbers of codecs in the header of a frame."""
_CODES = {"blosclz": BLOSCLZ, "lz4": LZ4, "lz4hc": LZ4, "snappy": SNAPPY, "zlib": ZLIB, "zstd": ZSTD}
"""Name of a codec -> its number in the header of a frame. Streams of lz4hc are lz4 streams."""
_SPECS: dict[int, BytesBytesSpec] = {ZLIB: ZlibSpec(), ZSTD: ZstdSpec()}
"""Number of a codec -> codec whose streams `device_ready` checks."""
RAW = 255
"""Stands in place of the number of a codec: the stream is not compressed."""
UNSHUFFLED, SHUFFLE, BITSHUFFLE = range(3)
"""Values of the column `BloscStreams.block_shuffle`."""

_MAX_LENGTHS = 1000
"""Largest number of different decoded lengths of zstd or zlib streams in one walk. Writers use two. Each takes a call
of `device_ready`, so frames made to have many would make the walk slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BloscStreams:
    """Streams and blocks of the frames that a device may decode.

    All columns are in host memory. Unless stated otherwise they are int64.
    """

    ready: Flags
    """Whether a device may decode each frame; bool, shape (n_frames,). The other columns cover only such frames."""
    chunk: Column
    """Number of the chunk whose frame each stream is in, shape (n_streams,)."""
    source: Column
    """First byte of each stream in the data, shape (n_streams,)."""
    source_nbytes: Column
    """Encoded length of each stream in bytes, shape (n_streams,)."""
    target: Column
    """First byte that each stream decodes to, in the decoded but still shuffled chunk; shape (n_streams,). The streams
    of a frame fill the chunk."""
    target_nbytes: Column
    """Decoded length of each stream in bytes, shape (n_streams,)."""
    codec: npt.NDArray[np.uint8]
    """Number of the codec of each stream, or `RAW`; uint8, shape (n_streams,)."""
    block_chunk: Column
    """Number of the chunk whose frame each block is in, shape (n_blocks,). Frames of which no block is shuffled have no
    rows."""
    block_start: Column
    """First byte of each block in the chunk, shape (n_blocks,)."""
    block_nbytes: Column
    """Length of each block in bytes, shape (n_blocks,). The blocks of a frame that has rows fill the chunk."""
    block_typesize: Column
    """Bytes of an element, 1 to 255; shape (n_blocks,). Bytes after the last whole element are not shuffled."""
    block_shuffle: npt.NDArray[np.uint8]
    """`UNSHUFFLED`, `SHUFFLE` or `BITSHUFFLE`; uint8, shape (n_blocks,). Blocks with `BITSHUFFLE` have a multiple of 8
    elements."""


def walk_blosc(
    data: Bytes, start: Column, nbytes: Column, decoded_nbytes: int, *, cname: str | None = None
) -> BloscStreams:
    """Return the streams and blocks of all frames that a device may decode.

    Parameters
    ----------
    data, start, nbytes, decoded_nbytes
        As for `device_ready`.
    cname : str, optional
        Inner codec according to the metadata. Frames with another one are left to the host. None allows all.

    Raises
    ------
    ValueError
        If a chunk lies outside `data`. The content of chunks never raises an error.

    Notes
    -----
    Every stream lies inside its chunk, after the header and the table of blocks, and every target lies inside the
    `decoded_nbytes` bytes. The number of rows, and so the memory that this function takes, is at most a fifth of the
    number of bytes of all chunks. A chunk of more than two blocks has at most a row for each 32 bytes that it decodes
    to.

    Streams of zstd, zlib and snappy have valid headers. Those of zstd and snappy declare the length of their target.
    What lz4 and blosclz streams decode to is unknown until they are decoded. Streams of a forged frame may overlap.
    """
    if ((start < 0) | (nbytes < 0) | (start > data.size - nbytes)).any():
        raise ValueError(f"a chunk lies outside the {data.size} bytes of data")
    frames = read_headers(data, start, nbytes, decoded_nbytes)
    if cname is not None:
        frames = _frames_of_codec(frames, cname)
    blocks = cut_blocks(data, frames, decoded_nbytes)
    streams = np.concatenate([_stored_streams(frames, decoded_nbytes), *_walk_splits(data, frames, blocks)], axis=1)
    ready = np.zeros(len(start), np.bool_)
    ready[frames.chunk] = True
    chunk_of_stream = streams[0]
    is_sound = _sound_streams(data, streams)
    ready[chunk_of_stream[~is_sound]] = False  # a frame with one unsound stream is left to the host
    is_of_ready_frame = ready[chunk_of_stream]
    if not is_of_ready_frame.all():
        streams = streams[:, is_of_ready_frame]
    chunk, source, source_nbytes, target, target_nbytes, codec = streams
    block_shuffle = _shuffles(frames, blocks)
    # A frame with a shuffled block has a row for each of its blocks, shuffled or not.
    has_rows = np.zeros(len(frames.chunk), np.bool_)
    has_rows[blocks.frame[block_shuffle != UNSHUFFLED]] = True
    has_rows &= ready[frames.chunk]
    kept = np.flatnonzero(has_rows[blocks.frame])
    return BloscStreams(
        ready=ready,
        chunk=chunk,
        source=source,
        source_nbytes=source_nbytes,
        target=target,
        target_nbytes=target_nbytes,
        codec=codec.astype(np.uint8),
        block_chunk=frames.chunk[blocks.frame[kept]],
        block_start=blocks.start[kept],
        block_nbytes=blocks.nbytes[kept],
        block_typesize=frames.typesize[blocks.frame[kept]],
        block_shuffle=block_shuffle[kept],
    )


def _frames_of_codec(frames: BloscHeaders, cname: str) -> BloscHeaders:
    """Return the frames whose streams are of a codec."""
    # A stored frame has no compressed stream, whatever codec its header names.
    is_of_codec = (frames.flags >> 5 == _CODES.get(cname)) | (frames.flags & STORED != 0)
    if is_of_codec.all():
        return frames
    return BloscHeaders._make(column[is_of_codec] for column in frames)


def _stored_streams(frames: BloscHeaders, decoded_nbytes: int) -> Column:
    """Return the streams of frames that are not compressed, of which each is one stream.

    They are an array of shape (6, n_streams), whose rows are the columns of `BloscStreams` from `chunk` to `codec`.
    """
    stored = np.flatnonzero(frames.flags & STORED)
    chunk = frames.chunk[stored]
    source = frames.start[stored] + HEADER_NBYTES
    # The source is as long as the target, which begins at the first byte of the chunk.
    return np.stack(np.broadcast_arrays(chunk, source, decoded_nbytes, 0, decoded_nbytes, RAW))


def _walk_splits(data: Bytes, frames: BloscHeaders, blocks: BloscBlocks) -> Iterator[Column]:
    """Yield the streams of the first split of all blocks, then those of the second split, and so on.

    They are arrays of shape (6, n_streams), whose rows are the columns of `BloscStreams` from `chunk` to `codec`. A
    stream is preceded by its length. One that does not lie inside its frame gets the length 0.
    """
    words = words_of(data)
    chunk = frames.chunk[blocks.frame]
    codec = frames.flags[blocks.frame] >> 5
    target_nbytes = blocks.nbytes // blocks.n_splits
    # C-Blosc stores a stream that is longer than its decoded bytes only with snappy: up to snappy's longest output.
    longest = np.where(codec == SNAPPY, 32 + target_nbytes + target_nbytes // 6, target_nbytes)
    position = blocks.first.copy()
    for split in range(blocks.n_splits.max(initial=0)):
        block = np.flatnonzero(blocks.n_splits > split)
        source = position[block] + 4
        end = blocks.end[block]
        decoded_nbytes = target_nbytes[block]
        # A damaged offset of the block, or a damaged length of an earlier split, may have led to a `source` outside the
        # frame. The frame's last bytes are then read in place of the length. Whatever they say, no stream is inside:
        # `end - source` is not positive, and a length of 0 is not sound.
        source_nbytes = words[np.minimum(source, end) - 4].astype(np.int64)
        is_inside = source_nbytes <= np.minimum(longest[block], end - source)
        kind = np.where(source_nbytes == decoded_nbytes, RAW, codec[block])
        target = blocks.start[block] + split * decoded_nbytes
        yield np.stack([chunk[block], source, source_nbytes * is_inside, target, decoded_nbytes, kind])
        position[block] = source + source_nbytes


def _sound_streams(data: Bytes, streams: Column) -> Flags:
    """Return whether each stream lies inside its frame and has a valid header; bool, shape (n_streams,)."""
    _, source, source_nbytes, _, target_nbytes, kind = streams
    sound: Flags = source_nbytes > 0  # 0 is the length that `_walk_splits` gives to streams outside their frames
    for codec, spec in _SPECS.items():
        streams_of_codec = np.flatnonzero(sound & (kind == codec))
        sound[streams_of_codec] = False
        # Each call of `device_ready` takes streams of one decoded length. The most frequent lengths come first. Those
        # beyond `_MAX_LENGTHS` are left to the host.
        by_length = streams_of_codec[np.argsort(target_nbytes[streams_of_codec], kind="stable")]
        groups = np.split(by_length, np.flatnonzero(np.diff(target_nbytes[by_length])) + 1)
        for rows in sorted((group for group in groups if group.size), key=len, reverse=True)[:_MAX_LENGTHS]:
            sound[rows] = device_ready(spec, data, source[rows], source_nbytes[rows], int(target_nbytes[rows[0]]))
    snappy = np.flatnonzero(sound & (kind == SNAPPY))
    declared_nbytes = _snappy_nbytes(data, source[snappy], source_nbytes[snappy])
    sound[snappy] = declared_nbytes == target_nbytes[snappy]
    return sound


def _snappy_nbytes(data: Bytes, source: Column, source_nbytes: Column) -> Column:
    """Return the decoded length that each snappy stream begins with, or -1 if it is invalid; shape (n,).

    It is a varint of at most five bytes: seven bits in each, and one that says whether another byte follows.
    """
    last = source_nbytes - 1
    length = np.zeros(source.size, np.int64)
    continues = np.ones(source.size, np.bool_)
    for number in range(5):
        # If the stream ends inside the varint, its last byte is read again. This byte says that another one follows, so
        # the length becomes -1 below.
        byte = data[source + np.minimum(number, last)]
        length += np.where(continues, byte & 0x7F, 0).astype(np.int64) << 7 * number
        continues &= byte >= 0x80
    length[continues] = -1
    return length


def _shuffles(frames: BloscHeaders, blocks: BloscBlocks) -> npt.NDArray[np.uint8]:
    """Return how each block is shuffled, as in `BloscStreams.block_shuffle`."""
    typesize = frames.typesize[blocks.frame]
    flags = frames.flags[blocks.frame]
    n_elements = blocks.nbytes // typesize
    # Shuffling the bytes of no elements, or of elements of one byte, changes nothing.
    shuffled = (flags & BYTE_SHUFFLED != 0) & (typesize > 1) & (n_elements > 0)
    # c-blosc 1.x does not shuffle the bits of a block whose number of elements is not a multiple of 8.
    bit_shuffled = (flags & BIT_SHUFFLED != 0) & (n_elements > 0) & (n_elements % 8 == 0)
    return np.select([shuffled, bit_shuffled], [SHUFFLE, BITSHUFFLE], UNSHUFFLED).astype(np.uint8)
