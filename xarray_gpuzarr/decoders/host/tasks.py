"""Tasks of one read by the host decoder, which fetch, decode and place chunks on threads.

`PlanTasks` divides a plan into tasks. A thread reads a part into a buffer of its own that stays in its CPU cache, then
decodes each chunk to its place in the output. For local files, the compiled loops do all of this. Python treats the
rows that the loops leave, and all rows if there are no loops for the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.by_python import ChunkPlacer
from xarray_gpuzarr.decoders.host.cached_read import PlanChunks
from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.decoders.host.loop_table import EncodedChunks, LoopTable
from xarray_gpuzarr.decoders.host.schedule import Schedule
from xarray_gpuzarr.fetch.source import ByteSource, Pending, Request
from xarray_gpuzarr.fetch.store_errors import pieces_differ_error
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.faults import chunk_fault, vanished_shard
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.host_memory import buffer, copy_bytes


@dataclass(slots=True, eq=False)  # a frozen dataclass takes three times as long to make
class Task:
    """Work for one thread: requests, and a function that treats their answers."""

    run: Callable[[Any], None]
    """Carries out the task. It takes the value that `start` returned."""
    requests: Sequence[Request] = ()
    """Byte ranges of the source that the task reads."""
    starts_requests: bool = True
    """Whether `start` starts the requests. It does not if `run` reads local files itself, where requests only serve
    reading ahead, or if there are none."""

    def start(self, source: ByteSource) -> Any:
        """Start the requests and return the pending answers; None unless `starts_requests`."""
        return source.start(self.requests) if self.starts_requests else None


@dataclass(eq=False)
class HostRead:
    """One read: everything that its plans have in common."""

    array: HostArray
    target: Target
    out: Array
    source: ByteSource
    schedule: Schedule
    loop_output: LoopOutput | None
    """The output for the compiled loops; None without loops, or if they do not know a codec of the array."""

    @cached_property
    def placer(self) -> ChunkPlacer:
        """Decoder, in Python, of the chunks that the loops leave."""
        return ChunkPlacer(self.array, self.target, self.out)

    @cached_property
    def rule(self) -> CoalesceRule:
        """Rule by which neighbouring chunks are read together, with parts no longer than those of the schedule."""
        rule = self.source.rule
        return replace(rule, max_nbytes=min(rule.max_nbytes, self.schedule.part_nbytes))


class PlanTasks:
    """The tasks of one plan.

    Parameters
    ----------
    read : HostRead
        The read that the plan belongs to.
    plan : ReadPlan
        Chunks to read, one row each.
    table : LoopTable or None
        The plan in the form that the compiled loops take; None makes one if the loops know the array's codecs.
    chunks : PlanChunks or None
        Cached chunks of the plan, and those that are to be kept; None if there are neither.
    """

    def __init__(
        self, read: HostRead, plan: ReadPlan, table: LoopTable | None = None, chunks: PlanChunks | None = None
    ) -> None:
        if table is None and read.loop_output is not None and plan.n_chunks:
            table = LoopTable(read.loop_output, plan, read.source, chunks)
        self.read, self.plan, self.table, self.chunks = read, plan, table, chunks
        self._decoded_rows: list[int] = []
        """Rows that Python has decoded into the memory of chunks that are to be kept."""

    def decoded_rows(self) -> list[int]:
        """Return the rows that were decoded and are to be kept. All tasks must have ended."""
        if self.chunks is None or self.table is None:
            return self._decoded_rows
        return self.table.placed_rows(self.chunks.to_keep)

    def place_cached(self, _: None) -> None:
        """Place all chunks of a plan from which nothing has to be fetched: each is either cached or missing."""
        if self.table is not None:
            self.table.place(range(self.plan.n_chunks), self.read.schedule)
            return
        assert self.chunks is not None
        # Without the loops, the plan comes from `PlanChunks.split`, and has no missing chunks.
        for row, chunk in self.chunks.cached.items():
            self.read.placer.place_chunk(self.read.array.elements(chunk.memory), self.piece_numbers[row])

    @cached_property
    def piece_numbers(self) -> list[list[int]]:
        """`ReadPlan.all_piece_numbers` as lists, one for each chunk."""
        rows: list[list[int]] = self.plan.all_piece_numbers.tolist()
        return rows

    @cached_property
    def parts(self) -> list[int]:
        """Bounds of the parts: rows ``[parts[i], parts[i + 1])`` are read together and decoded by one thread."""
        step = self.read.schedule.rows_a_part
        bounds: list[int] = self.plan.cut(self.read.rule).tolist()
        parts: list[int] = []
        for start, stop in pairwise(bounds):
            parts += range(start, stop, step)
        return [*parts, bounds[-1]]

    def tasks(self, rows: Sequence[int] | None = None) -> Iterator[Task]:
        """Yield the tasks of the plan: each reads a few objects, or a few ranges of a shard.

        If `rows` are given, these are rows of local files that the compiled loops have left. The tasks then fetch all
        rows from the first to the last of them through the source. Rows in between, which are placed already, are
        fetched and placed once more, so that no request is cut around them.
        """
        if rows is not None:
            inner_bounds = [bound for bound in self.parts if rows[0] < bound <= rows[-1]]
            for start, stop in pairwise([rows[0], *inner_bounds, rows[-1] + 1]):
                yield self._part_task([start, stop])
            return
        if self.plan.n_chunks > self.plan.n_stored:
            yield Task(self._fill_missing, starts_requests=False)
        array, source = self.read.array, self.read.source
        # A raw chunk that is longer than a request is read in pieces, by several requests at the same time.
        is_cut = source.cuts_objects and array.is_raw and array.chunk_nbytes > self.read.rule.max_raw_nbytes
        for first, end in pairwise(self._group_parts()):
            bounds = self.parts[first : end + 1]
            task = self._part_task(bounds)
            if self.table is not None and self.table.files is not None:
                run = partial(self._run_local, self.table, range(bounds[0], bounds[-1]))
                yield Task(run, task.requests, starts_requests=False)
                continue
            piece_tasks = self._piece_tasks(bounds[0]) if is_cut else []
            if piece_tasks:
                # The chunk is alone in its group, since it is longer than `max_raw_nbytes`, and so than `max_nbytes`.
                assert bounds[-1] == bounds[0] + 1
                yield from piece_tasks
            else:
                yield task

    def _run_local(self, table: LoopTable, rows: range, _: None) -> None:
        """Let the loops read, decode and place rows of local files, and then run tasks for those left."""
        remaining = table.read(rows, self.read.schedule)
        if not remaining:
            return
        for task in self.tasks(remaining):
            task.run(task.start(self.read.source))

    def _fill_missing(self, _: None) -> None:
        """Write the fill value to the boxes of missing chunks."""
        if self.table is not None:
            self.table.place(range(self.plan.n_stored, self.plan.n_chunks), self.read.schedule)
        else:
            for numbers in self.piece_numbers[self.plan.n_stored :]:
                self.read.placer.fill(numbers)

    def _part_task(self, bounds: list[int]) -> Task:
        """Return a task that reads, decodes and places consecutive parts: rows ``[bounds[i], bounds[i + 1])`` each."""
        plan = self.plan
        if plan.spec.index is None:
            # Each unsharded chunk is an answer of its own, so `EncodedChunks` needs bounds around each row.
            bounds = [*range(bounds[0], bounds[-1] + 1)]

        def run(pending: Pending) -> None:
            data = pending(lambda nbytes: memoryview(buffer("staging", nbytes)))
            self._check_existence(data, bounds[0])
            self.place(EncodedChunks(plan, bounds, data))

        return Task(run, [request for start, stop in pairwise(bounds) for request in plan.requests(start, stop)])

    def _check_existence(self, data: Sequence[memoryview | None], row: int) -> None:
        """Raise `StoreReadError` if the shard of a row has disappeared, so that `data` has None in it."""
        if self.plan.spec.index is not None and None in data:
            raise vanished_shard(self.plan.spec, self.plan.key_of(row))

    def _piece_tasks(self, row: int) -> list[Task]:
        """Return tasks that each request a piece of a long raw chunk and copy it to the output.

        A piece consists of whole elements. The list is empty if the chunk is not contiguous in the output, or has the
        wrong length in the store. The task of its part then reads it as a whole, and raises an error if its length is
        wrong.
        """
        nbytes = int(self.plan.nbytes[row])
        dst = self.read.placer.contiguous_box(self.piece_numbers[row])
        total = self.read.array.chunk_nbytes
        itemsize = self.read.array.stored_dtype.itemsize
        if dst is None or nbytes not in (total, WHOLE_OBJECT):
            return []
        longest = max(1, self.read.rule.max_raw_nbytes // itemsize) * itemsize
        return [self._piece_task(row, start, dst[start : start + longest]) for start in range(0, total, longest)]

    def _piece_task(self, row: int, start: int, dst: memoryview) -> Task:
        """Return a task that copies ``len(dst)`` bytes of a raw chunk, from byte `start` on, to `dst`."""
        plan, array = self.plan, self.read.array
        # The last piece of an unsharded chunk is requested to the end of the object, which must not be longer.
        to_end = plan.spec.index is None and start + len(dst) == array.chunk_nbytes
        byte_range = ByteRange(int(plan.offset[row]) + start, WHOLE_OBJECT if to_end else len(dst))

        def run(pending: Pending) -> None:
            (data,) = pending(lambda nbytes: memoryview(buffer("staging", nbytes)))
            self._check_existence([data], row)
            if data is None:  # an unsharded chunk that does not exist
                np.frombuffer(dst, array.dtype)[:] = array.fill[0]
            elif len(data) == len(dst):
                copy_bytes(data, dst)
            else:  # `read` repeats the read with whole objects, which raises an error that names the chunk
                raise pieces_differ_error(
                    plan.key_of(row), f"{len(data)} bytes at {start}, where {len(dst)} are expected"
                )

        return Task(run, [(plan.key_of(row), byte_range)])

    def _group_parts(self) -> list[int]:
        """Return bounds of groups of parts: group ``i`` has the parts ``[bounds[i], bounds[i + 1])``.

        All parts of a group are of one object. One task reads them, one after another.
        """
        rule, parts = self.read.rule, self.parts
        if rule.max_together == 1 or len(parts) <= 2 or self.plan.spec.index is None:
            return list(range(len(parts)))  # each part is a group
        # Encoded bytes, without gaps, from the start of the plan to the end of each part.
        ends = np.add.reduceat(self.plan.nbytes, parts[:-1]).cumsum().tolist()
        objects = self.plan.object.take(parts[:-1]).tolist()
        most_rows = self.read.schedule.rows_a_part
        bounds = [0]
        nbytes_before = 0  # encoded bytes before the current group
        for part in range(1, len(ends)):
            start = bounds[-1]
            is_full = part - start == rule.max_together
            has_too_many_rows = parts[part + 1] - parts[start] > most_rows
            is_too_long = ends[part] - nbytes_before > rule.max_nbytes
            is_other_object = objects[part] != objects[part - 1]
            if is_full or has_too_many_rows or is_too_long or is_other_object:  # this part begins a new group
                bounds.append(part)
                nbytes_before = ends[part - 1]
        return [*bounds, len(ends)]

    def place(self, chunks: EncodedChunks) -> None:
        """Decode and place encoded chunks, by the loops as far as they can. Raises the errors of `chunk_fault`."""
        remaining: Sequence[int] = chunks.rows
        if self.table is not None:
            self.table.set_encoded(chunks)
            remaining = self.table.place(chunks.rows, self.read.schedule)
        for row in remaining:
            try:
                self._place_row(row, chunks[row])
            except FrameError as err:
                raise chunk_fault(self.plan, row, err) from err

    def _place_row(self, row: int, data: memoryview | None) -> None:
        """Decode and place a chunk in Python, or write the fill value if it does not exist. Raises `FrameError`."""
        memory = self._memory_to_keep(row)
        if data is None:
            self.read.placer.fill(self.piece_numbers[row])
        elif memory is None:
            self.read.placer.place(data, self.piece_numbers[row])
        else:
            self.read.placer.place_and_keep(data, self.piece_numbers[row], memory)
            self._decoded_rows.append(row)

    def _memory_to_keep(self, row: int) -> Array | None:
        """Return the memory that Python decodes a chunk into if it is to be kept; None if Python does not keep it.

        If there are loops, only chunks that they have decoded are kept, see `decoded_rows`.
        """
        if self.chunks is None or self.table is not None or row not in self.chunks.to_keep:
            return None
        _, cached = self.chunks.to_keep[row]
        return cached.memory
