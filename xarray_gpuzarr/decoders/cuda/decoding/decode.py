"""A staged batch -> elements of the result, all enqueued on one stream: align, decompress, place, fill.

One allocation holds the scratch of the whole batch and one upload brings all its tables, so that the host's cost is
that of a few NumPy calls on columns, however many chunks there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.cuda.checksum import checksum
from xarray_gpuzarr.cuda.decompress import decompress
from xarray_gpuzarr.cuda.filters import Places as ElementPlaces
from xarray_gpuzarr.cuda.launch import move, rows_by_length
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.cuda.zstd import SPARE_FRAME
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.pieces import aligned
from xarray_gpuzarr.decoders.cuda.batches.tables import Tables, offset_by
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan, Chunks, Group, Rows, plan_batch, put
from xarray_gpuzarr.decoders.cuda.decoding.placing import Places, Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipts import Receipt
from xarray_gpuzarr.process.records import record

Addresses = npt.NDArray[np.uint64]

_NO_ADDRESSES = np.zeros(0, np.uint64)


@record
class _Scratch:
    """One allocation, cut up; the columns are addresses, as in `BatchPlan`."""

    memory: DeviceMemory
    moved: Addresses
    shifted: Addresses
    apart: Addresses
    shuffled: Addresses
    steps: list[Addresses]
    """Before each codec of elements; none where it reads what was staged."""
    temp: Address


@record
class _Offsets:
    """Where columns lie in the table, in bytes."""

    moves: int
    moved_nbytes: Rows
    """No offsets: the lengths of the moves, in ascending order."""
    groups: list[int]
    """Per group, four columns: addresses and lengths of the streams, addresses and lengths of what they give."""
    filters: int
    elements: list[tuple[int, int]]
    """Per codec of elements, two columns: addresses of encoded and of decoded chunks; then its words."""
    receipt: tuple[int, int, int, int, int]
    """Lengths, sums, statuses, flags and CRCs, as `Receipt` has them."""
    shadows: int
    """Two columns: addresses and lengths of decoded chunks whose CRC is asked for."""
    spare: int
    places: Places
    fills: Places


@record
class _Stations:
    """Where the bytes of each chunk lie at each turn; where a chunk skips a turn, they lie there already."""

    inner: Addresses
    """Decompressed."""
    outer: Addresses
    """Unshuffled."""
    plain: Addresses
    """Decoded."""


class BatchDecoder:
    """Decodes the batches of one read.

    Parameters
    ----------
    workspace : Workspace
    placing : Placing
    chain : Chain
    """

    def __init__(self, workspace: Workspace, placing: Placing, chain: Chain) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._placing = placing
        self._chain = chain

    def decode(self, chunks: Chunks, stream: Stream) -> tuple[Receipt | None, list[DeviceMemory]]:
        """Enqueue all that turns staged chunks into elements of the result.

        Returns
        -------
        receipt : Receipt or None
            Tells how it went, once `stream` has come to this point; None if nothing is decompressed.
        memories : list of DeviceMemory
            In use until then.
        """
        plan = plan_batch(chunks, self._placing, self._api.nvcomp)
        scratch = self._allocate(plan, chunks, stream)
        tables = Tables()
        offsets = self._fill_tables(tables, chunks, plan, scratch)
        memory = tables.send(self._workspace, stream)
        receipt = Receipt.lend(self._workspace, plan, chunks.shadows)
        self._move(plan, memory, offsets, stream)
        with self._workspace.stage("decode"):
            for group, columns in zip(plan.groups, offsets.groups, strict=True):
                self._decompress(group, offset_by(memory, columns), memory, offsets, scratch.temp, stream)
            self._unshuffle(chunks, offset_by(memory, offsets.filters), stream)
            self._undo_elements(len(plan.elements), memory, offsets, stream)
            self._sum_up(len(chunks.shadows), memory, offsets, stream)
        with self._workspace.stage("place"):
            self._placing.launch(memory, offsets.places, stream)
            self._placing.launch(memory, offsets.fills, stream)
        if receipt is not None:
            receipt.ask(self._api, offset_by(memory, offsets.receipt[0]), stream)
        return receipt, [memory, scratch.memory]

    def _allocate(self, plan: BatchPlan, chunks: Chunks, stream: Stream) -> _Scratch:
        """Take the scratch memory of a batch."""
        room = _Room()
        moved = room.take(len(plan.moved), plan.streams.source_nbytes[plan.moved])
        shifted = room.take(len(plan.shifted), chunks.nbytes[plan.shifted])
        apart = room.take(len(plan.apart), self._chain.chunk_nbytes)
        shuffled = room.take(len(plan.shuffled), self._chain.inner_nbytes)
        steps = [room.take(len(plan.elements), nbytes) for nbytes in self._chain.step_nbytes]
        memory = self._workspace.lend_scratch(room.nbytes + aligned(plan.temp_nbytes), stream)

        def addresses(offsets: Rows) -> Addresses:
            return (offsets + memory.address).view(np.uint64) if len(offsets) else _NO_ADDRESSES

        return _Scratch(
            memory=memory,
            moved=addresses(moved),
            shifted=addresses(shifted),
            apart=addresses(apart),
            shuffled=addresses(shuffled),
            steps=list(map(addresses, steps)),
            temp=offset_by(memory, room.nbytes),
        )

    def _fill_tables(self, tables: Tables, chunks: Chunks, plan: BatchPlan, scratch: _Scratch) -> _Offsets:
        """Add all columns."""
        streams, at = plan.streams, self._stations(chunks, plan, scratch)
        targets = streams.per_row(at.inner) + streams.target.view(np.uint64)
        moves, moved_nbytes = _add_moves(tables, chunks, plan, scratch, targets) if plan.n_moves else (0, NO_ROWS)
        begin = put(plan.begin, plan.moved, scratch.moved)
        columns = (begin, streams.source_nbytes, targets, streams.target_nbytes)
        return _Offsets(
            moves=moves,
            moved_nbytes=moved_nbytes,
            groups=[tables.add(*(column[group.rows] for column in columns)) for group in plan.groups],
            filters=tables.add(*_filter_columns(chunks, at.inner, at.outer)),
            elements=self._add_elements(tables, plan, at, scratch),
            receipt=Receipt.add(tables, plan.n_coded, len(plan.elements), len(chunks.shadows)),
            shadows=self._add_shadows(tables, at.plain, chunks.shadows.rows),
            spare=tables.add(SPARE_FRAME),
            places=self._placing.add(tables, chunks.rows[plan.placed], at.plain[plan.placed]),
            fills=self._placing.add_missing(tables, chunks.missing),
        )

    def _stations(self, chunks: Chunks, plan: BatchPlan, scratch: _Scratch) -> _Stations:
        """Follow chunks from their end to where they were staged."""
        staged, filtered = put(chunks.address, plan.shifted, scratch.shifted), chunks.filters.chunk
        plain = put(np.where(plan.straight, plan.result, staged), plan.apart, scratch.apart)
        outer = plain
        if len(plan.elements):
            encoded = staged[plan.elements] if self._chain.reads_staged else scratch.steps[0]
            outer = put(plain, plan.elements, encoded)
        inner = put(put(outer, filtered, staged[filtered]), plan.shuffled, scratch.shuffled)
        return _Stations(inner=inner, outer=outer, plain=plain)

    def _add_elements(self, tables: Tables, plan: BatchPlan, at: _Stations, scratch: _Scratch) -> list[tuple[int, int]]:
        """Add what the codecs of elements need; each writes where the next one reads."""
        stages = self._chain.elements if len(plan.elements) else ()
        stations = [at.outer[plan.elements], *scratch.steps[1:], at.plain[plan.elements]]
        return [
            (tables.add(*stations[number : number + 2]), tables.add(stage.filter.words))
            for number, stage in enumerate(stages)
        ]

    def _add_shadows(self, tables: Tables, plain: Addresses, rows: Rows) -> int:
        return tables.add(plain[rows], np.full(len(rows), self._chain.chunk_nbytes))

    def _sum_up(self, n: int, memory: DeviceMemory, offsets: _Offsets, stream: Stream) -> None:
        """Enqueue the CRCs of decoded chunks that the host has decoded as well: none that is too long for one."""
        if not n:
            return
        table, result = offset_by(memory, offsets.shadows), offset_by(memory, offsets.receipt[4])
        checksum(self._api, stream, "crc32", table=table, n=n, max_nbytes=self._chain.chunk_nbytes, result=result)

    def _move(self, plan: BatchPlan, memory: DeviceMemory, offsets: _Offsets, stream: Stream) -> None:
        table = offset_by(memory, offsets.moves)
        for rows in rows_by_length(offsets.moved_nbytes):
            longest = int(offsets.moved_nbytes[rows.stop - 1])
            move(self._api, stream, table=table, n=plan.n_moves, max_nbytes=longest, rows=rows)

    def _decompress(
        self, group: Group, table: Address, memory: DeviceMemory, offsets: _Offsets, temp: Address, stream: Stream
    ) -> None:
        """Enqueue one format's streams, and the checksums of what comes out if they were stored."""
        lengths, checksums, codes, *_ = offsets.receipt
        actual = offset_by(memory, lengths + 8 * group.first)
        sums = offset_by(memory, checksums + 8 * group.first)
        statuses = offset_by(memory, codes + 4 * group.first)
        if group.format is None:
            blosclz(self._api, stream, table=table, n=group.n, actual=actual, status=statuses)
            return
        decompress(
            self._api,
            stream,
            group.format,
            group.inflate.checksum,
            table=table,
            n=group.n,
            answer=(actual, sums, statuses),
            spare=offset_by(memory, offsets.spare),
            temp=temp,
            temp_nbytes=group.temp_nbytes,
            max_nbytes=group.max_nbytes,
        )

    def _unshuffle(self, chunks: Chunks, table: Address, stream: Stream) -> None:
        filters = chunks.filters
        if len(filters):
            longest = int(filters.nbytes.max())
            unshuffle(self._api, stream, table=table, n=len(filters), max_nbytes=longest)

    def _undo_elements(self, n: int, memory: DeviceMemory, offsets: _Offsets, stream: Stream) -> None:
        for stage, (table, words) in zip(self._chain.elements, offsets.elements, strict=False):
            places = ElementPlaces(
                table=offset_by(memory, table),
                n=n,
                n_elements=stage.n_elements,
                flags=offset_by(memory, offsets.receipt[3]),
                words=offset_by(memory, words),
            )
            stage.filter.launch(self._api, stream, places)


def _add_moves(
    tables: Tables, chunks: Chunks, plan: BatchPlan, scratch: _Scratch, targets: Addresses
) -> tuple[int, Rows]:
    """Add the columns that `move` wants; return where they begin, and the lengths, in ascending order."""
    streams = plan.streams
    origins = (plan.begin[plan.moved], chunks.address[plan.shifted], plan.begin[plan.raw])
    places = (scratch.moved, scratch.shifted, targets[plan.raw])
    lengths = (streams.source_nbytes[plan.moved], chunks.nbytes[plan.shifted], streams.source_nbytes[plan.raw])
    nbytes = np.concatenate(lengths)
    order = np.argsort(nbytes, kind="stable")
    addresses = (np.concatenate(column, dtype=np.uint64)[order] for column in (origins, places))
    return tables.add(*addresses, nbytes[order]), nbytes[order]


class _Room:
    """Scratch memory while it is shared out."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, n: int, nbytes: Rows | int) -> Rows:
        """Set `n` runs of so many bytes aside, each at a multiple of 16; return their offsets."""
        if not n:
            return NO_ROWS
        room = np.broadcast_to(-(-nbytes // 16) * 16, n)
        ends: Rows = room.cumsum() + self.nbytes
        self.nbytes = int(ends[-1])
        starts: Rows = ends - room
        return starts


def _filter_columns(chunks: Chunks, inner: Addresses, outer: Addresses) -> tuple[npt.NDArray[Any], ...]:
    """Return the columns of the table that `unshuffle` wants."""
    filters = chunks.filters
    if not len(filters):
        return ()
    start = filters.start.view(np.uint64)
    source, target = inner[filters.chunk] + start, outer[filters.chunk] + start
    return source, target, filters.nbytes, filters.typesize, filters.filter
