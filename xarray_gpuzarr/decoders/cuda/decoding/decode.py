"""A staged batch -> elements of the result, all enqueued on one stream: align, decompress, place, fill.

One allocation holds the scratch of the whole batch and one upload brings all its tables, so that the host's cost is
that of a few NumPy calls on columns, however many chunks there are.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from xarray_gpuzarr.cuda import nvcomp
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.cuda.checksum import checksum
from xarray_gpuzarr.cuda.filters import FilterChunks
from xarray_gpuzarr.cuda.launch import SPARE_FRAME, check_zstd, move, rows_by_length
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import aligned
from xarray_gpuzarr.decoders.cuda.batches.streams import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import (
    BatchPlan,
    Receipt,
    Staged,
    plan_batch,
    put,
    receipt_nbytes,
    streams_nbytes,
)
from xarray_gpuzarr.decoders.cuda.decoding.placing import Addresses, Places, Placing, Tables
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record


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
    receipt: int
    """See `Receipt`."""
    shadows: int
    """Two columns: addresses and lengths of decoded chunks whose CRC is asked for."""
    spare: int
    places: Places
    fills: Places


class BatchDecoder:
    """Decodes the batches of one read."""

    def __init__(self, workspace: Workspace, placing: Placing, chain: Chain) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._placing = placing
        self._chain = chain

    def decode(self, staged: Staged, rows: Rows, stream: Stream) -> tuple[Receipt | None, list[DeviceMemory]]:
        """Enqueue all that turns staged chunks into elements of the result.

        `rows`, as `ReadPlan.row`, are of staged chunks, then of missing ones. `stream` waits for the `copy` stream,
        which brings the tables behind the chunks: on another stream they would stand behind the next chunks.

        Returns a receipt that tells how it went, once `stream` has come to this point, or None if there is nothing to
        tell, and the memory that is in use until then.
        """
        chain, api, n = self._chain, self._api, len(staged.address)
        plan = plan_batch(staged, rows[:n], self._placing, api.nvcomp, has_elements=bool(chain.elements))
        scratch = self._allocate(plan, staged, stream)
        tables = Tables()
        offsets = self._fill_tables(tables, staged, plan, scratch, rows)
        memory = tables.send(self._workspace)
        self._workspace.order(self._workspace.copy, [stream])
        table = memory.address
        answer = Address(table + offsets.receipt)
        flags = Address(answer + streams_nbytes(plan.n_coded))
        for run in rows_by_length(offsets.moved_nbytes) if len(offsets.moved_nbytes) else ():
            n_moves, longest = len(offsets.moved_nbytes), int(offsets.moved_nbytes[run.stop - 1])
            move(api, stream, table=Address(table + offsets.moves), n=n_moves, max_nbytes=longest, rows=run)
        with api.range("read::decode"), counters.stage("decode"):
            self._decompress(plan, scratch, table, offsets, stream)
            if filters := len(staged.filters):
                longest = int(staged.filters.nbytes.max())
                unshuffle(api, stream, table=Address(table + offsets.filters), n=filters, max_nbytes=longest)
            for stage, (columns, words) in zip(chain.elements, offsets.elements, strict=False):
                places = FilterChunks(
                    table=Address(table + columns),
                    n=len(plan.elements),
                    n_elements=stage.n_elements,
                    flags=flags,
                    words=Address(table + words),
                )
                stage.filter.launch(api, stream, places)
            if shadows := len(staged.shadows):
                columns, crcs = Address(table + offsets.shadows), Address(flags + 8 * len(plan.elements))
                checksum(api, stream, "crc32", table=columns, n=shadows, max_nbytes=chain.chunk_nbytes, result=crcs)
        with api.range("read::place"), counters.stage("place"):
            self._placing.launch(table, offsets.places, stream)
            self._placing.launch(table, offsets.fills, stream)
        return Receipt.ask(self._workspace, plan, staged.shadows, answer, stream), [memory, scratch.memory]

    def _allocate(self, plan: BatchPlan, staged: Staged, stream: Stream) -> _Scratch:
        """Take the scratch memory of a batch, and cut it up; each part begins at a multiple of 16."""
        parts = [
            plan.streams.source_nbytes[plan.moved],
            staged.nbytes[plan.shifted],
            np.full(len(plan.apart), self._chain.chunk_nbytes),
            np.full(len(plan.shuffled), self._chain.inner_nbytes),
            *[np.full(len(plan.elements), nbytes) for nbytes in self._chain.step_nbytes],
        ]
        room = -(-np.concatenate(parts) // 16) * 16
        ends, nbytes = room.cumsum(), int(room.sum())
        temp_nbytes = max([group.temp_nbytes for group in plan.groups], default=0)  # formats use it one after the other
        memory = self._workspace.scratch.lend(nbytes + aligned(temp_nbytes), stream)
        starts = (ends - room + memory.address).view(np.uint64)
        lasts = accumulate([len(part) for part in parts])
        moved, shifted, apart, shuffled, *steps = [
            starts[last - len(part) : last] for part, last in zip(parts, lasts, strict=True)
        ]
        return _Scratch(
            memory=memory,
            moved=moved,
            shifted=shifted,
            apart=apart,
            shuffled=shuffled,
            steps=steps,
            temp=Address(memory.address + nbytes),
        )

    def _fill_tables(self, tables: Tables, staged: Staged, plan: BatchPlan, scratch: _Scratch, rows: Rows) -> _Offsets:
        """Add all columns: chunks are followed from their end to where they were staged."""
        n, streams, filtered = len(staged.address), plan.streams, staged.filters.chunk
        # Where the bytes of each chunk lie staged, decoded, unshuffled, and decompressed: where it skips a turn, they
        # lie there already.
        first = put(staged.address, plan.shifted, scratch.shifted)
        outer = plain = put(np.where(plan.straight, plan.result, first), plan.apart, scratch.apart)
        if len(plan.elements):
            outer = put(plain, plan.elements, first[plan.elements] if self._chain.reads_staged else scratch.steps[0])
        inner = put(put(outer, filtered, first[filtered]), plan.shuffled, scratch.shuffled)
        targets = streams.per_row(inner) + streams.target.view(np.uint64)
        moves, moved_nbytes = 0, NO_ROWS
        if len(plan.moved) or len(plan.shifted) or len(plan.raw):
            moves, moved_nbytes = _add_moves(tables, staged, plan, scratch, targets)
        begin = put(plan.begin, plan.moved, scratch.moved)
        columns = (begin, streams.source_nbytes, targets, streams.target_nbytes)
        filters, elements = 0, list[tuple[int, int]]()
        if len(staged.filters):
            blocks, start = staged.filters, staged.filters.start.view(np.uint64)
            source, target = inner[filtered] + start, outer[filtered] + start
            filters = tables.add(source, target, blocks.nbytes, blocks.typesize, blocks.filter)
        if len(plan.elements):  # each writes where the next one reads
            stations = [outer[plan.elements], *scratch.steps[1:], plain[plan.elements]]
            for number, stage in enumerate(self._chain.elements):
                elements.append((tables.add(*stations[number : number + 2]), tables.add(stage.filter.words)))
        chosen = staged.shadows.chunk
        return _Offsets(
            moves=moves,
            moved_nbytes=moved_nbytes,
            groups=[
                tables.add(*[column[group.first : group.first + group.n] for column in columns])
                for group in plan.groups
            ],
            filters=filters,
            elements=elements,
            receipt=tables.add(np.zeros(receipt_nbytes(plan, staged.shadows) // 8, np.uint64)),
            shadows=tables.add(plain[chosen], np.full(len(chosen), self._chain.chunk_nbytes)),
            spare=tables.add(SPARE_FRAME),
            places=self._placing.add(tables, rows[plan.placed], plain[plan.placed]),
            fills=self._placing.add(tables, np.concatenate([rows[:n][staged.address == 0], rows[n:]])),
        )

    def _decompress(
        self, plan: BatchPlan, scratch: _Scratch, table: Address, offsets: _Offsets, stream: Stream
    ) -> None:
        """Enqueue the streams, format by format, and the checksums of what comes out if they were stored."""
        api, answer, temp = self._api, table + offsets.receipt, scratch.temp
        for group, columns in zip(plan.groups, offsets.groups, strict=True):
            n, fmt = group.n, group.format
            sources, source_nbytes, outputs, capacity = [Address(table + columns + 8 * n * i) for i in range(4)]
            actual = Address(answer + 8 * group.first)
            sums = Address(actual + 8 * plan.n_coded)
            statuses = Address(answer + 16 * plan.n_coded + 4 * group.first)
            if fmt is None:
                blosclz(api, stream, table=sources, n=n, actual=actual, status=statuses)
                continue
            if fmt == "zstd":
                check_zstd(api, stream, table=sources, n=n, spare=Address(table + offsets.spare), refused=sums)
            batch = nvcomp.Batch(
                sources=sources,
                source_nbytes=source_nbytes,
                capacity=capacity,
                actual=actual,
                outputs=outputs,
                statuses=statuses,
            )
            handle, temp_nbytes = stream.handle, group.temp_nbytes
            api.nvcomp.decompress(fmt, batch, n_chunks=n, temp=temp, temp_nbytes=temp_nbytes, stream=handle)
            if (kind := group.inflate.checksum) is not None:
                checksum(api, stream, kind, table=outputs, n=n, max_nbytes=group.max_nbytes, result=sums)


def _add_moves(
    tables: Tables, staged: Staged, plan: BatchPlan, scratch: _Scratch, targets: Addresses
) -> tuple[int, Rows]:
    """Add the columns that `move` wants; return where they begin, and the lengths, in ascending order."""
    streams = plan.streams
    origins = (plan.begin[plan.moved], staged.address[plan.shifted], plan.begin[plan.raw])
    places = (scratch.moved, scratch.shifted, targets[plan.raw])
    lengths = (streams.source_nbytes[plan.moved], staged.nbytes[plan.shifted], streams.source_nbytes[plan.raw])
    nbytes = np.concatenate(lengths)
    order = np.argsort(nbytes, kind="stable")
    addresses = [np.concatenate(column)[order] for column in (origins, places)]
    return tables.add(*addresses, nbytes[order]), nbytes[order]
