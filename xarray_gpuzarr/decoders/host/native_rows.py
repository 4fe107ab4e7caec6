"""The chunks of one plan as the compiled loops take them: decoded and placed in one call, without Python's lock.

Chunks of local files that are in the page cache are read in the same call, each by the thread that decodes it. Every
chunk that the loops leave is decoded by Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.encoded import Encoded
from xarray_gpuzarr.decoders.host.local_files import Files
from xarray_gpuzarr.decoders.host.native_program import NativeProgram
from xarray_gpuzarr.native import Loops
from xarray_gpuzarr.native.library import FilesStruct, JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.process.records import record

Array = npt.NDArray[Any]

_LEFT, _ABSENT = 1, 2
"""What became of a row."""


@record
class Found:
    """What became of rows that were to be read."""

    left: Sequence[int]
    """Rows that were left."""
    absent: Sequence[int]
    """Rows whose file does not exist."""
    n_read: int
    """Bytes."""


_NONE = np.zeros(0, np.int64)


def _first_elements(pieces: AxisPieces) -> Column:
    """Return the first wanted element of each piece, or where its elements begin in the index."""
    if pieces.index is None:
        return pieces.in_start
    return pieces.out_start if pieces.index_start is None else pieces.index_start


def address(array: Array) -> int:
    """Return where an array lies; `ndarray.ctypes` takes three times as long."""
    address: int = array.__array_interface__["data"][0]
    return address


def job_struct(program: NativeProgram, **places: int) -> JobStruct:
    """Return a read as the loops take it: what its program says, and where chunks and output lie."""
    codec = program.codec
    return JobStruct(
        codec=codec.number,
        chunk_nbytes=program.chunk_nbytes,
        itemsize=program.placed.itemsize,
        packed_nbytes=program.packed_nbytes,
        n_stages=len(program.stages),
        out_itemsize=program.out_itemsize,
        area_nbytes=program.area_nbytes,
        decode=codec.decode,
        make_context=codec.make_context,
        free_context=codec.free_context,
        decode_part=codec.decode_part,
        restart=codec.restart,
        unshuffle=program.unshuffle,
        stages=ctypes.addressof(program.stages),
        steps=0 if program.steps is None else program.steps.address,
        **places,
    )


class NativeJob:
    """One read as the compiled loops take it.

    Parameters
    ----------
    loops : Loops
    program : NativeProgram
    pieces : sequence of AxisPieces
        Per axis of the output; none for points.
    strides : sequence of int
        Of the elements of a decoded chunk along these axes, in bytes.
    out : ndarray
    """

    def __init__(
        self,
        loops: Loops,
        program: NativeProgram,
        pieces: tuple[AxisPieces, ...],
        strides: tuple[int, ...],
        out: Array,
    ) -> None:
        self._loops = loops
        self.program = program
        first = [*accumulate((len(p.count) for p in pieces), initial=0)]
        columns = [*map(_first_elements, pieces), *(p.out_start for p in pieces), *(p.count for p in pieces)]
        table = np.concatenate([_NONE, *columns])
        index = [0 if p.index is None else address(p.index) for p in pieces]
        axes = (
            np.array([first[:-1], strides, [p.step for p in pieces], out.strides, index], np.int64) if pieces else _NONE
        )
        self._kept = table, axes, pieces, out
        at, length = address(axes), axes.strides[0]
        self._struct = job_struct(
            program,
            ndim=len(pieces),
            n_pieces=first[-1],
            pieces=address(table),
            first_piece=at,
            in_strides=at + length,
            every=at + 2 * length,
            out_strides=at + 3 * length,
            index=at + 4 * length if any(index) else 0,
            out=address(out),
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
    direct: Sequence[bool]
    """shape (n,): whether a chunk is wanted whole, and goes to one run of memory."""


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
        Encoded.
    """

    def __init__(self, job: NativeJob, given: Boxes | Points, nbytes: Column) -> None:
        n = len(nbytes)
        self._job = job
        numbers, flags = np.empty((3, n + 1), np.int64), np.zeros((2, n), np.uint8)
        self.src, self.nbytes, self._left = numbers[0], numbers[1], flags[1]
        numbers[1, :n], numbers[2] = nbytes, given.first
        boxes = in_at = out_at = _NONE
        if isinstance(given, Points):
            in_at, out_at = np.ascontiguousarray(given.in_at), np.ascontiguousarray(given.out_at)
        else:
            boxes = np.ascontiguousarray(given.numbers)
            flags[0] = given.direct if job.program.steps is None else 0
        self.is_direct: list[bool] = flags[0].astype(np.bool_).tolist()
        """Whether each chunk is decoded straight into the output."""
        self._kept = numbers, flags, boxes, in_at, out_at
        number, flag = address(numbers), address(flags)
        self._struct = RowsStruct(
            src=number,
            nbytes=number + numbers.strides[0],
            first_box=number + 2 * numbers.strides[0],
            direct=flag,
            boxes=address(boxes),
            left=flag + n,
            in_at=address(in_at) if isinstance(given, Points) else 0,
            out_at=address(out_at),
        )
        self._at = ctypes.addressof(self._struct)

    def __len__(self) -> int:
        return len(self._left)

    def needs_scratch(self, rows: range) -> bool:
        """Say whether any of these rows is decoded to scratch."""
        return bool(self._job.program.stages) or not all(self.is_direct[rows.start : rows.stop])

    def locate(self, chunks: Encoded) -> None:
        """Note where encoded chunks lie."""
        rows = slice(chunks.rows.start, chunks.rows.stop)
        self.src[rows], self.nbytes[rows] = chunks.located()

    def place(self, rows: range, scratch: int, n_threads: int) -> Sequence[int]:
        """Decode and place rows that were located.

        Parameters
        ----------
        rows : range
        scratch : int
            Address of the scratch of all threads; 0 where `needs_scratch` says no.
        n_threads : int

        Returns
        -------
        sequence of int
            Rows that were left.
        """
        if not self._job.place_rows(self._at, rows.start, rows.stop, scratch, n_threads):
            return ()
        return self._rows_that(rows, _LEFT)

    def read(self, rows: range, files: Files, memory: Callable[[int], Array], scratch: int, n_threads: int) -> Found:
        """Read, decode and place rows.

        Parameters
        ----------
        rows : range
        files : Files
            That hold them.
        memory : callable
            Given a length in bytes, returns memory for encoded chunks, uint8.
        scratch, n_threads : int
            As `place` takes them.
        """
        room = memory(files.room_nbytes * n_threads)
        struct = FilesStruct(
            paths=files.paths,
            path_at=0 if files.path_at is None else address(files.path_at),
            first_row=files.first_row,
            offset=0 if files.offset is None else address(files.offset),
            room=address(room),
            room_nbytes=files.room_nbytes,
            max_gap_nbytes=files.max_gap_nbytes,
        )
        if not self._job.read_rows(self._at, ctypes.addressof(struct), rows.start, rows.stop, scratch, n_threads):
            return Found(left=(), absent=(), n_read=struct.n_read)
        return Found(left=self._rows_that(rows, _LEFT), absent=self._rows_that(rows, _ABSENT), n_read=struct.n_read)

    def _rows_that(self, rows: range, became: int) -> Sequence[int]:
        found: list[int] = ((self._left[rows.start : rows.stop] == became).nonzero()[0] + rows.start).tolist()
        return found
