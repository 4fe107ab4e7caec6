"""The chunks of one plan as the compiled loops take them: decoded and placed in one call, without Python's lock.

Chunks of local files that are in the page cache are read in the same call, each by the thread that decodes it.
Only what they know: one compressor or none, values that are copied, boxes with steps. All else, and every chunk that
they leave, is decoded as ever.
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
from xarray_gpuzarr.native import Loops, NativeCodec
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


def address(array: Array) -> int:
    """Return where an array lies; `ndarray.ctypes` takes three times as long."""
    address: int = array.__array_interface__["data"][0]
    return address


class NativeJob:
    """One read as the compiled loops take it.

    Parameters
    ----------
    loops : Loops
    codec : NativeCodec
    pieces : sequence of AxisPieces
        Per axis of the output; none with an index.
    strides : sequence of int
        Of the elements of a decoded chunk along these axes, in bytes.
    chunk_nbytes : int
        Of a decoded chunk.
    out : ndarray
    """

    def __init__(
        self,
        loops: Loops,
        codec: NativeCodec,
        pieces: tuple[AxisPieces, ...],
        strides: tuple[int, ...],
        chunk_nbytes: int,
        out: Array,
    ) -> None:
        self._loops = loops
        first = [*accumulate((len(p.count) for p in pieces), initial=0)]
        columns = ("in_start", "out_start", "count")
        table = np.concatenate([getattr(p, name) for name in columns for p in pieces], dtype=np.int64)
        axes = np.array([first[:-1], strides, [p.step for p in pieces], out.strides], np.int64)
        self._kept = table, axes
        at = address(axes)
        self._struct = JobStruct(
            codec=codec.number,
            chunk_nbytes=chunk_nbytes,
            itemsize=out.itemsize,
            ndim=out.ndim,
            n_pieces=first[-1],
            pieces=address(table),
            first_piece=at,
            in_strides=at + axes.strides[0],
            steps=at + 2 * axes.strides[0],
            out_strides=at + 3 * axes.strides[0],
            out=address(out),
            decode=codec.decode,
            make_context=codec.make_context,
            free_context=codec.free_context,
            decode_part=codec.decode_part,
            restart=codec.restart,
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


class NativeRows:
    """The chunks of one plan, one row each, and the boxes that they give.

    Parameters
    ----------
    job : NativeJob
    boxes : int64, shape (n_boxes, ndim)
        Piece numbers, a chunk's boxes one after another.
    first_box : int64, shape (n + 1,)
        Of each chunk, and of the one behind the last.
    direct : sequence of bool, shape (n,)
        Whether a chunk may be decoded straight into the output.
    nbytes : int64, shape (n,)
        Encoded.
    """

    def __init__(
        self, job: NativeJob, boxes: Column, first_box: Column, direct: Sequence[bool], nbytes: Column
    ) -> None:
        n = len(nbytes)
        self._job = job
        numbers, flags, boxes = np.empty((3, n + 1), np.int64), np.empty((2, n), np.uint8), np.ascontiguousarray(boxes)
        self.src, self.nbytes, self._left = numbers[0], numbers[1], flags[1]
        numbers[1, :n], numbers[2], flags[0] = nbytes, first_box, direct
        self._kept = numbers, flags, boxes
        number, flag = address(numbers), address(flags)
        self._struct = RowsStruct(
            src=number,
            nbytes=number + numbers.strides[0],
            first_box=number + 2 * numbers.strides[0],
            direct=flag,
            boxes=address(boxes),
            left=flag + n,
        )
        self._at = ctypes.addressof(self._struct)

    def __len__(self) -> int:
        return len(self._left)

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
            Address of a decoded chunk for each thread; 0 where all rows are direct.
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
