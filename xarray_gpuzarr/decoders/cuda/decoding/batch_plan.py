"""Plan for the staged chunks of a batch, and the status that the device reports for each of their streams.

`plan_batch` decides on the host, in columns, before anything is enqueued. A `Receipt` is one download behind the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.checksum import finish
from xarray_gpuzarr.cuda.nvcomp import Format, Nvcomp, quickest
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.cuda.workspace_memory import Slot
from xarray_gpuzarr.decoders.cuda.batches.streams import FORMATS, NO_ROWS, RAW, Filters, Inflate, Rows, Streams, join
from xarray_gpuzarr.decoders.cuda.decoding.placing import Addresses, Placing
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import record

Flags = npt.NDArray[np.bool_]

_ELEMENT_NBYTES = 8
"""Longest element that a filter knows."""


@record
class Staged:
    """Chunks on their way to the device. Columns have one row per chunk of the pieces that were staged, in order."""

    memories: Sequence[DeviceMemory]
    """Where the chunks lie; lent on the workspace's `copy` stream."""
    address: Addresses
    """shape (n,): device address of the chunk, encoded, or decoded if no stream belongs to it; 0 if there is no such
    object."""
    nbytes: Rows
    """shape (n,): length in bytes, without checksums that have been checked."""
    streams: Streams
    """Streams of the chunks that crossed encoded, numbered as the rows."""
    filters: Filters
    """Filters of the same chunks."""
    encoded: Flags
    """shape (n,): whether the chunk crossed encoded."""
    shadows: Shadows
    """Chunks that the host has decoded as well."""

    @classmethod
    def of_decoded(cls, memories: Sequence[DeviceMemory], address: Addresses, nbytes: Rows) -> Self:
        """Return chunks that cross decoded."""
        return cls(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=Streams.none(),
            filters=Filters.none(),
            encoded=np.zeros(len(address), np.bool_),
            shadows=Shadows.none(),
        )


def put_together(parts: Sequence[Staged]) -> Staged:
    """Return the segments of a batch, in order, as one."""
    if not parts:
        return Staged.of_decoded([], NO_ROWS.view(np.uint64), NO_ROWS)
    if len(parts) == 1:
        return parts[0]
    counts = [len(part.address) for part in parts]
    return Staged(
        memories=[memory for part in parts for memory in part.memories],
        address=np.concatenate([part.address for part in parts]),
        nbytes=np.concatenate([part.nbytes for part in parts]),
        streams=join([part.streams for part in parts], counts),
        filters=join([part.filters for part in parts], counts),
        encoded=np.concatenate([part.encoded for part in parts]),
        shadows=join([part.shadows for part in parts], counts),
    )


@record
class Group:
    """The streams of one format: a run of rows in columns that are sorted by format."""

    inflate: Inflate
    format: Format | None
    """As nvCOMP decodes it; None if a kernel does."""
    first: int
    n: int
    temp_nbytes: int
    max_nbytes: int
    """Longest decoded stream."""
    alignment: int
    """Alignment of the address of a stream."""


@record
class BatchPlan:
    """Plan for the chunks and streams of a batch. Stream columns are sorted by format, raw streams last."""

    streams: Streams
    groups: list[Group]
    n_coded: int
    """Streams that are decompressed: those of all groups."""
    begin: Addresses
    """shape (n_streams,): first byte of each stream."""
    moved: Rows
    """Numbers of the streams that are first moved to an aligned place."""
    raw: Rows
    """Numbers of the streams that are only moved, to where they belong."""
    straight: Flags
    """shape (n_chunks,): whether a chunk is decoded straight into the result."""
    result: Addresses
    """shape (n_chunks,): where it begins there."""
    shifted: Rows
    """Numbers of the chunks that are read as staged by a kernel that knows elements, and first moved to an aligned
    place."""
    apart: Rows
    """Numbers of the chunks that are decoded into scratch, to be placed from there."""
    shuffled: Rows
    """Numbers of the chunks that are decompressed into scratch, to be unshuffled from there."""
    elements: Rows
    """Numbers of the chunks of which codecs of elements are undone."""
    placed: Rows
    """Numbers of the chunks that a kernel brings to the result."""


def plan_batch(staged: Staged, rows: Rows, placing: Placing, nvcomp: Nvcomp, *, has_elements: bool) -> BatchPlan:
    """Decide what happens to each chunk and stream.

    `rows` are those of the staged chunks, as `ReadPlan.row`; `has_elements` says whether chunks that crossed encoded
    have codecs of elements.
    """
    streams = staged.streams.by_format()
    groups = _groups(streams, nvcomp)
    n_coded = sum([group.n for group in groups])
    begin = streams.per_row(staged.address) + streams.source.view(np.uint64)
    moved = [(begin[group.first :][: group.n] % group.alignment).nonzero()[0] + group.first for group in groups]
    direct, result = placing.direct(rows)
    compressed = np.zeros(len(staged.address), np.bool_)
    compressed[streams.chunk] = True
    rewritten = put(compressed, staged.filters.chunk, np.True_)
    elements = staged.encoded.nonzero()[0] if has_elements else NO_ROWS
    decoded = put(rewritten, elements, np.True_)
    straight = direct & decoded
    unit_nbytes = put(np.full(len(rewritten), placing.unit_nbytes, np.uint64), elements, np.uint64(_ELEMENT_NBYTES))
    shuffled = put(np.zeros(len(rewritten), np.bool_), staged.filters.chunk, np.True_)
    return BatchPlan(
        streams=streams,
        groups=groups,
        n_coded=n_coded,
        begin=begin,
        moved=np.concatenate([NO_ROWS, *moved]),
        raw=np.arange(n_coded, len(streams)),
        straight=straight,
        result=result,
        shifted=(~rewritten & (staged.address % unit_nbytes != 0)).nonzero()[0],
        apart=(decoded & ~straight).nonzero()[0],
        shuffled=(shuffled & compressed).nonzero()[0],
        elements=elements,
        placed=((staged.address != 0) & ~straight).nonzero()[0],
    )


def put[Scalar: np.generic](
    column: npt.NDArray[Scalar], rows: Rows, values: npt.NDArray[Scalar] | Scalar
) -> npt.NDArray[Scalar]:
    """Return a column with other values in some rows; `column` itself, which stays as it is, if there are none."""
    if not len(rows):
        return column
    changed = column.copy()
    changed[rows] = values
    return changed


def _groups(streams: Streams, nvcomp: Nvcomp) -> list[Group]:
    groups: list[Group] = []
    first = 0
    for inflate, n in zip(FORMATS, np.bincount(streams.format, minlength=len(FORMATS)).tolist(), strict=True):
        if not n or inflate is RAW:
            continue
        nbytes = streams.target_nbytes[first : first + n]
        longest, fmt, temp_nbytes, alignment = int(nbytes.max()), None, 0, 1
        if inflate.nvcomp is not None:
            fmt, total = quickest(inflate.nvcomp, longest), int(nbytes.sum())
            temp_nbytes = nvcomp.temp_nbytes(fmt, n_chunks=n, max_nbytes=longest, total_nbytes=total)
            alignment = nvcomp.alignment(fmt).source
        group = Group(
            inflate=inflate,
            format=fmt,
            first=first,
            n=n,
            temp_nbytes=temp_nbytes,
            max_nbytes=longest,
            alignment=alignment,
        )
        groups.append(group)
        first += n
    return groups


@record
class Receipt:
    """Report of the device on a batch, in one download.

    Three columns, one row per decompressed stream: uint64 lengths, uint64 sums, int32 statuses; then uint64 flags. A
    sum is the checksum of the decoded bytes where the format has one, else not 0 where the stream was refused. There is
    a flag for each chunk with codecs of elements, not 0 where one of these leaves the chunk to the host. Then uint64
    CRC-32s, of each chunk that the host has decoded as well.
    """

    slot: Slot
    plan: BatchPlan
    shadows: Shadows

    @classmethod
    def ask(
        cls, workspace: Workspace, plan: BatchPlan, shadows: Shadows, address: Address, stream: Stream
    ) -> Self | None:
        """Enqueue the download of what is said of a batch; None if nothing is.

        Batches are to ask in the order in which the host looks at their receipts.
        """
        nbytes = receipt_nbytes(plan, shadows)
        if not nbytes:
            return None
        slot = workspace.receipts.lend(nbytes)
        workspace.api.download(slot.array[:nbytes], address, stream)
        slot.give_back(stream)
        return cls(slot=slot, plan=plan, shadows=shadows)

    def doubtful(self) -> Rows:
        """Return the numbers of the chunks that were not decoded as they should; only once the download is done."""
        plan, n, answer = self.plan, self.plan.n_coded, self.slot.array
        actual, sums = answer[: 8 * n].view(np.int64), answer[8 * n : 16 * n].view(np.uint64)
        status = answer[16 * n : 20 * n].view(np.int32)
        wrong = (status != 0) | (actual != plan.streams.target_nbytes[:n])
        for group in plan.groups:
            rows = slice(group.first, group.first + group.n)
            if group.inflate.checksum is not None:
                wrong[rows] |= finish(group.inflate.checksum, sums[rows]) != plan.streams.checksum[rows]
            else:
                wrong[rows] |= sums[rows] != 0  # refused before it was decoded
        flags = answer[streams_nbytes(n) :][: 8 * len(plan.elements)].view(np.uint64)
        if not wrong.any() and not flags.any():
            return NO_ROWS
        return np.unique(np.concatenate([plan.streams.chunk[:n][wrong], plan.elements[flags != 0]]))

    def different(self) -> Rows:
        """Return the numbers of the chunks that the host has decoded to other bytes; only once the download is done."""
        first = streams_nbytes(self.plan.n_coded) + 8 * len(self.plan.elements)
        sums = self.slot.array[first:][: 8 * len(self.shadows)].view(np.uint64)
        different: Rows = self.shadows.chunk[finish("crc32", sums) != self.shadows.crc]
        return different


def receipt_nbytes(plan: BatchPlan, shadows: Shadows) -> int:
    """Return the length of a receipt."""
    return streams_nbytes(plan.n_coded) + 8 * (len(plan.elements) + len(shadows))


def streams_nbytes(n: int) -> int:
    """Return the bytes of what is said of `n` streams, a multiple of 8."""
    return 16 * n + -(-n // 2) * 8
