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
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.resources import Lane, Slot
from xarray_gpuzarr.decoders.cuda.batches import aligned
from xarray_gpuzarr.decoders.cuda.placing import Placing
from xarray_gpuzarr.decoders.cuda.routes import Inflate
from xarray_gpuzarr.decoders.cuda.tables import Tables, offset_by

Addresses = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunks of a batch, staged on the device. Columns have one row per stored chunk."""

    address: Addresses
    nbytes: Rows
    decoded: npt.NDArray[np.bool_]
    """Whether the host decoded the chunk before it crossed."""
    rows: Rows
    """shape (n, k), as `ReadPlan.row`."""
    missing: Rows
    """shape (m, k): chunks that take the fill value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What nvCOMP says of every chunk that it decoded, on its way to the host."""

    slot: Slot
    chunks: Rows
    """shape (n,): number of each chunk in its batch."""

    def columns(self) -> tuple[Rows, npt.NDArray[np.int32]]:
        """Return decoded lengths in bytes and statuses; only after the batch is done."""
        n = len(self.chunks)
        array = self.slot.array
        return array[: 8 * n].view(np.int64), array[8 * n : 12 * n].view(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What happens to the chunks of a batch. Numbers count its stored chunks."""

    source: Addresses
    """shape (n,): where the bytes that are decompressed, or placed, begin."""
    nbytes: Rows
    """shape (n,): their number."""
    moved: Rows
    """Numbers of the chunks that are first moved to an aligned place."""
    inflated: Rows
    """Numbers of the chunks that are decompressed."""
    apart: Rows
    """Numbers of those that are decompressed into scratch, not into the result."""
    placed: Rows
    """Numbers of the chunks that a kernel brings to the result."""
    result: Addresses
    """shape (n,): address in the result, where a chunk is decompressed straight into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scratch:
    """One allocation, cut up. All but `memory` are offsets in bytes."""

    memory: DeviceMemory
    moved: Rows
    """shape (len(work.moved),)"""
    apart: Rows
    """shape (len(work.apart),)"""
    temp: int
    temp_nbytes: int
    receipt: int


class BatchDecoder:
    """Decodes the batches of one read.

    Parameters
    ----------
    lane : Lane
    inflate : Inflate or None
        None if chunks are plain bytes.
    placing : Placing
    chunk_nbytes : int
        Bytes of a decoded chunk.
    """

    def __init__(self, lane: Lane, inflate: Inflate | None, placing: Placing, chunk_nbytes: int) -> None:
        self._lane = lane
        self._api = lane.api
        self._inflate = inflate
        self._placing = placing
        self._chunk_nbytes = chunk_nbytes

    def decode(self, chunks: Chunks) -> Receipt | None:
        """Enqueue a batch; return the receipt that will tell how it went, None if nothing is decompressed."""
        work = self._arrange(chunks)
        scratch = self._allocate(work)
        tables = Tables()
        moves = self._add_moves(tables, work, scratch)
        columns = self._add_batch(tables, work, scratch)
        places = self._placing.add(tables, chunks.rows[work.placed], work.source[work.placed])
        fills = self._placing.add_missing(tables, chunks.missing)
        memory = tables.send(self._lane)
        if len(work.moved):
            longest = int(work.nbytes[work.moved].max())
            table = offset_by(memory, moves)
            move(self._api, self._lane.work, table=table, n=len(work.moved), max_nbytes=longest)
        receipt = self._decompress(work, scratch, memory, columns) if len(work.inflated) else None
        with self._api.range("read::place"):
            self._placing.launch(memory, places)
            self._placing.launch(memory, fills)
        self._lane.free(memory)
        self._lane.free(scratch.memory)
        return receipt

    def _arrange(self, chunks: Chunks) -> _Work:
        """Decide what happens to each chunk."""
        source, nbytes = chunks.address.copy(), chunks.nbytes.copy()
        unit = np.full(len(source), self._placing.unit_nbytes, np.uint64)
        direct, result = self._placing.direct(chunks.rows)
        inflated = np.zeros(0, np.int64)
        if self._inflate is not None:
            inflated = np.flatnonzero(~chunks.decoded)
            source[inflated] += np.uint64(self._inflate.head_nbytes)
            nbytes[inflated] -= self._inflate.head_nbytes + self._inflate.tail_nbytes
            unit[inflated] = self._api.nvcomp.alignment(self._inflate.format).source
        straight = np.zeros(len(source), bool)
        straight[inflated] = direct[inflated]
        return _Work(
            source=source,
            nbytes=nbytes,
            moved=np.flatnonzero(source % unit),
            inflated=inflated,
            apart=inflated[~straight[inflated]],
            placed=np.flatnonzero(~straight),
            result=result,
        )

    def _allocate(self, work: _Work) -> _Scratch:
        """Take the scratch memory of a batch."""
        n_inflated = len(work.inflated)
        temp_nbytes = 0
        if self._inflate is not None and n_inflated:
            total = n_inflated * self._chunk_nbytes
            temp_nbytes = self._api.nvcomp.temp_nbytes(
                self._inflate.format, n_chunks=n_inflated, max_nbytes=self._chunk_nbytes, total_nbytes=total
            )
        moved = np.cumsum(np.r_[0, -(-work.nbytes[work.moved] // 16) * 16])
        apart = moved[-1] + np.arange(len(work.apart) + 1) * aligned(self._chunk_nbytes)
        temp = int(apart[-1])
        receipt = temp + aligned(temp_nbytes)
        memory = self._lane.allocate(receipt + 12 * n_inflated, self._lane.work)
        return _Scratch(
            memory=memory, moved=moved[:-1], apart=apart[:-1], temp=temp, temp_nbytes=temp_nbytes, receipt=receipt
        )

    def _add_moves(self, tables: Tables, work: _Work, scratch: _Scratch) -> int:
        """Add the table of `move`; from then on the moved chunks begin where they will have been moved to."""
        to = scratch.moved.astype(np.uint64) + np.uint64(scratch.memory.address)
        table = tables.add(np.concatenate([work.source[work.moved], to, work.nbytes[work.moved].astype(np.uint64)]))
        work.source[work.moved] = to
        return table

    def _add_batch(self, tables: Tables, work: _Work, scratch: _Scratch) -> tuple[int, int, int, int]:
        """Add nvCOMP's columns; from then on the decompressed chunks begin where they will lie decompressed."""
        work.result[work.apart] = scratch.apart.astype(np.uint64) + np.uint64(scratch.memory.address)
        sources = tables.add(work.source[work.inflated])
        source_nbytes = tables.add(work.nbytes[work.inflated])
        capacity = tables.add(np.full(len(work.inflated), self._chunk_nbytes, np.int64))
        outputs = tables.add(work.result[work.inflated])
        work.source[work.inflated] = work.result[work.inflated]
        return sources, source_nbytes, capacity, outputs

    def _decompress(
        self, work: _Work, scratch: _Scratch, memory: DeviceMemory, columns: tuple[int, int, int, int]
    ) -> Receipt:
        assert self._inflate is not None
        n_chunks = len(work.inflated)
        actual = offset_by(scratch.memory, scratch.receipt)
        sources, source_nbytes, capacity, outputs = (offset_by(memory, c) for c in columns)
        batch = nvcomp.Batch(
            sources=sources,
            source_nbytes=source_nbytes,
            capacity=capacity,
            actual=actual,
            outputs=outputs,
            statuses=Address(actual + 8 * n_chunks),
        )
        with self._api.range("read::decode"):
            self._api.nvcomp.decompress(
                self._inflate.format,
                batch,
                n_chunks=n_chunks,
                temp=offset_by(scratch.memory, scratch.temp),
                temp_nbytes=scratch.temp_nbytes,
                stream=self._lane.work.handle,
            )
        slot = self._lane.receipts.lend(12 * n_chunks)
        self._api.download(slot.array[: 12 * n_chunks], actual, self._lane.work)
        slot.give_back(self._lane.work)
        return Receipt(slot=slot, chunks=work.inflated)
