"""What the host decoder does with one plan: tasks that fetch, decode and place its chunks.

A thread reads a part into a buffer of its own that stays in its cache, then decodes each chunk to its place in the
output. Boxes of the output have a module of their own, `boxes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from xarray_gpuzarr.decoders.faults import chunk_fault, vanished_shard
from xarray_gpuzarr.decoders.host.encoded import Encoded, Objects, Ranges
from xarray_gpuzarr.decoders.host.job import Job, Task, Workspace
from xarray_gpuzarr.decoders.host.local_files import Files, local_files
from xarray_gpuzarr.decoders.host.native_rows import Boxes, NativeRows, Points
from xarray_gpuzarr.decoders.host.placing import cast_array
from xarray_gpuzarr.fetch import ByteSource, Pending, Request
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.read_plan import PointTarget, ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew


def _unstarted(_source: ByteSource, _requests: Sequence[Request]) -> None:
    """Start nothing: local files are read where their bytes are decoded."""


class Block:
    """How the encoded chunks of one plan are reached; subclasses say where they go.

    Rows of chunks that are not stored follow those of the plan.
    """

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        self.job = job
        self.plan = plan
        self.n_stored, self.n_rows = plan.n_stored, plan.n_chunks
        self.native: NativeRows | None = None
        """The chunks as the compiled loops take them."""
        self.files: Files | None = None
        """Where these loops read them."""

    @cached_property
    def rows(self) -> list[list[int]]:
        """Numbers of the pieces that each chunk gives, per axis."""
        rows: list[list[int]] = self.plan.all_row.tolist()
        return rows

    @cached_property
    def parts(self) -> list[int]:
        """Rows at which parts begin and end: what is read at once, and decoded by one thread."""
        parts: list[int] = self.plan.cut(self.job.rule).tolist()
        return [*(row for lo, hi in pairwise(parts) for row in range(lo, hi, self.job.rows_a_part)), parts[-1]]

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        job, n = self.job, self.n_rows
        if job.native is not None and n:
            self.native = NativeRows(job.native, self.given(), self.plan)
            if job.source.is_local and self.n_stored:
                self.files = local_files(self.plan, job.source)
        step = job.rows_a_call
        if self.files is not None and step is not None and not job.array.streams:
            yield from [self._local_task(range(at, min(at + step, n))) for at in range(0, n, step)]
            return
        if n > self.n_stored:
            yield Task(lambda _workspace, _pending: self.fill_missing(), start=_unstarted)
        yield from self.read_tasks()

    def read_tasks(self) -> Iterator[Task]:
        """Return tasks that take a few objects each, or a few ranges of a shard."""
        for lo, hi in pairwise(self._together()):
            bounds = self.parts[lo : hi + 1]
            task = self._part_task(bounds)
            if self.files is not None:
                task = self._local_task(range(bounds[0], bounds[-1]), task.requests)
            yield task

    def given(self) -> Boxes | Points:
        """Return what chunks give, as the compiled loops take it."""
        raise NotImplementedError

    def fill_missing(self) -> None:
        """Write the fill value where missing chunks would go."""
        if self.native is not None:
            self._place(range(self.n_stored, self.n_rows))
        else:
            for numbers in self.rows[self.n_stored :]:
                self.fill(numbers)

    def _local_task(self, rows: range, requests: Sequence[Request] = ()) -> Task:
        return Task(lambda workspace, _pending: self._read_local(workspace, rows), requests, _unstarted)

    def _read_local(self, workspace: Workspace, rows: range) -> None:
        """Let the compiled loops read, decode and place what they can; what they leave is read as ever."""
        job = self.job
        assert self.native is not None
        assert self.files is not None
        with crew.taking(job.most_threads) as n_threads:
            found = self.native.read(rows, self.files, n_threads)
        counters.add(read_nbytes=found.n_read)
        left = found.left
        if not left:
            return
        inner = [row for row in self.parts if left[0] < row <= left[-1]]
        tasks = [self._part_task([*bounds]) for bounds in pairwise([left[0], *inner, left[-1] + 1])]
        if job.rows_a_call is not None:
            job.left += tasks
            return
        for task in tasks:
            task.run(workspace, task.start(job.source, task.requests))

    def _part_task(self, bounds: list[int]) -> Task:
        """Return a task for consecutive parts, given the rows at which they begin and end."""
        plan = self.plan

        def run(workspace: Workspace, pending: Pending) -> None:
            found = pending(workspace.staging)
            if plan.spec.index is None:
                self.place(workspace, Objects(bounds[0], found))
                return
            data = [part for part in found if part is not None]
            if len(data) < len(found):
                self.check_absent(bounds[0])
            self.place(workspace, Ranges(data, bounds, plan.offset, plan.nbytes))

        return Task(run, [request for lo, hi in pairwise(bounds) for request in plan.requests(lo, hi)])

    def _together(self) -> list[int]:
        """Cut the parts into those that one thread reads one after another, of one object."""
        rule, parts = self.job.rule, self.parts
        if rule.max_together == 1 or len(parts) <= 2 or self.plan.spec.index is None:
            return list(range(len(parts)))
        ends = np.add.reduceat(self.plan.nbytes, parts[:-1]).cumsum().tolist()
        which = self.plan.object.take(parts[:-1]).tolist()
        cuts, limit, most = [0], rule.max_nbytes, self.job.rows_a_part
        for part, end in enumerate(ends):
            is_full = part - cuts[-1] == rule.max_together or parts[part + 1] - parts[cuts[-1]] > most
            if part > cuts[-1] and (end > limit or is_full or which[part] != which[part - 1]):
                cuts.append(part)
                limit = ends[part - 1] + rule.max_nbytes
        return [*cuts, len(ends)]

    def check_absent(self, row: int) -> None:
        """Raise if the object of a row may not be absent."""
        if self.plan.spec.index is not None:
            raise vanished_shard(self.plan, row)

    def place(self, workspace: Workspace, chunks: Encoded) -> None:
        """Decode and place chunks."""
        row = chunks.rows.start
        left: Sequence[int] = chunks.rows
        try:
            if self.native is not None:
                self.native.locate(chunks)
                left = self._place(chunks.rows)
            for row in left:
                data = chunks[row]
                if data is None:
                    self.fill(self.rows[row])
                else:
                    self.decode_row(workspace, data, row)
        except FrameError as err:
            raise chunk_fault(self.plan, row, err) from err

    def _place(self, rows: range) -> Sequence[int]:
        """Let the compiled loops decode and place what they can; return the rows that are left."""
        assert self.native is not None
        with crew.taking(self.job.most_threads) as n_threads:
            return self.native.place(rows, n_threads)

    def decode_row(self, workspace: Workspace, src: memoryview, row: int) -> None:
        """Decode one chunk and place it; raises `FrameError`."""
        raise NotImplementedError

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value where the chunk of a row would go."""
        raise NotImplementedError


class PointBlock(Block):
    """One plan whose chunks give scattered points of the output."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        super().__init__(job, plan)
        assert isinstance(plan.target, PointTarget)
        self.groups = plan.target.groups

    def _members(self, numbers: list[int]) -> slice:
        group = numbers[0]
        return slice(int(self.groups.bounds[group]), int(self.groups.bounds[group + 1]))

    def given(self) -> Points:
        """Return the points that chunks give."""
        group, job = self.plan.all_row[:, 0], self.job
        low = self.groups.bounds.take(group)
        n = self.groups.bounds.take(group + 1) - low
        first = np.concatenate([[0], n.cumsum()])
        members = np.arange(first[-1]) + (low - first[:-1]).repeat(n)
        in_at = self.groups.within.take(members, axis=0) @ np.array(job.array.placed_strides, np.int64)
        out_at = self.groups.position.take(members) * job.out.strides[0]
        return Points(in_at=in_at, out_at=out_at, first=first)

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to the points of one chunk."""
        self.job.out[self.groups.position[self._members(numbers)]] = self.job.array.fill[0]

    def decode_row(self, workspace: Workspace, src: memoryview, row: int) -> None:
        """Decode one chunk and pick its points."""
        members = self._members(self.rows[row])
        points = self.job.decode(workspace, src)[tuple(self.groups.within[members].T)]
        self.job.out[self.groups.position[members]] = cast_array(self.job.array.cast, points)
