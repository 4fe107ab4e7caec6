"""The chunk table of the compiled loops: chunks that they read, decode and place in one call, without Python's lock.

Chunks of local files that are in the page cache are read in the same call, each by the thread that decodes it; the fill
value is written where chunks are missing. Every chunk that the loops leave is read and decoded by Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Self

import numpy as np

from xarray_gpuzarr.decoders.host.array import Array
from xarray_gpuzarr.decoders.host.encoded import Encoded
from xarray_gpuzarr.decoders.host.local_files import Files
from xarray_gpuzarr.decoders.host.native_program import NativeProgram
from xarray_gpuzarr.decoders.host.scratch import lent
from xarray_gpuzarr.native import Loops, address, empty_int64s, int64s
from xarray_gpuzarr.native.library import FilesStruct, JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces, Span
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.process.records import record

_LEFT, _ABSENT = 1, 2
"""What became of a row."""
_NONE = np.zeros(0, np.int64)


@record
class Found:
    """What became of rows that were to be read."""

    left: Sequence[int]
    """Rows that were left."""
    absent: Sequence[int]
    """Rows whose file does not exist, if there is no fill value."""
    n_read: int
    """Bytes."""


def _first_elements(pieces: AxisPieces) -> Column:
    """Return the first wanted element of each piece, or where its elements begin in the index."""
    if pieces.index is None:
        return pieces.in_start
    return pieces.out_start if pieces.index_start is None else pieces.index_start


@record
class Axes:
    """What chunks give along the axes of the output."""

    n_pieces: tuple[int, ...]
    at: int
    """Address of a table of the pieces of all axes: first wanted elements, first positions in the output, counts."""
    steps: tuple[int, ...]
    index: tuple[int, ...]
    """Addresses of wanted elements, 0 where these are evenly spaced; none if they are along all axes."""
    kept: object
    """What has these numbers."""

    @classmethod
    def of_spans(cls, loops: Loops, spans: Sequence[Span]) -> Self:
        """Cut evenly spaced elements at the borders of chunks."""
        numbers: list[int] = []
        for along in spans:
            numbers += (*along, 0)
        n_pieces, steps = tuple(numbers[3::6]), tuple(numbers[2::6])
        n = sum(n_pieces)
        table, at = empty_int64s(3 * n)
        _kept, given = int64s(numbers)
        loops.cut_axes(given, len(spans), n, at)
        return cls(n_pieces=n_pieces, at=at, steps=steps, index=(), kept=table)

    @classmethod
    def of_pieces(cls, pieces: Sequence[AxisPieces]) -> Self:
        """Take pieces as they are; none for points."""
        wanted, starts = map(_first_elements, pieces), [p.out_start for p in pieces]
        table = np.concatenate([_NONE, *wanted, *starts, *[p.count for p in pieces]])
        index = tuple([0 if p.index is None else address(p.index) for p in pieces])
        return cls(
            n_pieces=tuple([len(p.count) for p in pieces]),
            at=address(table),
            steps=tuple([p.step for p in pieces]),
            index=index if any(index) else (),
            kept=(table, pieces),
        )


def _layout(n_pieces: tuple[int, ...], *columns: tuple[int, ...]) -> tuple[Sequence[int], int]:
    """Return numbers of all axes in host memory, and where they lie: first pieces, and `columns`."""
    return int64s([*accumulate(n_pieces, initial=0), *chain(*columns)])


_kept_layout = lru_cache(maxsize=64)(_layout)
"""Most reads of an array are alike."""


class NativeJob:
    """One read as the compiled loops take it.

    Parameters
    ----------
    loops : Loops
    program : NativeProgram
    axes : Axes
        Of the output.
    chunk : tuple
        Shape of a decoded chunk along these axes, and the strides of its elements in bytes.
    out : ndarray
    fill : ndarray of the dtype of `out`, shape (1,), or None
        Written where chunks are missing; None: these are absent.
    """

    def __init__(
        self,
        loops: Loops,
        program: NativeProgram,
        axes: Axes,
        chunk: tuple[tuple[int, ...], tuple[int, ...]],
        out: Array,
        fill: Array | None = None,
    ) -> None:
        self._loops = loops
        self.program = program
        n = len(axes.n_pieces)
        layout = _layout if axes.index else _kept_layout
        lent, at = layout(axes.n_pieces, chunk[0][:n], chunk[1][:n], axes.steps, out.strides[:n], axes.index)
        self._kept, length = (axes, lent, out), 8 * n
        chunks = at + length + 8  # behind the first pieces of all axes, and the number of all pieces
        self._struct = struct = JobStruct.from_buffer_copy(program.struct)
        struct.ndim, struct.n_pieces, struct.pieces = n, lent[n], axes.at
        struct.first_piece, struct.chunk_shape, struct.in_strides = at, chunks, chunks + length
        struct.every, struct.out_strides, struct.out = chunks + 2 * length, chunks + 3 * length, address(out)
        struct.index = chunks + 4 * length if axes.index else 0
        struct.fill = None if fill is None else fill.tobytes()
        self._at = ctypes.addressof(struct)

    def place_rows(self, *arguments: int) -> int:
        """Call the loops for a `RowsStruct`, its rows ``[row, end)``, scratch, and so many threads."""
        n_left: int = self._loops.place_rows(self._at, *arguments)
        return n_left

    def read_rows(self, *arguments: int) -> int:
        """Call the loops for a `RowsStruct`, a `FilesStruct`, its rows ``[row, end)``, scratch, and so many threads."""
        n_left: int = self._loops.read_rows(self._at, *arguments)
        return n_left


@record
class Boxes:
    """What chunks give: boxes, a chunk's one after another."""

    at: int
    """Address of their piece numbers, int64 of shape (n_boxes, ndim)."""
    first: Column | None
    """shape (n + 1,): first box of each chunk, and of the one behind the last; None: each has one."""
    kept: object = None
    """What has these numbers, if the plan has not."""


@record
class Points:
    """What chunks give: points, a chunk's one after another."""

    in_at: Column
    """shape (n_points,): where each lies in its chunk, in bytes."""
    out_at: Column
    """shape (n_points,): where each goes in the output, in bytes."""
    first: Column
    """shape (n + 1,): first point of each chunk, and of the one behind the last."""


class NativeRows:
    """The chunks of one plan, one row each, and what they give.

    Parameters
    ----------
    job : NativeJob
    given : Boxes or Points
    plan : ReadPlan
    """

    def __init__(self, job: NativeJob, given: Boxes | Points, plan: ReadPlan) -> None:
        self._job, self._n, self._n_stored = job, plan.n_chunks, plan.n_stored
        self._numbers, at = empty_int64s(3 * self._n)
        self.nbytes[:] = plan.all_nbytes
        length = 8 * self._n
        self._struct = struct = RowsStruct(at, at + length, 0, 0, at + 2 * length)
        if isinstance(given, Points):
            in_at, out_at = np.ascontiguousarray(given.in_at), np.ascontiguousarray(given.out_at)
            struct.in_at, struct.out_at = address(in_at), address(out_at)
            self._kept: object = given, in_at, out_at
        else:
            struct.boxes, self._kept = given.at, (given, plan)
        if given.first is not None:
            struct.first_box = address(given.first)
        self._at = ctypes.addressof(struct)

    @property
    def nbytes(self) -> Column:
        """Shape (n,): encoded bytes of each chunk; `MISSING` for those that are not there."""
        return self._numbers[self._n : 2 * self._n]

    def locate(self, chunks: Encoded) -> None:
        """Note where encoded chunks lie."""
        rows = slice(chunks.rows.start, chunks.rows.stop)
        self._numbers[rows], self.nbytes[rows] = chunks.located()

    def place(self, rows: range, n_threads: int) -> Sequence[int]:
        """Decode and place rows that were located, or are missing; return those that were left.

        All stored ones are left where memory does not suffice: it may turn out that they do not exist.
        """
        at = 0
        if rows.start < self._n_stored:
            try:
                _scratch, at = lent("scratch", self._job.program.scratch_nbytes * n_threads)
            except MemoryError:
                return rows
        if not self._job.place_rows(self._at, rows.start, rows.stop, at, n_threads):
            return ()
        return self._rows_that(rows, _LEFT)

    def read(self, rows: range, files: Files, n_threads: int) -> Found:
        """Read, decode and place rows, which files hold unless they are missing; see `place`."""
        struct = FilesStruct.from_buffer_copy(files.struct)
        try:
            _scratch, at = lent("scratch", self._job.program.scratch_nbytes * n_threads)
            _room, struct.room = lent("staging", struct.room_nbytes * n_threads)
        except MemoryError:
            missing = range(max(rows.start, self._n_stored), rows.stop)
            self.place(missing, n_threads)
            return Found(left=range(rows.start, min(rows.stop, self._n_stored)), absent=(), n_read=0)
        n_left = self._job.read_rows(self._at, ctypes.addressof(struct), rows.start, rows.stop, at, n_threads)
        if not n_left:
            return Found(left=(), absent=(), n_read=struct.n_read)
        return Found(left=self._rows_that(rows, _LEFT), absent=self._rows_that(rows, _ABSENT), n_read=struct.n_read)

    def _rows_that(self, rows: range, became: int) -> Sequence[int]:
        left = self._numbers[2 * self._n :].view(np.uint8)[rows.start : rows.stop]
        found: list[int] = ((left == became).nonzero()[0] + rows.start).tolist()
        return found
