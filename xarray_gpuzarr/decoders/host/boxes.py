"""What the host decoder does with chunks that fill boxes of the output.

Raw runs are read straight into the output, and very large zstd chunks are decoded as they are read. All others are
decoded to their place where that is one run of memory, else through scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import pairwise
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.faults import chunk_fault, corrupt_chunk
from xarray_gpuzarr.decoders.host.blocks import Block
from xarray_gpuzarr.decoders.host.job import Task, Workspace
from xarray_gpuzarr.decoders.host.native_rows import Boxes
from xarray_gpuzarr.decoders.host.placing import place
from xarray_gpuzarr.decoders.host.scratch import copy_bytes
from xarray_gpuzarr.errors import CorruptChunkError, StoreReadError
from xarray_gpuzarr.fetch import ByteSource, Pending, PendingStream, Request
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange
from xarray_gpuzarr.plan.output_boxes import Placement

Array = npt.NDArray[Any]


def _stream(source: ByteSource, requests: Sequence[Request]) -> PendingStream:
    return source.start_stream(*requests[0])


class BoxBlock(Block):
    """One plan whose chunks fill boxes of the output."""

    @cached_property
    def placed(self) -> Placement:
        """Where each stored chunk goes."""
        return self.job.places.place(self.plan.row)

    @cached_property
    def whole(self) -> list[bool]:
        """Whether all of each stored chunk is wanted."""
        whole: list[bool] = self.placed.whole.tolist()
        return whole

    @cached_property
    def direct(self) -> list[bool]:
        """Whether Python may decode each stored chunk straight into the output."""
        if not self.job.may_be_direct:
            return [False] * self.n_stored
        direct: list[bool] = (self.placed.whole & self.placed.contiguous).tolist()
        return direct

    @cached_property
    def out_byte(self) -> list[int]:
        """First byte of each stored chunk in the output."""
        out_byte: list[int] = self.placed.out_at.tolist()
        return out_byte

    def read_tasks(self) -> Iterator[Task]:
        """Return tasks that read straight into the output, decode as they read, or take a part each."""
        codec = self.job.array.codec
        runs = self._raw_runs() if codec is not None and codec.raw and all(self.direct) else None
        if runs is not None:
            yield from self._raw_tasks(runs)
        elif self.job.array.streams:
            for row in range(self.n_stored):
                yield Task(self._streamer(row), self.plan.requests(row, row + 1), _stream)
        else:
            yield from super().read_tasks()

    def _streamer(self, row: int) -> Callable[[Workspace, PendingStream], None]:
        def run(workspace: Workspace, pending: PendingStream) -> None:
            stream = pending()
            if stream is None:
                self.check_absent(row)
                self.fill(self.rows[row])
                return
            codec, direct = self.job.array.codec, self.direct[row]
            assert codec is not None
            with closing(stream):
                try:
                    codec.from_stream(stream, self._destination(row) if direct else workspace.scratch)
                except FrameError as err:
                    raise chunk_fault(self.plan, row, err) from err
            if not direct:
                self.place_chunk(workspace, workspace.chunk, row)

        return run

    def _destination(self, row: int) -> memoryview:
        """Return the memory of the output that a direct row fills."""
        return self.job.out_bytes(self.out_byte[row], self.job.array.chunk_nbytes)

    def _raw_runs(self) -> Sequence[int] | None:
        """Cut rows where raw chunks do not lie side by side both in the object and in the output.

        None if requests for parts, which join runs, cost less than the copy that they need, or if a chunk has another
        length: who reads it finds out whether it is damaged, or the index is of an object that was replaced.
        """
        plan, nbytes = self.plan, self.job.array.chunk_nbytes
        if np.any((plan.nbytes != nbytes) & (plan.nbytes != WHOLE_OBJECT)):
            return None
        out_byte = np.asarray(self.out_byte, np.int64)
        apart = (np.diff(plan.offset) != nbytes) | (np.diff(out_byte) != nbytes) | (np.diff(plan.object) != 0)
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(plan.offset)]
        n_runs = len(bounds) - 1
        joined = n_runs >= len(self.parts) and self.plan.spec.index is not None
        return None if joined and len(plan.offset) * nbytes < n_runs * self.job.rule.max_gap_nbytes else bounds

    def _raw_tasks(self, runs: Sequence[int]) -> Iterator[Task]:
        """Read runs of raw chunks with no copy at all, whole elements at a time."""
        itemsize = self.job.array.stored.itemsize
        longest = max(1, self.job.rule.max_raw_nbytes // itemsize) * itemsize
        for lo, hi in pairwise(runs):
            total = (hi - lo) * self.job.array.chunk_nbytes
            for done in range(0, total, longest):
                yield self._raw_task(lo, done, min(longest, total - done))

    def _raw_task(self, row: int, done: int, nbytes: int) -> Task:
        first, total = self.out_byte[row] + done, done + nbytes
        dst = self.job.out_bytes(first, nbytes)
        # The last piece of an object of unknown length asks for all that is left, to see that it is no more.
        is_object = int(self.plan.nbytes[row]) == WHOLE_OBJECT
        to_end = is_object and total == self.job.array.chunk_nbytes
        wanted = ByteRange(offset=int(self.plan.offset[row]) + done, nbytes=WHOLE_OBJECT if to_end else nbytes)
        key = self.plan.key_of(row)

        def allocate(found: int) -> memoryview:
            if found != nbytes:
                raise self._wrong_length(row, done + found)
            return dst

        def run(_workspace: Workspace, pending: Pending) -> None:
            try:
                (data,) = pending(allocate)
            except StoreReadError:
                if not is_object or (to_end and not done):
                    raise
                data = self._piece_of_all(row, done, nbytes)
            if data is None:
                self.check_absent(row)
                np.frombuffer(dst, self.job.out.dtype)[:] = self.job.array.fill[0]
                return
            if data is not dst:
                copy_bytes(data, allocate(len(data)))

        return Task(run, [(key, wanted)])

    def _piece_of_all(self, row: int, done: int, nbytes: int) -> memoryview | None:
        """Read an object of which a piece cannot be read: it is too short, or none."""

        def allocate(found: int) -> memoryview:
            if found != self.job.array.chunk_nbytes:
                raise self._wrong_length(row, found)
            return memoryview(bytearray(found))

        (whole,) = self.job.source.start(self.plan.requests(row, row + 1))(allocate)
        return None if whole is None else whole[done : done + nbytes]

    def _wrong_length(self, row: int, found: int) -> CorruptChunkError:
        return corrupt_chunk(self.plan, row, f"bytes: {found} bytes, expected {self.job.array.chunk_nbytes}")

    def given(self) -> Boxes:
        """Return the boxes that chunks give."""
        return Boxes(at=self.plan.row_at, first=None)

    def decode_row(self, workspace: Workspace, src: memoryview, row: int) -> None:
        """Decode straight into the output where the chunk is one run of memory there, else through scratch."""
        job = self.job
        if self.direct[row] and job.array.codec is not None:
            job.array.codec.into(src, self._destination(row))
        else:
            self.place_chunk(workspace, job.decode(workspace, src), row)

    def place_chunk(self, workspace: Workspace, chunk: Array, row: int) -> None:
        """Bring what is wanted of a decoded chunk to its place."""
        numbers = self.rows[row]
        self.place_box(workspace, chunk if self.whole[row] else self.wanted(chunk, numbers), numbers)

    def place_box(self, workspace: Workspace, wanted: Array, numbers: list[int]) -> None:
        """Bring the elements of one box to its place."""
        place(self.job.array.cast, wanted, self.job.out[self.job.out_key(numbers)], workspace.work)

    def wanted(self, chunk: Array, numbers: list[int]) -> Array:
        """Pick the wanted elements of a chunk."""
        keys = tuple(map(getitem, self.job.in_keys, numbers))
        if not self.job.has_index:
            return chunk[(*keys, ...)]
        picked = chunk[tuple(key if isinstance(key, slice) else slice(None) for key in keys)]
        listed = {axis: key for axis, key in enumerate(keys) if not isinstance(key, slice)}
        # Axis by axis, that which leaves least first: one index of all axes may be longer than the chunk.
        for axis in sorted(listed, key=lambda axis: len(listed[axis]) / chunk.shape[axis]):
            picked = picked.take(listed[axis], axis)
        return picked

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to one box."""
        self.job.fill(numbers)

    def fill_missing(self) -> None:
        """Write the fill value to missing chunks, without the loops in one go if a whole shard is missing."""
        if self.native is not None or self.n_stored or len(self.plan.keys) > 1:
            super().fill_missing()
            return
        corners = zip(self.job.out_keys, self.rows[0], self.rows[-1], strict=True)
        box = tuple(slice(axis[low].start, axis[high].stop) for axis, low, high in corners)
        self.job.out[box] = self.job.array.fill[0]
