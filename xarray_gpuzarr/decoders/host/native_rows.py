"""The chunk table of the compiled loops: chunks that they read, decode and place in one call, without Python's lock.

Chunks of local files that are in the page cache are read in the same call, each by the thread that decodes it; the fill
value is written where chunks are missing. Every chunk that the loops leave is read and decoded by Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from xarray_gpuzarr.decoders.host.array import Array
from xarray_gpuzarr.decoders.host.encoded import Encoded
from xarray_gpuzarr.decoders.host.local_files import Files
from xarray_gpuzarr.decoders.host.native_program import NativeProgram
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.native import Loops
from xarray_gpuzarr.native.library import FilesStruct, JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
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


def address(array: Array) -> int:
    """Return where an array lies; `ndarray.ctypes` takes three times as long."""
    address: int = array.__array_interface__["data"][0]
    return address


class NativeJob:
    """One read as the compiled loops take it.

    Parameters
    ----------
    loops : Loops
    program : NativeProgram
    pieces : sequence of AxisPieces
        Per axis of the output; none for points.
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
        pieces: tuple[AxisPieces, ...],
        chunk: tuple[tuple[int, ...], tuple[int, ...]],
        out: Array,
        fill: Array | None = None,
    ) -> None:
        self._loops = loops
        self.program = program
        first = [0]
        for p in pieces:
            first.append(first[-1] + len(p.count))
        wanted, starts = [_first_elements(p) for p in pieces], [p.out_start for p in pieces]
        table = np.concatenate([_NONE, *wanted, *starts, *[p.count for p in pieces]])
        index = [0 if p.index is None else address(p.index) for p in pieces]
        numbers = first, *chunk, [p.step for p in pieces], out.strides, index
        axes = np.array([column[: len(pieces)] for column in numbers], np.int64)
        self._kept = table, axes, pieces, out
        at, length, codec = address(axes), axes.strides[0], program.codec
        self._struct = JobStruct(
            codec=codec.number,
            chunk_nbytes=program.chunk_nbytes,
            itemsize=program.placed.itemsize,
            ndim=len(pieces),
            n_pieces=first[-1],
            packed_nbytes=program.packed_nbytes,
            n_stages=len(program.stages),
            out_itemsize=program.out_itemsize,
            area_nbytes=program.area_nbytes,
            pieces=address(table),
            first_piece=at,
            chunk_shape=at + length,
            in_strides=at + 2 * length,
            every=at + 3 * length,
            out_strides=at + 4 * length,
            out=address(out),
            decode=codec.decode,
            make_context=codec.make_context,
            free_context=codec.free_context,
            decode_part=codec.decode_part,
            restart=codec.restart,
            unshuffle=program.unshuffle,
            stages=ctypes.addressof(program.stages),
            steps=0 if program.steps is None else program.steps.address,
            index=at + 5 * length if any(index) else 0,
            fill=None if fill is None else fill.tobytes(),
        )

    @cached_property
    def _at(self) -> int:
        return ctypes.addressof(self._struct)

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

    numbers: Column
    """shape (n_boxes, ndim): piece numbers."""
    first: Column
    """shape (n + 1,): first box of each chunk, and of the one behind the last."""


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
    nbytes : int64, shape (n,)
        Encoded; `MISSING` for chunks that are not stored.
    """

    def __init__(self, job: NativeJob, given: Boxes | Points, nbytes: Column) -> None:
        n = len(nbytes)
        self._job = job
        numbers, self._left = np.zeros((3, n + 1), np.int64), np.zeros(n, np.uint8)
        self.src, self.nbytes = numbers[0], numbers[1]
        numbers[1, :n], numbers[2] = nbytes, given.first
        boxes = in_at = out_at = _NONE
        if isinstance(given, Points):
            in_at, out_at = np.ascontiguousarray(given.in_at), np.ascontiguousarray(given.out_at)
        else:
            boxes = np.ascontiguousarray(given.numbers)
        self._kept = numbers, boxes, in_at, out_at
        at, length = address(numbers), numbers.strides[0]
        self._struct = RowsStruct(
            src=at,
            nbytes=at + length,
            first_box=at + 2 * length,
            boxes=address(boxes),
            left=address(self._left),
            in_at=address(in_at) if isinstance(given, Points) else 0,
            out_at=address(out_at),
        )
        self._at = ctypes.addressof(self._struct)

    def __len__(self) -> int:
        return len(self._left)

    def locate(self, chunks: Encoded) -> None:
        """Note where encoded chunks lie."""
        rows = slice(chunks.rows.start, chunks.rows.stop)
        self.src[rows], self.nbytes[rows] = chunks.located()

    def place(self, rows: range, n_threads: int) -> Sequence[int]:
        """Decode and place rows that were located, or are missing; return those that were left."""
        scratch = buffer("scratch", self._job.program.scratch_nbytes * n_threads)
        if not self._job.place_rows(self._at, rows.start, rows.stop, address(scratch), n_threads):
            return ()
        return self._rows_that(rows, _LEFT)

    def read(self, rows: range, files: Files, n_threads: int) -> Found:
        """Read, decode and place rows, which files hold unless they are missing."""
        scratch = buffer("scratch", self._job.program.scratch_nbytes * n_threads)
        room = buffer("staging", files.room_nbytes * n_threads)
        struct = FilesStruct(
            paths=files.paths,
            path_at=address(files.path_at),
            version=0 if files.version is None else address(files.version),
            file=address(files.file),
            offset=0 if files.offset is None else address(files.offset),
            room=address(room),
            room_nbytes=files.room_nbytes,
            max_gap_nbytes=files.max_gap_nbytes,
        )
        n_left = self._job.read_rows(
            self._at, ctypes.addressof(struct), rows.start, rows.stop, address(scratch), n_threads
        )
        if not n_left:
            return Found(left=(), absent=(), n_read=struct.n_read)
        return Found(left=self._rows_that(rows, _LEFT), absent=self._rows_that(rows, _ABSENT), n_read=struct.n_read)

    def _rows_that(self, rows: range, became: int) -> Sequence[int]:
        found: list[int] = ((self._left[rows.start : rows.stop] == became).nonzero()[0] + rows.start).tolist()
        return found
