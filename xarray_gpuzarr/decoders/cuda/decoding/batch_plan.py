"""What happens to each chunk and stream of a batch, decided on the host in columns before anything is enqueued."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.nvcomp import Format, Nvcomp, quickest
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.streams import FORMATS, RAW, Filters, Inflate, Streams
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import record

Addresses = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ELEMENT_NBYTES = 8
"""Longest element that a filter knows."""


@record
class Chunks:
    """The chunks of a batch, staged on the device. Columns have one row per stored chunk."""

    address: Addresses
    """First byte as staged: encoded, or decoded if no stream belongs to the chunk; 0 if there is no such object."""
    nbytes: Rows
    rows: Rows
    """shape (n, k), as `ReadPlan.row`."""
    missing: Rows
    """shape (m, k): chunks that take the fill value."""
    streams: Streams
    filters: Filters
    elements: Rows
    """Numbers of the chunks of which codecs of elements are still to be undone."""
    shadows: Shadows
    """Of chunks that the host has decoded as well."""


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
    """What the address of a stream must be a multiple of."""

    @property
    def rows(self) -> slice:
        """Its rows."""
        return slice(self.first, self.first + self.n)


@record
class BatchPlan:
    """What happens to the chunks and streams of a batch. Stream columns are sorted by format, raw streams last."""

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

    @property
    def n_moves(self) -> int:
        """Runs of bytes that are moved before anything is decoded."""
        return len(self.moved) + len(self.shifted) + len(self.raw)

    @property
    def temp_nbytes(self) -> int:
        """Scratch memory for nvCOMP: formats use it one after the other."""
        return max((g.temp_nbytes for g in self.groups), default=0)


def plan_batch(chunks: Chunks, placing: Placing, nvcomp: Nvcomp) -> BatchPlan:
    """Decide what happens to each chunk and stream."""
    streams = chunks.streams.by_format()
    groups = _groups(streams, nvcomp)
    begin = streams.per_row(chunks.address) + streams.source.view(np.uint64)
    moved = _misaligned(begin, groups)
    direct, result = placing.direct(chunks.rows)
    if streams.one_each and not len(chunks.filters) and not len(chunks.elements):
        apart = (~direct).nonzero()[0]
        return BatchPlan(
            streams=streams,
            groups=groups,
            n_coded=len(streams),
            begin=begin,
            moved=moved,
            raw=NO_ROWS,
            straight=direct,
            result=result,
            shifted=NO_ROWS,
            apart=apart,
            shuffled=NO_ROWS,
            elements=NO_ROWS,
            placed=apart,
        )
    n_coded = sum(g.n for g in groups)
    compressed = np.zeros(len(chunks.address), bool)
    compressed[streams.chunk] = True
    rewritten = put(compressed, chunks.filters.chunk, np.True_)
    decoded = put(rewritten, chunks.elements, np.True_)
    straight = direct & decoded
    return BatchPlan(
        streams=streams,
        groups=groups,
        n_coded=n_coded,
        begin=begin,
        moved=moved,
        raw=np.arange(n_coded, len(streams)),
        straight=straight,
        result=result,
        shifted=_unaligned(chunks, (~rewritten).nonzero()[0], placing.unit_nbytes),
        apart=(decoded & ~straight).nonzero()[0],
        shuffled=_both(chunks.filters.chunk, compressed),
        elements=chunks.elements,
        placed=((chunks.address != 0) & ~straight).nonzero()[0],
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


def _unaligned(chunks: Chunks, staged: Rows, unit_nbytes: int) -> Rows:
    """Return the numbers of the chunks, of those that are read as staged, that begin where no kernel can read them."""
    if not len(staged):
        return NO_ROWS
    units = np.full(len(chunks.address), unit_nbytes, np.uint64)
    units[chunks.elements] = _ELEMENT_NBYTES
    unaligned: Flags = chunks.address[staged] % units[staged] != 0
    return staged[unaligned]


def _both(numbers: Rows, compressed: npt.NDArray[np.bool_]) -> Rows:
    """Return the numbers of shuffled chunks that are compressed as well."""
    if not len(numbers):
        return NO_ROWS
    distinct = np.unique(numbers)
    return distinct[compressed[distinct]]


def _misaligned(begin: Addresses, groups: Sequence[Group]) -> Rows:
    """Return the numbers of the streams that do not begin where their format wants them to."""
    parts = [(begin[g.rows] % g.alignment).nonzero()[0] + g.first for g in groups if g.alignment > 1]
    return np.concatenate(parts) if parts else NO_ROWS


def _counts(streams: Streams) -> Iterable[tuple[Inflate, int]]:
    """Return the number of streams of each format, in the order in which they lie."""
    if streams.one_each and len(streams):
        return [(FORMATS[streams.format[0]], len(streams))]
    return zip(FORMATS, np.bincount(streams.format, minlength=len(FORMATS)).tolist(), strict=True)


def _groups(streams: Streams, nvcomp: Nvcomp) -> list[Group]:
    groups: list[Group] = []
    first = 0
    for inflate, n in _counts(streams):
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
