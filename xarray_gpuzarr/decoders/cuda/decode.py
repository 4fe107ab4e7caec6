"""A staged batch -> elements of the result, all enqueued on the lane's `work` stream: align, decompress, place, fill.

One allocation holds the scratch of the whole batch and one upload brings all its tables, so that the host's cost is
that of a few NumPy calls on columns, however many chunks there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda import nvcomp
from xarray_gpuzarr.cuda.api import Address, DeviceMemory
from xarray_gpuzarr.cuda.checksum import checksum
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.resources import Lane
from xarray_gpuzarr.decoders.cuda.batches import aligned
from xarray_gpuzarr.decoders.cuda.placing import Places, Placing
from xarray_gpuzarr.decoders.cuda.receipts import Receipt
from xarray_gpuzarr.decoders.cuda.streams import FORMATS, Inflate, Streams
from xarray_gpuzarr.decoders.cuda.tables import Tables, offset_by

Addresses = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of a batch, staged on the device. Columns have one row per stored chunk."""

    address: Addresses
    """First byte as staged: encoded, or decoded if no stream belongs to the chunk."""
    nbytes: Rows
    rows: Rows
    """shape (n, k), as `ReadPlan.row`."""
    missing: Rows
    """shape (m, k): chunks that take the fill value."""
    streams: Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The streams of one format: a run of rows in columns that are sorted by format."""

    inflate: Inflate
    first: int
    n: int
    temp_nbytes: int
    max_nbytes: int
    """Longest decoded stream."""

    @property
    def rows(self) -> slice:
        """Its rows, if a checksum is taken of them, else none."""
        return slice(self.first, self.first + self.n if self.inflate.checksum else self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What happens to the chunks and streams of a batch. Stream columns are sorted by format."""

    streams: Streams
    groups: list[_Group]
    begin: Addresses
    """shape (n_streams,): first byte of each stream."""
    moved: Rows
    """Numbers of the streams that are first moved to an aligned place."""
    source: Addresses
    """shape (n_chunks,): where each chunk is placed from, or decompressed to."""
    shifted: Rows
    """Numbers of the chunks that are not decompressed, and are first moved to an aligned place."""
    apart: Rows
    """Numbers of the chunks that are decompressed into scratch."""
    placed: Rows
    """Numbers of the chunks that a kernel brings to the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scratch:
    """One allocation, cut up."""

    memory: DeviceMemory
    moved: Addresses
    """For the moved streams."""
    shifted: Addresses
    """For the moved chunks."""
    apart: Addresses
    """For the chunks that are decompressed into scratch."""
    temp: Address
    """For nvCOMP; one format after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offsets:
    """Where columns lie in the table, in bytes."""

    moves: int
    sources: int
    source_nbytes: int
    targets: int
    target_nbytes: int
    messages: list[int]
    """Per group, the addresses and then the lengths of what a checksum is taken of."""
    receipt: int
    places: Places
    fills: Places


class BatchDecoder:
    """Decodes the batches of one read.

    Parameters
    ----------
    lane : Lane
    placing : Placing
    chunk_nbytes : int
        Bytes of a decoded chunk.
    """

    def __init__(self, lane: Lane, placing: Placing, chunk_nbytes: int) -> None:
        self._lane = lane
        self._api = lane.api
        self._placing = placing
        self._chunk_nbytes = chunk_nbytes

    def decode(self, chunks: Chunks) -> Receipt | None:
        """Enqueue a batch; return the receipt that will tell how it went, None if nothing is decompressed."""
        api, work_stream = self._api, self._lane.work
        work = self._arrange(chunks)
        scratch = self._allocate(work, chunks)
        tables = Tables()
        offsets, longest = self._fill_tables(tables, chunks, work, scratch)
        memory = tables.send(self._lane)
        n_moves = len(work.moved) + len(work.shifted)
        move(api, work_stream, table=offset_by(memory, offsets.moves), n=n_moves, max_nbytes=longest)
        with api.range("read::decode"):
            for group in work.groups:
                self._decompress(group, memory, offsets, scratch.temp, len(work.streams))
            for group, messages in zip(work.groups, offsets.messages, strict=True):
                self._check(group, offset_by(memory, messages), offset_by(memory, offsets.receipt), len(work.streams))
        with api.range("read::place"):
            self._placing.launch(memory, offsets.places)
            self._placing.launch(memory, offsets.fills)
        receipt = Receipt.ask(self._lane, work.streams, offset_by(memory, offsets.receipt)) if work.groups else None
        self._lane.free(memory)
        self._lane.free(scratch.memory)
        return receipt

    def _arrange(self, chunks: Chunks) -> _Work:
        """Decide what happens to each chunk and stream."""
        streams = chunks.streams.by_format()
        compressed = np.zeros(len(chunks.address), bool)
        compressed[streams.chunk] = True
        direct, source = self._placing.direct(chunks.rows)
        straight, present = direct & compressed, chunks.address != 0
        source = np.where(compressed, source, chunks.address)
        begin = chunks.address[streams.chunk] + streams.source.astype(np.uint64)
        groups = self._groups(streams)
        align = np.repeat([self._api.nvcomp.alignment(g.inflate.format).source for g in groups], [g.n for g in groups])
        return _Work(
            streams=streams,
            groups=groups,
            begin=begin,
            moved=np.flatnonzero(begin % align.astype(np.uint64)),
            source=source,
            shifted=np.flatnonzero(~compressed & (chunks.address % np.uint64(self._placing.unit_nbytes) != 0)),
            apart=np.flatnonzero(compressed & ~straight),
            placed=np.flatnonzero(present & ~straight),
        )

    def _groups(self, streams: Streams) -> list[_Group]:
        groups = []
        counts = np.bincount(streams.format, minlength=len(FORMATS)).tolist()
        first = 0
        for inflate, n in zip(FORMATS, counts, strict=True):
            if n:
                nbytes = streams.target_nbytes[first : first + n]
                longest = int(nbytes.max())
                temp_nbytes = self._api.nvcomp.temp_nbytes(
                    inflate.format, n_chunks=n, max_nbytes=longest, total_nbytes=int(nbytes.sum())
                )
                groups.append(_Group(inflate=inflate, first=first, n=n, temp_nbytes=temp_nbytes, max_nbytes=longest))
                first += n
        return groups

    def _allocate(self, work: _Work, chunks: Chunks) -> _Scratch:
        """Take the scratch memory of a batch."""
        moved, shifted = work.streams.source_nbytes[work.moved], chunks.nbytes[work.shifted]
        apart = np.full(len(work.apart), self._chunk_nbytes)
        ends = np.cumsum(np.r_[0, -(-np.concatenate([moved, shifted, apart]) // 16) * 16])
        temp_nbytes = max((g.temp_nbytes for g in work.groups), default=0)
        memory = self._lane.allocate(int(ends[-1]) + aligned(temp_nbytes), self._lane.work)
        at = np.uint64(memory.address) + ends[:-1].astype(np.uint64)
        return _Scratch(
            memory=memory,
            moved=at[: len(moved)],
            shifted=at[len(moved) : len(moved) + len(shifted)],
            apart=at[len(moved) + len(shifted) :],
            temp=offset_by(memory, int(ends[-1])),
        )

    def _fill_tables(self, tables: Tables, chunks: Chunks, work: _Work, scratch: _Scratch) -> tuple[_Offsets, int]:
        """Add all columns; also return the length of the longest move."""
        streams, begin, source = work.streams, work.begin, work.source
        lengths = np.concatenate([streams.source_nbytes[work.moved], chunks.nbytes[work.shifted]])
        origins = np.concatenate([begin[work.moved], source[work.shifted]])
        moves = tables.add(np.concatenate([origins, scratch.moved, scratch.shifted, lengths.astype(np.uint64)]))
        begin[work.moved], source[work.shifted] = scratch.moved, scratch.shifted
        source[work.apart] = scratch.apart
        targets, nbytes = source[streams.chunk] + streams.target.astype(np.uint64), streams.target_nbytes
        offsets = _Offsets(
            moves=moves,
            sources=tables.add(begin),
            source_nbytes=tables.add(streams.source_nbytes),
            targets=tables.add(targets),
            target_nbytes=tables.add(nbytes),
            messages=[
                tables.add(np.concatenate([targets[g.rows], nbytes[g.rows].view(np.uint64)])) for g in work.groups
            ],
            receipt=tables.add(Receipt.blank(len(streams))),
            places=self._placing.add(tables, chunks.rows[work.placed], source[work.placed]),
            fills=self._placing.add_missing(tables, chunks.missing),
        )
        return offsets, int(lengths.max(initial=0))

    def _decompress(
        self, group: _Group, memory: DeviceMemory, offsets: _Offsets, temp: Address, n_streams: int
    ) -> None:
        """Enqueue one format's streams."""

        def column(offset: int) -> Address:
            return offset_by(memory, offset + 8 * group.first)

        actual, _, statuses = Receipt.offsets(n_streams)
        batch = nvcomp.Batch(
            sources=column(offsets.sources),
            source_nbytes=column(offsets.source_nbytes),
            capacity=column(offsets.target_nbytes),
            actual=column(offsets.receipt + actual),
            outputs=column(offsets.targets),
            statuses=offset_by(memory, offsets.receipt + statuses + 4 * group.first),
        )
        self._api.nvcomp.decompress(
            group.inflate.format,
            batch,
            n_chunks=group.n,
            temp=temp,
            temp_nbytes=group.temp_nbytes,
            stream=self._lane.work.handle,
        )

    def _check(self, group: _Group, messages: Address, receipt: Address, n_streams: int) -> None:
        """Enqueue the checksums of what has come out, if they were stored."""
        if group.inflate.checksum is None:
            return
        _, sums, _ = Receipt.offsets(n_streams)
        checksum(
            self._api,
            self._lane.work,
            group.inflate.checksum,
            table=messages,
            n=group.n,
            max_nbytes=group.max_nbytes,
            result=Address(receipt + sums + 8 * group.first),
        )
