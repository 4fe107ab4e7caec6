"""Tasks of one read by the host decoder, which fetch, decode and place chunks on threads.

A thread reads a part into a buffer of its own that stays in its cache, then decodes each chunk to its place in the
output. The compiled loops do all this for local files; Python does what they leave, and all where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.by_python import ChunkPlacer
from xarray_gpuzarr.decoders.host.chunk_cache import CachedRead, PlanChunks
from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.decoders.host.loop_call import Encoded, LoopCall, LoopOutput
from xarray_gpuzarr.decoders.host.schedule import Schedule
from xarray_gpuzarr.fetch.source import ByteSource, Pending, Request
from xarray_gpuzarr.fetch.store_errors import pieces_differ_error
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.faults import chunk_fault, vanished_shard
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process.host_memory import buffer, copy_bytes


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Task:
    """Work for one thread: requests, and what to do with their answers."""

    run: Callable[[Any], None]
    """Takes what `start` returned."""
    requests: Sequence[Request] = ()
    is_started: bool = True
    """Whether the requests are: local files are read where their bytes are decoded."""

    def start(self, source: ByteSource) -> Any:
        """Start the requests."""
        return source.start(self.requests) if self.is_started else None


@dataclass(eq=False)
class HostRead:
    """One read: what all its plans have in common."""

    array: HostArray
    target: Target
    out: Array
    source: ByteSource
    schedule: Schedule
    output: LoopOutput | None
    """Output for the compiled loops; None if there are none, or they cannot read the array."""

    @cached_property
    def placer(self) -> ChunkPlacer:
        """Decodes and places what the loops do not."""
        return ChunkPlacer(self.array, self.target, self.out)

    @cached_property
    def rule(self) -> CoalesceRule:
        """Which neighbours are read together."""
        rule = self.source.rule
        return replace(rule, max_nbytes=min(rule.max_nbytes, self.schedule.part_nbytes))


class CachedTasks:
    """The tasks of one read that makes use of chunks that were decoded before, and keeps some."""

    def __init__(self, read: HostRead, cached: CachedRead) -> None:
        self._read, self._cached = read, cached
        self._kept: list[tuple[PlanTasks, PlanChunks]] = []

    def tasks(self, plans: Iterator[ReadPlan]) -> Iterator[Task]:
        """Return the tasks of all plans."""
        for plan in plans:
            chunks = self._cached.look_up(plan)
            if chunks is None:
                yield from PlanTasks(self._read, plan).tasks()
            elif self._read.source.is_local and self._read.output is not None:  # whose rows the loops tell apart
                yield from self._of_plan(plan, chunks)
            else:
                found, others = chunks.split(plan)
                yield from self._of_plan(*found)
                yield from self._of_plan(*others)

    def put(self) -> None:
        """Keep the chunks that have been decoded for it."""
        for tasks, chunks in self._kept:
            self._cached.put(chunks, tasks.decoded())

    def _of_plan(self, plan: ReadPlan, chunks: PlanChunks) -> Iterator[Task]:
        if not plan.n_chunks:
            return
        tasks = PlanTasks(self._read, plan, chunks=chunks)
        if chunks.kept:
            self._kept.append((tasks, chunks))
        if chunks.found and len(chunks.found) == plan.n_stored:
            yield Task(tasks.place_found, is_started=False)
        else:
            yield from tasks.tasks()


class PlanTasks:
    """The chunks of one plan, and where they go; `call` is these for the compiled loops, if they know the array."""

    def __init__(
        self, read: HostRead, plan: ReadPlan, call: LoopCall | None = None, chunks: PlanChunks | None = None
    ) -> None:
        if call is None and read.output is not None and plan.n_chunks:
            call = LoopCall(read.output, plan, read.source, chunks)
        self.read, self.plan, self.call, self.chunks = read, plan, call, chunks
        self._done: list[int] = []
        """Rows that Python has decoded to memory that is kept."""

    def decoded(self) -> list[int]:
        """Return the rows whose chunks are kept, once all tasks have ended."""
        if self.chunks is None or self.call is None:
            return self._done
        return self.call.decoded(self.chunks.kept)

    def place_found(self, _: None) -> None:
        """Place a plan of chunks that were found decoded, and of those that are missing."""
        if self.call is not None:
            self.call.place(range(self.plan.n_chunks), self.read.schedule)
            return
        assert self.chunks is not None
        for row, chunk in self.chunks.found.items():
            self.read.placer.place_chunk(self.read.array.elements(chunk.memory), self.rows[row])

    @cached_property
    def rows(self) -> list[list[int]]:
        """Numbers of the pieces that each chunk gives, per axis."""
        rows: list[list[int]] = self.plan.all_row.tolist()
        return rows

    @cached_property
    def parts(self) -> list[int]:
        """Rows at which parts begin and end: what is read at once, and decoded by one thread."""
        parts: list[int] = self.plan.cut(self.read.rule).tolist()
        step = self.read.schedule.rows_a_part
        return [*(row for lo, hi in pairwise(parts) for row in range(lo, hi, step)), parts[-1]]

    def tasks(self, rows: Sequence[int] | None = None) -> Iterator[Task]:
        """Return the tasks that fill and decode this plan: a few objects each, or a few ranges of a shard.

        With `rows`, those for rows that the compiled loops have left.
        """
        if rows is not None:
            inner = [row for row in self.parts if rows[0] < row <= rows[-1]]
            yield from (self._part_task([*bounds]) for bounds in pairwise([rows[0], *inner, rows[-1] + 1]))
            return
        if self.plan.n_chunks > self.plan.n_stored:
            yield Task(self._fill_missing, is_started=False)
        array, source, rule = self.read.array, self.read.source, self.read.rule
        is_cut = source.cuts_objects and array.is_raw and array.chunk_nbytes > rule.max_raw_nbytes
        for lo, hi in pairwise(self._together()):
            bounds = self.parts[lo : hi + 1]
            task = self._part_task(bounds)
            if self.call is not None and self.call.files is not None:
                run = partial(self._run_local, self.call, range(bounds[0], bounds[-1]))
                yield Task(run, task.requests, is_started=False)
            else:
                yield from (is_cut and self._piece_tasks(bounds[0])) or (task,)

    def _run_local(self, call: LoopCall, rows: range, _: None) -> None:
        remaining = call.read(rows, self.read.schedule)
        for task in self.tasks(remaining) if remaining else ():
            task.run(task.start(self.read.source))

    def _fill_missing(self, _: None) -> None:
        """Write the fill value where missing chunks would go."""
        if self.call is not None:
            self.call.place(range(self.plan.n_stored, self.plan.n_chunks), self.read.schedule)
        else:
            for numbers in self.rows[self.plan.n_stored :]:
                self.read.placer.fill(numbers)

    def _part_task(self, bounds: list[int]) -> Task:
        """Return a task for consecutive parts, given the rows at which they begin and end."""
        plan = self.plan
        if plan.spec.index is None:
            bounds = [*range(bounds[0], bounds[-1] + 1)]

        def run(pending: Pending) -> None:
            data = pending(lambda nbytes: memoryview(buffer("staging", nbytes)))
            self._check_there(data, bounds[0])
            self.place(Encoded(plan, bounds, data))

        return Task(run, [request for lo, hi in pairwise(bounds) for request in plan.requests(lo, hi)])

    def _check_there(self, data: Sequence[memoryview | None], row: int) -> None:
        """Raise if the shard of a row has disappeared."""
        if self.plan.spec.index is not None and None in data:
            raise vanished_shard(self.plan.spec, self.plan.key_of(row))

    def _piece_tasks(self, row: int) -> list[Task]:
        """Return tasks that each bring a piece of a long raw chunk to the output; none if it needs scratch.

        Requests for pieces are under way beside each other. They are whole elements. The last piece of a chunk that is
        an object reaches to the object's end, to see that there is no more.
        """
        nbytes, dst = int(self.plan.nbytes[row]), self.read.placer.straight_to(self.rows[row])
        total, itemsize = self.read.array.chunk_nbytes, self.read.array.stored_dtype.itemsize
        if dst is None or nbytes not in (total, WHOLE_OBJECT):
            return []
        longest = max(1, self.read.rule.max_raw_nbytes // itemsize) * itemsize
        return [self._piece_task(row, first, dst[first : first + longest]) for first in range(0, total, longest)]

    def _piece_task(self, row: int, first: int, dst: memoryview) -> Task:
        plan, array = self.plan, self.read.array
        is_object = plan.spec.index is None
        to_end = is_object and first + len(dst) == array.chunk_nbytes
        byte_range = ByteRange(int(plan.offset[row]) + first, WHOLE_OBJECT if to_end else len(dst))

        def run(pending: Pending) -> None:
            (data,) = pending(lambda nbytes: memoryview(buffer("staging", nbytes)))
            self._check_there([data], row)
            if data is None:
                np.frombuffer(dst, array.dtype)[:] = array.fill[0]
            elif len(data) == len(dst):
                copy_bytes(data, dst)
            else:  # a read of the whole object says what is wrong with it
                raise pieces_differ_error(
                    plan.key_of(row), f"{len(data)} bytes at {first}, where {len(dst)} are expected"
                )

        return Task(run, [(plan.key_of(row), byte_range)])

    def _together(self) -> list[int]:
        """Cut the parts into those that one thread reads one after another, of one object."""
        rule, parts = self.read.rule, self.parts
        if rule.max_together == 1 or len(parts) <= 2 or self.plan.spec.index is None:
            return list(range(len(parts)))
        ends = np.add.reduceat(self.plan.nbytes, parts[:-1]).cumsum().tolist()
        which = self.plan.object.take(parts[:-1]).tolist()
        cuts, limit, most = [0], rule.max_nbytes, self.read.schedule.rows_a_part
        for part, end in enumerate(ends):
            is_full = part - cuts[-1] == rule.max_together or parts[part + 1] - parts[cuts[-1]] > most
            if part > cuts[-1] and (end > limit or is_full or which[part] != which[part - 1]):
                cuts.append(part)
                limit = ends[part - 1] + rule.max_nbytes
        return [*cuts, len(ends)]

    def place(self, chunks: Encoded) -> None:
        """Decode and place chunks."""
        row = chunks.rows.start
        remaining: Sequence[int] = chunks.rows
        try:
            if self.call is not None:
                self.call.locate(chunks)
                remaining = self.call.place(chunks.rows, self.read.schedule)
            for row in remaining:
                self._place_row(row, chunks[row])
        except FrameError as err:
            raise chunk_fault(self.plan, row, err) from err

    def _place_row(self, row: int, data: memoryview | None) -> None:
        kept = None if self.chunks is None or self.call is not None else self.chunks.kept.get(row)
        if data is None:
            self.read.placer.fill(self.rows[row])
        elif kept is None:
            self.read.placer.place(data, self.rows[row])
        else:
            self.read.placer.place_and_keep(data, self.rows[row], kept[1].memory)
            self._done.append(row)
