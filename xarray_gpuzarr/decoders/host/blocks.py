"""What the host decoder does with one plan: tasks that fetch, decode and place its chunks.

A thread reads a part into a buffer of its own that stays in its cache, then decodes each chunk to its place in the
output. The compiled loops do all this for local files; Python does what they leave, and all where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from xarray_gpuzarr.decoders.faults import chunk_fault, vanished_shard
from xarray_gpuzarr.decoders.host.casting import cast_array
from xarray_gpuzarr.decoders.host.encoded import Encoded
from xarray_gpuzarr.decoders.host.job import Job, Task
from xarray_gpuzarr.decoders.host.local_files import Files, local_files
from xarray_gpuzarr.decoders.host.native_rows import NativeRows
from xarray_gpuzarr.decoders.host.scratch import buffer, copy_bytes
from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch import Pending
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew


class Block:
    """The chunks of one plan, and where they go; rows of chunks that are not stored follow the others."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        self.job, self.plan = job, plan
        self.n_stored, self.n_rows = plan.n_stored, plan.n_chunks
        self.native: NativeRows | None = None
        """The chunks as the compiled loops take them."""
        self.files: Files | None = None
        """Where these loops read them."""
        if job.native is not None and self.n_rows:
            given = job.given.to_loops(plan, job.array.placed_strides, job.out.strides[0] if job.out.ndim else 0)
            self.native = NativeRows(job.native, given, plan)
            if job.source.is_local and self.n_stored:
                self.files = local_files(plan, job.source)

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
        """Return the tasks that fill and decode this block: a few objects each, or a few ranges of a shard."""
        if self.n_rows > self.n_stored:
            yield Task(lambda _: self.fill_missing(), is_started=False)
        array, source = self.job.array, self.job.source
        is_cut = source.is_remote and array.is_raw and array.chunk_nbytes > self.job.rule.max_raw_nbytes
        for lo, hi in pairwise(self._together()):
            bounds = self.parts[lo : hi + 1]
            task = self._part_task(bounds)
            if self.files is not None:
                yield Task(self._local_run(range(bounds[0], bounds[-1])), task.requests, is_started=False)
            else:
                yield from (is_cut and self._piece_tasks(bounds[0])) or (task,)

    def _local_run(self, rows: range) -> Callable[[None], None]:
        def run(_: None) -> None:
            for task in self.read_local(rows):
                task.run(task.start(self.job.source))

        return run

    def fill_missing(self) -> None:
        """Write the fill value where missing chunks would go."""
        if self.native is not None:
            self._place(range(self.n_stored, self.n_rows))
        else:
            for numbers in self.rows[self.n_stored :]:
                self._fill(numbers)

    def read_local(self, rows: range) -> list[Task]:
        """Let the compiled loops read, decode and place what they can; return tasks for what they leave."""
        assert self.native is not None
        assert self.files is not None
        with crew.taking(self.job.most_threads, self.job.budget) as n_threads:
            found = self.native.read(rows, self.files, n_threads)
        counters.add(read_nbytes=found.n_read)
        left = found.left
        if not left:
            return []
        inner = [row for row in self.parts if left[0] < row <= left[-1]]
        return [self._part_task([*bounds]) for bounds in pairwise([left[0], *inner, left[-1] + 1])]

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
            raise vanished_shard(self.plan, row)

    def _piece_tasks(self, row: int) -> list[Task]:
        """Return tasks that each bring a piece of a long raw chunk to the output; none if it needs scratch.

        Requests for pieces are under way beside each other. They are whole elements, and the last piece of an object of
        unknown length is all that is left, to see that it is no more.
        """
        nbytes, dst = int(self.plan.nbytes[row]), self.job.straight_to(self.rows[row])
        total, itemsize = self.job.array.chunk_nbytes, self.job.array.stored.itemsize
        if dst is None or nbytes not in (total, WHOLE_OBJECT):
            return []
        longest = max(1, self.job.rule.max_raw_nbytes // itemsize) * itemsize
        return [self._piece_task(row, first, dst[first : first + longest]) for first in range(0, total, longest)]

    def _piece_task(self, row: int, first: int, dst: memoryview) -> Task:
        plan, array = self.plan, self.job.array
        is_object = plan.spec.index is None
        to_end = is_object and first + len(dst) == array.chunk_nbytes
        wanted = ByteRange(int(plan.offset[row]) + first, WHOLE_OBJECT if to_end else len(dst))

        def run(pending: Pending) -> None:
            try:
                (data,) = pending(lambda nbytes: memoryview(buffer("staging", nbytes)))
            except StoreReadError:
                if not is_object:
                    raise
                data = memoryview(b"")  # too short, or none: who reads all of it finds out
            self._check_there([data], row)
            if data is None:
                np.frombuffer(dst, self.job.out.dtype)[:] = array.fill[0]
            elif len(data) == len(dst):
                copy_bytes(data, dst)
            else:
                whole = self._part_task([row, row + 1])
                whole.run(whole.start(self.job.source))

        return Task(run, [(plan.key_of(row), wanted)])

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

    def place(self, chunks: Encoded) -> None:
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
                    self._fill(self.rows[row])
                else:
                    self._decode_row(data, self.rows[row])
        except FrameError as err:
            raise chunk_fault(self.plan, row, err) from err

    def _place(self, rows: range) -> Sequence[int]:
        """Let the compiled loops decode and place what they can; return the rows that are left."""
        assert self.native is not None
        with crew.taking(self.job.most_threads, self.job.budget) as n_threads:
            return self.native.place(rows, n_threads)

    def _decode_row(self, src: memoryview, numbers: list[int]) -> None:
        """Decode one chunk and place it; raises `FrameError`."""
        job = self.job
        dst = job.straight_to(numbers)
        if dst is not None and job.array.codec is not None:
            job.array.codec.into(src, dst)
            return
        for key, wanted in job.given.parts(job.decode(src), numbers):
            job.out[key] = cast_array(job.array.cast, wanted)

    def _fill(self, numbers: list[int]) -> None:
        """Write the fill value where a chunk would go."""
        for key in self.job.given.keys(numbers):
            self.job.out[key] = self.job.array.fill[0]
