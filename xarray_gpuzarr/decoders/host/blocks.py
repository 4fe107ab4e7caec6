"""What the host decoder does with one plan: tasks that fetch, decode and place its chunks.

A thread reads a part into a buffer of its own that stays in its cache, then decodes each chunk to its place in the
output. Boxes of the output have a module of their own, `boxes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from xarray_gpuzarr.decoders.faults import corrupt_chunk, vanished_shard
from xarray_gpuzarr.decoders.host.job import Job, Task, Workspace
from xarray_gpuzarr.decoders.host.placing import cast_array
from xarray_gpuzarr.fetch import Allocate, Pending, PendingObjects
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.read_plan import PointTarget, ReadPlan

Array = npt.NDArray[Any]


class Block:
    """How the encoded chunks of one plan are reached; subclasses say where they go."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        self.job = job
        self.plan = plan
        self.offset: list[int] = plan.offset.tolist()
        self.nbytes: list[int] = plan.nbytes.tolist()
        self.parts: list[int] = plan.cut(job.rule).tolist()

    @cached_property
    def rows(self) -> list[list[int]]:
        """Numbers of the pieces that each chunk gives, per axis."""
        rows: list[list[int]] = self.plan.row.tolist()
        return rows

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        if len(self.plan.missing_row):
            yield Task(lambda _workspace, _pending: self.fill_missing())
        yield from self.read_tasks()

    def fill_missing(self) -> None:
        """Write the fill value where missing chunks would go."""
        for numbers in self.plan.missing_row.tolist():
            self.fill(numbers)

    def read_tasks(self) -> Iterator[Task]:
        """Return one task per part."""
        spec = self.job.spec
        object_nbytes = spec.most_nbytes if spec.index is None else None
        for lo, hi in pairwise(self.parts):
            yield Task(self._runner(lo, hi), self.plan.requests(lo, hi), object_nbytes=object_nbytes)

    def _runner(self, lo: int, hi: int) -> Callable[[Workspace, list[Any]], None]:
        def run_objects(workspace: Workspace, pending: list[PendingObjects]) -> None:
            self.place_rows(workspace, pending[0](workspace.staging), lo)

        def run_range(workspace: Workspace, pending: list[Pending]) -> None:
            data = self.read(pending[0], workspace.staging)
            assert data is not None
            self.place_range(workspace, data, lo, hi)

        return run_objects if self.job.spec.index is None else run_range

    def read(self, finish: Pending, allocate: Allocate) -> memoryview | None:
        """Finish a request; None for an unsharded chunk that was never written.

        A shard must exist, since its index was read.
        """
        data = finish(allocate)
        if data is None:
            self.check_absent()
        return data

    def check_absent(self) -> None:
        """Raise if the object of this block may not be absent."""
        if self.job.spec.index is not None:
            raise vanished_shard(self.plan)

    def place_range(self, workspace: Workspace, data: memoryview, lo: int, hi: int) -> None:
        """Decode and place the chunks of rows ``[lo, hi)``, whose bytes are `data`."""
        first, ranges = self.offset[lo], zip(self.offset[lo:hi], self.nbytes[lo:hi], strict=True)
        self.place_rows(workspace, (data[at - first : at - first + nbytes] for at, nbytes in ranges), lo)

    def place_rows(self, workspace: Workspace, chunks: Iterable[memoryview | None], lo: int) -> None:
        """Decode and place the chunks of the rows from `lo` on; None stands for one that was never written."""
        row = lo
        try:
            for row, data in enumerate(chunks, lo):
                if data is None:
                    self.fill(self.rows[row])
                else:
                    self.decode_row(workspace, data, row)
        except FrameError as err:
            raise corrupt_chunk(self.plan, row, str(err)) from err

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

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to the points of one chunk."""
        self.job.out[self.groups.position[self._members(numbers)]] = self.job.fill_scalar

    def decode_row(self, workspace: Workspace, src: memoryview, row: int) -> None:
        """Decode one chunk and pick its points."""
        members = self._members(self.rows[row])
        points = self.job.decode(workspace, src)[tuple(self.groups.within[members].T)]
        self.job.out[self.groups.position[members]] = cast_array(self.job.cast, points)
