"""Plan what happens to the staged chunks and streams of a batch.

`plan_batch` decides on the host, in columns, before anything is enqueued. `decode` then carries the plan out.
`decoders.cuda.chain` says what a codec of elements is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory
from xarray_gpuzarr.cuda.nvcomp import Nvcomp
from xarray_gpuzarr.cuda.nvcomp_formats import Format, fastest_format
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, Rows, join
from xarray_gpuzarr.decoders.cuda.batches.formats import FORMATS, RAW, StreamFormat
from xarray_gpuzarr.decoders.cuda.batches.streams import ShuffledBlocks, Streams
from xarray_gpuzarr.decoders.cuda.decoding.placing import Addresses, Placing
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import Column, record

Flags = npt.NDArray[np.bool_]
"""One boolean per chunk or stream, in host memory."""

_MAX_ELEMENT_NBYTES = 8
"""Length in bytes of the longest element that a filter decodes."""


@record
class Staged:
    """Chunks that are in device memory, or on their way there.

    Columns have one row for each chunk of the row ranges that were staged, in order.
    """

    memories: Sequence[DeviceMemory]
    """Memory that holds the chunks, borrowed on the workspace's `copy` stream."""
    address: Addresses
    """shape (n,): device address of the chunk, 0 for a missing chunk."""
    nbytes: Column
    """shape (n,): length of the encoded chunk in bytes, without checksums that the host has checked. Meaningless for
    chunks that the host has decoded."""
    streams: Streams
    """Streams of the chunks that were copied encoded. The number of a chunk is its row in the other columns."""
    shuffled_blocks: ShuffledBlocks
    """Blocks of the same chunks that are to be unshuffled."""
    encoded: Flags
    """shape (n,): whether the chunk was copied encoded, rather than decoded by the host. False for a missing chunk."""
    shadows: Shadows
    """Chunks that the host has decoded as well."""

    @classmethod
    def from_decoded(cls, memories: Sequence[DeviceMemory], address: Addresses, nbytes: Column) -> Self:
        """Return chunks that the host has decoded."""
        return cls(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=Streams.empty(),
            shuffled_blocks=ShuffledBlocks.empty(),
            encoded=np.zeros(len(address), np.bool_),
            shadows=Shadows.empty(),
        )


def join_segments(segments: Sequence[Staged]) -> Staged:
    """Return the staged segments of a batch as one. A batch of missing chunks alone has no segments, and no rows."""
    if not segments:
        return Staged.from_decoded([], NO_ROWS.view(np.uint64), NO_ROWS)
    if len(segments) == 1:
        return segments[0]
    counts = [len(segment.address) for segment in segments]
    return Staged(
        memories=[memory for segment in segments for memory in segment.memories],
        address=np.concatenate([segment.address for segment in segments]),
        nbytes=np.concatenate([segment.nbytes for segment in segments]),
        streams=join([segment.streams for segment in segments], counts),
        shuffled_blocks=join([segment.shuffled_blocks for segment in segments], counts),
        encoded=np.concatenate([segment.encoded for segment in segments]),
        shadows=join([segment.shadows for segment in segments], counts),
    )


@record
class Group:
    """The streams of one format: a run of rows in columns that are sorted by format."""

    stream_format: StreamFormat
    nvcomp_format: Format | None
    """Format, with its algorithm, that nvCOMP is called for; None if a kernel of this package decodes the streams."""
    first: int
    """Row of the first stream."""
    n: int
    """Number of streams."""
    temp_nbytes: int
    """Bytes of scratch memory that nvCOMP needs."""
    max_nbytes: int
    """Length in bytes of the longest decoded stream."""
    alignment: int
    """Number of bytes that the address of each stream must be a multiple of."""


@record
class BatchPlan:
    """Plan for the chunks and streams of a batch.

    Stream columns are sorted by format, raw streams last. Columns of type `Rows` hold row numbers of streams or chunks.
    """

    streams: Streams
    groups: list[Group]
    n_compressed: int
    """Number of streams that nvCOMP or a kernel decompresses: those of all groups. Raw streams follow them."""
    stream_address: Addresses
    """shape (n_streams,): device address of each staged stream."""
    realigned_streams: Rows
    """Streams that are first copied to an aligned address, as `Group.alignment` requires."""
    raw_streams: Rows
    """Streams that are stored raw, and only copied to where they belong."""
    is_direct: Flags
    """shape (n_chunks,): whether a chunk is decoded straight into the result."""
    result_address: Addresses
    """shape (n_chunks,): address of the chunk's first element in the result; valid where `is_direct`."""
    realigned_chunks: Rows
    """Chunks that were staged at an address that is not aligned to their elements, and that no step moves before a
    kernel reads them as elements. They are first copied to an aligned address."""
    scratch_chunks: Rows
    """Chunks that are decoded into scratch memory, and placed from there."""
    shuffled_chunks: Rows
    """Chunks that are decompressed into scratch memory, and unshuffled from there."""
    element_chunks: Rows
    """Chunks whose codecs of elements are undone."""
    placed_chunks: Rows
    """Chunks that a kernel places in the result."""


def plan_batch(
    staged: Staged, piece_numbers: Column, placing: Placing, nvcomp: Nvcomp, *, has_element_codecs: bool
) -> BatchPlan:
    """Decide what happens to each chunk and stream of a batch.

    Parameters
    ----------
    staged : Staged
        Chunks of the batch.
    piece_numbers : int64, shape (n_chunks, k)
        Those of the staged chunks, as in `ReadPlan.piece_numbers`.
    placing : Placing
        Placing of the read.
    nvcomp : Nvcomp
        Returns required alignments and lengths of scratch memory.
    has_element_codecs : bool
        Whether chunks that were copied encoded have codecs of elements.
    """
    n_chunks = len(staged.address)
    streams = staged.streams.by_format()
    groups = _find_groups(streams, nvcomp)
    n_compressed = sum([group.n for group in groups])
    # The address of a stream's chunk, plus the offset of the stream in the chunk.
    stream_address = streams.per_row(staged.address) + streams.source.view(np.uint64)
    realigned_streams = [NO_ROWS]  # for a batch without groups
    for group in groups:
        addresses = stream_address[group.first : group.first + group.n]
        realigned_streams.append((addresses % group.alignment).nonzero()[0] + group.first)
    is_compressed = np.zeros(n_chunks, np.bool_)
    is_compressed[streams.chunk] = True
    is_shuffled = replace_rows(np.zeros(n_chunks, np.bool_), staged.shuffled_blocks.chunk, np.True_)
    is_decompressed_or_unshuffled = is_compressed | is_shuffled
    element_chunks = staged.encoded.nonzero()[0] if has_element_codecs else NO_ROWS
    is_decoded = replace_rows(is_decompressed_or_unshuffled, element_chunks, np.True_)
    # A chunk of which nothing is decoded has no step that could write it to the result, so a kernel places it there.
    fits_direct, result_address = placing.find_direct(piece_numbers)
    is_direct = fits_direct & is_decoded
    unit_nbytes = np.full(n_chunks, placing.unit_nbytes, np.uint64)
    unit_nbytes = replace_rows(unit_nbytes, element_chunks, np.uint64(_MAX_ELEMENT_NBYTES))
    # Chunks that the host has decoded are aligned, to multiples of 16 bytes. So are missing ones, whose address is 0.
    is_misaligned = staged.address % unit_nbytes != 0
    # Decompressing and unshuffling write chunks to aligned addresses, so only other chunks may have to be moved.
    is_realigned = is_misaligned & ~is_decompressed_or_unshuffled
    return BatchPlan(
        streams=streams,
        groups=groups,
        n_compressed=n_compressed,
        stream_address=stream_address,
        realigned_streams=np.concatenate(realigned_streams),
        raw_streams=np.arange(n_compressed, len(streams)),
        is_direct=is_direct,
        result_address=result_address,
        realigned_chunks=is_realigned.nonzero()[0],
        scratch_chunks=(is_decoded & ~is_direct).nonzero()[0],
        shuffled_chunks=(is_shuffled & is_compressed).nonzero()[0],
        element_chunks=element_chunks,
        placed_chunks=((staged.address != 0) & ~is_direct).nonzero()[0],
    )


def replace_rows[Scalar: np.generic](
    column: npt.NDArray[Scalar], rows: Rows, values: npt.NDArray[Scalar] | Scalar
) -> npt.NDArray[Scalar]:
    """Return a copy of a column with other values in some rows; without rows, the column itself."""
    if not len(rows):
        return column
    changed = column.copy()
    changed[rows] = values
    return changed


def _find_groups(streams: Streams, nvcomp: Nvcomp) -> list[Group]:
    """Return the groups of `streams`, which are sorted by format. Raw streams, the last ones, have no group."""
    groups: list[Group] = []
    first = 0
    counts = np.bincount(streams.format, minlength=len(FORMATS)).tolist()
    for stream_format, n in zip(FORMATS, counts, strict=True):
        if not n or stream_format is RAW:
            continue
        nbytes = streams.target_nbytes[first : first + n]
        max_nbytes = int(nbytes.max())
        nvcomp_format = None
        temp_nbytes = 0
        alignment = 1
        if stream_format.nvcomp is not None:
            nvcomp_format = fastest_format(stream_format.nvcomp, max_nbytes)
            total_nbytes = int(nbytes.sum())
            temp_nbytes = nvcomp.temp_nbytes(
                nvcomp_format, n_chunks=n, max_nbytes=max_nbytes, total_nbytes=total_nbytes
            )
            alignment = nvcomp.alignment(nvcomp_format).source
        group = Group(
            stream_format=stream_format,
            nvcomp_format=nvcomp_format,
            first=first,
            n=n,
            temp_nbytes=temp_nbytes,
            max_nbytes=max_nbytes,
            alignment=alignment,
        )
        groups.append(group)
        first += n
    return groups
