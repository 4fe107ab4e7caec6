"""Find the compressed streams in the chunks of a batch, and the positions of their decoded bytes.

A chunk of most codecs is one stream; a Blosc frame has many. Positions are counted from the start of a chunk, encoded
or decoded, so they are known before anything has an address.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import Bytes
from xarray_gpuzarr.decoders.cuda.batches.columns import Columns, Rows, TableColumn, join
from xarray_gpuzarr.decoders.cuda.batches.formats import (
    BLOSC_ENVELOPES,
    BLOSCLZ,
    ENVELOPES,
    FORMATS,
    ZSTD,
    Envelope,
    longest_stream,
)
from xarray_gpuzarr.frames import blosc as blosc_frames
from xarray_gpuzarr.frames.device_ready import LEAST_ZSTD_NBYTES, device_ready
from xarray_gpuzarr.frames.headers import is_plain_zstd
from xarray_gpuzarr.stored.codecs import BloscSpec, CompressorSpec, ShuffleSpec, ZstdSpec


class Streams(Columns):
    """One row per compressed stream."""

    n_columns = 7
    format = TableColumn(1)
    """Index into `FORMATS`."""
    source = TableColumn(2)
    """First byte of the stream, counted from the start of the encoded chunk."""
    source_nbytes = TableColumn(3)
    """Length of the stream in bytes."""
    target = TableColumn(4)
    """First decoded byte of the stream, counted from the start of the decoded chunk."""
    target_nbytes = TableColumn(5)
    """Decoded length of the stream in bytes."""
    checksum = TableColumn(6)
    """Stored checksum of the decoded bytes if the format has one, otherwise 0."""

    def by_format(self) -> Streams:
        """Return the streams sorted by format.

        Streams of blosclz are also sorted by length, the longest first: several of them share a warp, which takes as
        long as the longest one.
        """
        if self.is_one_per_chunk:  # all have the same format, which is not blosclz
            return self
        is_blosclz = self.format == FORMATS.index(BLOSCLZ)
        if np.count_nonzero(is_blosclz) < 2 and (self.format[1:] >= self.format[:-1]).all():
            return self
        order = np.lexsort((np.where(is_blosclz, -self.source_nbytes, 0), self.format))
        return Streams(self.table.take(order, axis=1))


class ShuffledBlocks(Columns):
    """One row per block of decompressed bytes for `cuda.blosc.unshuffle`.

    If a chunk has blocks here, they cover all of it. Blocks that are not shuffled have 0 in the column `shuffle`.
    """

    n_columns = 5
    start = TableColumn(1)
    """First byte of the block, counted from the start of the decoded chunk."""
    nbytes = TableColumn(2)
    """Length of the block in bytes."""
    typesize = TableColumn(3)
    """Bytes of an element."""
    shuffle = TableColumn(4)
    """0 for none, 1 for shuffle, 2 for bitshuffle."""


def whole_chunk_blocks(chunk: Rows, nbytes: int, spec: ShuffleSpec) -> ShuffledBlocks:
    """Return one block for each of the chunks numbered `chunk`, which are shuffled as a whole.

    `nbytes` is the length in bytes of each chunk.
    """
    return ShuffledBlocks.from_columns(len(chunk), chunk=chunk, nbytes=nbytes, typesize=spec.elementsize, shuffle=1)


def find_streams(
    compressor: CompressorSpec, data: Bytes, start: Rows, nbytes: Rows, decoded_nbytes: int
) -> tuple[npt.NDArray[np.bool_], Streams, ShuffledBlocks]:
    """Find the streams of the chunks whose frames may be given to the device.

    Parameters
    ----------
    compressor : CompressorSpec
        Compressor of the chunks.
    data : uint8, shape (n_bytes,), host memory
        Memory that holds the encoded chunks.
    start, nbytes : int64, shape (n_chunks,)
        Chunk i is ``data[start[i] : start[i] + nbytes[i]]``.
    decoded_nbytes : int
        Bytes that each chunk decodes to.

    Returns
    -------
    ready : bool, shape (n_chunks,)
        Whether the device may be given a chunk. The host codec decodes the others.
    streams : Streams
        Streams of the ready chunks. A chunk's number is its position in `start`.
    shuffled_blocks : ShuffledBlocks
        Blocks of the ready chunks that are to be unshuffled.
    """
    if isinstance(compressor, BloscSpec):
        return _find_in_blosc(compressor.cname, data, start, nbytes, decoded_nbytes)
    if isinstance(compressor, ZstdSpec) and len(start):
        # The first frame stands for all. A kernel checks each frame later, see `zstd_streams`.
        first_frame = memoryview(data)[int(start[0]) : int(start[0] + nbytes[0])]
        if is_plain_zstd(first_frame, decoded_nbytes):
            ready, streams = zstd_streams(compressor, nbytes, decoded_nbytes)
            return ready, streams, ShuffledBlocks.empty()
    ready = (nbytes <= longest_stream(compressor)) & device_ready(compressor, data, start, nbytes, decoded_nbytes)
    streams = _whole_chunks(ready, nbytes, decoded_nbytes)
    envelope = ENVELOPES[type(compressor)]
    assert envelope is not None  # only Blosc has none
    _strip_envelope(envelope, streams, data, start)
    return ready, streams, ShuffledBlocks.empty()


def zstd_streams(
    compressor: CompressorSpec, nbytes: Rows, decoded_nbytes: int
) -> tuple[npt.NDArray[np.bool_], Streams]:
    """Return which chunks may be zstd frames, judged by their lengths alone, and their streams.

    A kernel checks the frames later. Reading each header on the host would cost a cache miss per chunk, and would be
    wasted if one writer has written all chunks.
    """
    ready = (nbytes >= LEAST_ZSTD_NBYTES) & (nbytes <= longest_stream(compressor))
    streams = _whole_chunks(ready, nbytes, decoded_nbytes)
    streams.format[:] = FORMATS.index(ZSTD)
    return ready, streams


def _whole_chunks(ready: npt.NDArray[np.bool_], nbytes: Rows, decoded_nbytes: int) -> Streams:
    """Return one stream for each ready chunk: all of its bytes."""
    chunk = ready.nonzero()[0]
    table = np.zeros((Streams.n_columns, len(chunk)), np.int64)
    # The columns chunk, source_nbytes and target_nbytes. Setting them by name would be slower.
    table[0] = chunk
    table[3] = nbytes.take(chunk)
    table[5] = decoded_nbytes
    return Streams(table, is_one_per_chunk=len(chunk) == len(ready))


def _find_in_blosc(
    cname: str, data: Bytes, start: Rows, nbytes: Rows, decoded_nbytes: int
) -> tuple[npt.NDArray[np.bool_], Streams, ShuffledBlocks]:
    """Do the work of `find_streams` for Blosc frames."""
    walk = blosc_frames.walk_blosc(data, start, nbytes, decoded_nbytes, cname=cname)
    parts = []
    for codec, envelope in BLOSC_ENVELOPES.items():
        rows = np.flatnonzero(walk.codec == codec)
        if len(rows):
            part = Streams.from_columns(
                len(rows),
                chunk=walk.chunk[rows],
                source=walk.source[rows] - start[walk.chunk[rows]],
                source_nbytes=walk.source_nbytes[rows],
                target=walk.target[rows],
                target_nbytes=walk.target_nbytes[rows],
            )
            _strip_envelope(envelope, part, data, start)
            parts.append(part)
    keep_numbers = [0] * len(parts)  # all parts number the same chunks
    streams = join(parts, keep_numbers) if parts else Streams.empty()
    shuffled_blocks = ShuffledBlocks.from_columns(
        len(walk.block_chunk),
        chunk=walk.block_chunk,
        start=walk.block_start,
        nbytes=walk.block_nbytes,
        typesize=walk.block_typesize,
        shuffle=walk.block_shuffle,
    )
    return walk.ready, streams, shuffled_blocks


def _strip_envelope(envelope: Envelope, streams: Streams, data: Bytes, start: Rows) -> None:
    """Set the format, read the stored checksums, and narrow rows that span an envelope down to the stream inside it."""
    if envelope.checksum_from_end:
        end = start[streams.chunk] + streams.source + streams.source_nbytes
        checksum_bytes = (end - envelope.checksum_from_end)[:, None] + np.arange(4)
        streams.checksum[:] = data[checksum_bytes].view(envelope.checksum_dtype)[:, 0]
    streams.format[:] = FORMATS.index(envelope.format)
    if envelope.head_nbytes or envelope.tail_nbytes:
        streams.source[:] += envelope.head_nbytes
        streams.source_nbytes[:] -= envelope.head_nbytes + envelope.tail_nbytes
