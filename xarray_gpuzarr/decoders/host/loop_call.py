"""Calls of the compiled loops: chunks that they read, decode and place without Python's lock.

`LoopOutput` is what all calls of a read have in common, `LoopCall` the chunk table of one plan. Chunks of local files
that are in the page cache are read in the same call, each by the thread that decodes it; the fill value is written
where chunks are missing. Chunks that the loops leave are read and decoded by Python.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.chunk_cache import PlanChunks
from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.decoders.host.schedule import Schedule
from xarray_gpuzarr.fetch.source import ByteSource
from xarray_gpuzarr.native.library import address, address_of, int64_columns
from xarray_gpuzarr.native.structs import FilesStruct, JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, ReadPlan, Target
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.host_memory import borrow_buffer
from xarray_gpuzarr.process.records import Column, record


class Encoded:
    """Encoded chunks in host memory, valid until the next request of this thread.

    Part ``i`` has the rows ``[bounds[i], bounds[i + 1])`` of the plan; `data` is that of each part, from the first byte
    of its first chunk on, or None for an object that does not exist.
    """

    def __init__(self, plan: ReadPlan, bounds: Sequence[int], data: Sequence[memoryview | None]) -> None:
        self.rows = range(bounds[0], bounds[-1])
        self._plan, self._bounds, self._data = plan, bounds, data

    def __getitem__(self, row: int) -> memoryview | None:
        """Return the bytes of a row; None if the chunk was never written."""
        part = bisect_right(self._bounds, row) - 1
        data, nbytes = self._data[part], int(self._plan.nbytes[row])
        if data is None or nbytes == WHOLE_OBJECT:
            return data
        first = int(self._plan.offset[row] - self._plan.offset[self._bounds[part]])
        return data[first : first + nbytes]

    def located(self) -> tuple[Column, Column]:
        """Return where the bytes of each row lie, and how many they are: -1 if the chunk was never written."""
        where, lengths = np.array([(0, -1) if d is None else (address_of(d), len(d)) for d in self._data], np.int64).T
        rows = slice(self.rows.start, self.rows.stop)
        nbytes = self._plan.nbytes[rows]
        if len(lengths) == len(nbytes):  # each row is a part
            return where, np.where(nbytes == WHOLE_OBJECT, lengths, np.minimum(nbytes, np.maximum(lengths, 0)))
        bounds = np.array(self._bounds, np.int64)
        part_of = np.arange(len(lengths)).repeat(np.diff(bounds))
        at = self._plan.offset[rows] - self._plan.offset.take(bounds[:-1]).take(part_of)
        return where.take(part_of) + at, np.minimum(nbytes, np.maximum(lengths.take(part_of) - at, 0))


ROOM_NBYTES = 256 * 1024
"""Most bytes of neighbours in a file that are read at once; they stay in a core's cache."""
_BLOCK_NBYTES = 512
"""Bytes in a block of the page cache, which has whole blocks of a file, except at its end."""
_DONE, _LEFT = 0, 1
"""State of a row: it was placed, or Python has to read it."""
_DECODED = -3
"""Stands for the length of a chunk that is decoded already."""
_NO_VERSION = (0,) * 5
"""Version of a shard that is not there, of which nothing is read."""
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


@record
class _Axes:
    """Pieces of the chunks along the axes of the output."""

    n_pieces: tuple[int, ...]
    steps: tuple[int, ...]
    index: tuple[int, ...]
    """Addresses of wanted elements, 0 where these are evenly spaced; none if they are along all axes."""
    table: int
    """Address of the pieces of all axes: first wanted elements, first positions in the output, counts."""
    memory: object
    """Arrays that hold these numbers."""


def _axes_of_pieces(pieces: Sequence[AxisPieces]) -> _Axes:
    """Take pieces as they are; none for points."""
    # The first wanted element of each piece, or where its elements begin in the index.
    begins = [p.out_start if p.index_start is None else p.index_start for p in pieces]
    first = [p.in_start if p.index is None else begin for p, begin in zip(pieces, begins, strict=True)]
    position = [p.out_start for p in pieces]
    table = np.concatenate([_NONE, *first, *position, *[p.count for p in pieces]])
    index = tuple([0 if p.index is None else address(p.index) for p in pieces])
    n_pieces, steps = tuple([len(p.count) for p in pieces]), tuple([p.step for p in pieces])
    return _Axes(
        n_pieces=n_pieces, steps=steps, index=index if any(index) else (), table=address(table), memory=(table, pieces)
    )


_NONE = np.zeros(0, np.int64)


def _job(
    array: HostArray,
    n_pieces: tuple[int, ...],
    steps: tuple[int, ...],
    out_strides: tuple[int, ...],
    index: tuple[int, ...],
    n_new: int,
) -> tuple[JobStruct, object]:
    """Describe a read of an array but for where its pieces and its output lie; return what the struct points to, too.

    `n_new` is 1 if the output has an axis of samples, which chunks do not have.
    """
    assert array.program is not None
    n = len(n_pieces)
    numbers, at = int64_columns(
        first_piece=[*accumulate(n_pieces, initial=0)],
        chunk_shape=((1,) * n_new + array.chunk_shape)[:n],
        in_strides=((0,) * n_new + array.placed_strides)[:n],
        every=steps,
        out_strides=out_strides[:n],
        index=index,
    )
    struct = JobStruct.from_buffer_copy(array.program.struct)
    fill = array.fill.tobytes()
    struct.ndim, struct.n_pieces, struct.fill = n, sum(n_pieces), fill
    for name, where in at.items():
        setattr(struct, name, where)
    return struct, (numbers, fill)


kept_job = lru_cache(maxsize=64)(_job)
"""Most reads of an array are alike."""


class LoopOutput:
    """The output of one read, of shape `target.shape`, as the compiled loops take it; these have to know the array."""

    def __init__(self, array: HostArray, target: Target, out: Array) -> None:
        assert array.loops is not None
        assert array.program is not None
        self._target, self._loops = target, array.loops
        self.scratch_nbytes = array.program.scratch_nbytes
        """Scratch of each thread in bytes."""
        self._in_strides = array.placed_strides
        self._out_stride = out.strides[0] if out.ndim else 0
        if isinstance(target, BoxTarget) and target.spans is not None:
            spans = target.spans
            n_pieces, steps = tuple([along.n_pieces for along in spans]), tuple([along.step for along in spans])
            n = sum(n_pieces)
            table = np.empty(3 * n, np.int64)
            at = address(table)
            array.loops.cut_axes(target.spans_at, len(spans), n, at)
            axes = _Axes(n_pieces=n_pieces, steps=steps, index=(), table=at, memory=table)
        else:
            axes = _axes_of_pieces(() if isinstance(target, PointTarget) else target.pieces)
        n_new = int(isinstance(target, StackTarget))
        job = _job if axes.index else kept_job
        of_array, pointed_to = job(array, axes.n_pieces, axes.steps, out.strides, axes.index, n_new)
        self._kept = axes, pointed_to, out, array
        self._struct = struct = JobStruct.from_buffer_copy(of_array)
        struct.pieces, struct.out = axes.table, address(out)
        self.address = ctypes.addressof(struct)
        """Where the `JobStruct` lies."""

    def place_rows(self, *arguments: int) -> int:
        """Call the loops for a `RowsStruct`, its rows ``[row, end)``, scratch, and so many threads."""
        return int(self._loops.place_rows(self.address, *arguments))

    def read_rows(self, *arguments: int) -> int:
        """Call the loops for a `RowsStruct`, a `FilesStruct`, its rows ``[row, end)``, scratch, and so many threads."""
        return int(self._loops.read_rows(self.address, *arguments))

    def give(self, plan: ReadPlan, struct: RowsStruct) -> object:
        """Note what the chunks of a plan give: boxes or points, a chunk's one after another; return what has them."""
        target = self._target
        if isinstance(target, BoxTarget):
            struct.boxes = plan.at["all_row"]
            return None
        if isinstance(target, StackTarget):
            row = plan.all_row
            boxes, first = target.boxes(row), np.concatenate([_ZERO, target.n_boxes(row).cumsum()])
            struct.boxes, struct.first_box = address(boxes), address(first)
            return boxes, first
        group, groups = plan.all_row[:, 0], target.groups
        low = groups.bounds.take(group)
        n = groups.bounds.take(group + 1) - low
        first = np.concatenate([_ZERO, n.cumsum()])
        members = np.arange(first[-1]) + (low - first[:-1]).repeat(n)
        in_at = groups.within.take(members, axis=0) @ np.array(self._in_strides, np.int64)
        out_at = groups.position.take(members) * self._out_stride
        in_at, out_at = np.ascontiguousarray(in_at), np.ascontiguousarray(out_at)
        struct.in_at, struct.out_at, struct.first_box = address(in_at), address(out_at), address(first)
        return in_at, out_at, first


_ZERO = np.zeros(1, np.int64)


class LoopCall:
    """The chunks of one plan, one row each, as the compiled loops take them."""

    def __init__(
        self, output: LoopOutput, plan: ReadPlan, source: ByteSource, chunks: PlanChunks | None = None
    ) -> None:
        self._output, self._n, self._n_stored = output, plan.n_chunks, plan.n_stored
        self._numbers = np.empty(3 * self._n, np.int64)
        first, step = address(self._numbers), self._numbers.itemsize * self._n
        self._numbers[self._n : 2 * self._n] = plan.all_nbytes
        struct = RowsStruct(src=first, nbytes=first + step, left=first + 2 * step)
        self._kept = struct, output.give(plan, struct), plan, chunks and self._give_chunks(chunks, struct)
        self._at = ctypes.addressof(struct)
        self.is_decoded = chunks is not None and len(chunks.found) == self._n_stored
        """Whether all chunks that are stored were found decoded."""
        self.files = local_files(plan, source) if source.is_local and self._n_stored and not self.is_decoded else None
        """Where the loops read the chunks; None: Python reads them."""

    def _give_chunks(self, chunks: PlanChunks, struct: RowsStruct) -> object:
        """Note which chunks are decoded already, and where others are decoded as a whole; return what has them."""
        src, nbytes = self._numbers[: self._n], self.nbytes
        for row, chunk in chunks.found.items():
            src[row], nbytes[row] = chunk.address, _DECODED
        if chunks.kept:
            whole = np.zeros(self._n, np.int64)
            for row, (_, chunk) in chunks.kept.items():
                whole[row] = chunk.address
            struct.whole = address(whole)
            return chunks, whole
        return chunks

    def decoded(self, rows: Iterable[int]) -> list[int]:
        """Return those of some rows that the loops have decoded and placed, once all have been treated."""
        became = self._numbers[2 * self._n :].view(np.uint8)
        return [row for row in rows if became[row] == _DONE]

    @property
    def nbytes(self) -> Column:
        """Shape (n,): encoded bytes of each chunk; `MISSING` for those that are not there."""
        return self._numbers[self._n : 2 * self._n]

    def locate(self, chunks: Encoded) -> None:
        """Note where encoded chunks lie."""
        rows = slice(chunks.rows.start, chunks.rows.stop)
        self._numbers[rows], self.nbytes[rows] = chunks.located()

    def place(self, rows: range, shared: Schedule) -> Sequence[int]:
        """Decode and place rows that were located, or are missing; return those that were left.

        Those are left for which memory does not suffice: it may turn out that they do not exist.
        """
        output, scratch_at = self._output, 0
        with crew.reserve_threads(shared.n_loop_threads, shared.budget) as n_threads:
            if rows.start < self._n_stored:
                _scratch, scratch_at = borrow_buffer("scratch", output.scratch_nbytes * n_threads)
            n_remaining = output.place_rows(self._at, rows.start, rows.stop, scratch_at, n_threads)
        return self._rows_left(rows) if n_remaining else ()

    def read(self, rows: range, shared: Schedule) -> Sequence[int]:
        """Read, decode and place rows, which `files` hold unless they are missing; return those that were left.

        What is not in the page cache is asked for at once. Then this thread waits for it, and lends its turn.
        """
        assert self.files is not None
        files = FilesStruct.from_buffer_copy(self.files[0])
        n_remaining = self.read_once(files, rows, shared)
        if files.is_cold:
            files.waits = 1
            n_remaining = crew.run_without_turn(partial(self.read_once, files, rows, shared))
        counters.add(read_nbytes=files.n_read)
        return self._rows_left(rows) if n_remaining else ()

    def read_once(self, files: FilesStruct, rows: range, shared: Schedule) -> int:
        """Read, decode and place rows, waiting for the disk if `files` say so; return how many were left."""
        output = self._output
        with crew.reserve_threads(shared.n_loop_threads, shared.budget) as n_threads:
            _scratch, scratch_at = borrow_buffer("scratch", output.scratch_nbytes * n_threads)
            _room, files.room = borrow_buffer("staging", files.room_nbytes * n_threads)
            return output.read_rows(self._at, ctypes.addressof(files), rows.start, rows.stop, scratch_at, n_threads)

    def _rows_left(self, rows: range) -> list[int]:
        became = self._numbers[2 * self._n :].view(np.uint8)[rows.start : rows.stop]
        return [*((became == _LEFT).nonzero()[0] + rows.start).tolist()]


def whole_blocks(nbytes: int) -> int:
    """Return the bytes of the blocks of a file that so many bytes from its beginning lie in."""
    return -(-nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES


def encoded_path(path: str) -> bytes | None:
    """Return a path as the system takes it, as `os.fsencode` does; None if no file can have it."""
    try:
        encoded = path.encode(_ENCODING, _ERRORS)
    except UnicodeEncodeError:
        return None
    return None if b"\0" in encoded else encoded


def local_files(plan: ReadPlan, source: ByteSource) -> tuple[FilesStruct, Any] | None:
    """Return the files that hold the chunks of a plan, one at least; None if there can be no such files.

    The source is local. The struct lacks the memory that threads read into, each the longest chunk or neighbours that
    are read at once; what it points to is returned, too.
    """
    paths = bytearray()
    starts: list[int] = []
    versions: list[int] = []
    for key in plan.keys:
        path, version = source.local_file(key)
        encoded = encoded_path(path)
        if encoded is None:
            return None
        starts.append(len(paths))
        paths += encoded + b"\0"
        versions += version or _NO_VERSION
    if plan.spec.index is not None:
        rule, offset = source.rule, plan.at["offset"]
        room_nbytes, max_gap_nbytes = max(plan.most_nbytes, min(ROOM_NBYTES, rule.max_nbytes)), rule.max_gap_nbytes
    else:
        room_nbytes, max_gap_nbytes = whole_blocks(plan.spec.expected_nbytes), 0
        versions, offset = [], 0
    about, at = int64_columns(path_at=starts, version=versions)
    struct = FilesStruct(
        paths=bytes(paths),
        path_at=at["path_at"],
        version=at["version"],
        file=plan.at["object"],
        offset=offset,
        room_nbytes=room_nbytes,
        max_gap_nbytes=max_gap_nbytes,
        most_nbytes=plan.spec.most_nbytes,
    )
    return struct, (about, plan)
