"""The chunks of one plan as the compiled loops take them: decoded and placed in one call, without Python's lock.

Only what they know: one compressor or none, values that are copied, boxes with steps. All else, and every chunk that
they leave, is decoded as ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.encoded import Encoded
from xarray_gpuzarr.native import Loops, NativeCodec
from xarray_gpuzarr.native.library import JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.selection import Column

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


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
        self._loops, self.pieces, self.strides = loops, pieces, strides
        self.out_strides = out.strides
        stepped = [stride * p.step for stride, p in zip(strides, pieces, strict=True)]
        self._kept = np.array([stepped, out.strides], np.int64)
        at = self._kept.ctypes.data
        self._struct = JobStruct(
            codec=codec.number,
            chunk_nbytes=chunk_nbytes,
            itemsize=out.itemsize,
            ndim=out.ndim,
            in_strides=at,
            out_strides=at + self._kept.strides[0],
            out=out.ctypes.data,
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


class NativeRows:
    """The chunks of one plan, one row each, and the boxes that they give.

    Parameters
    ----------
    job : NativeJob
    boxes : int64, shape (n_boxes, ndim)
        Piece numbers, a chunk's boxes one after another.
    first_box : int64, shape (n + 1,)
        Of each chunk, and of the one behind the last.
    direct : bool, shape (n,)
        Whether a chunk may be decoded straight into the output.
    nbytes : int64, shape (n,)
        Encoded.
    """

    def __init__(self, job: NativeJob, boxes: Column, first_box: Column, direct: Flags, nbytes: Column) -> None:
        n, ndim = boxes.shape
        self._job = job
        self.src = np.zeros(len(nbytes), np.int64)
        self.nbytes = nbytes.copy()
        self._left = np.zeros(len(nbytes), np.uint8)
        columns: dict[str, Array] = {
            "src": self.src,
            "nbytes": self.nbytes,
            "first_box": np.ascontiguousarray(first_box),
            "direct": np.ascontiguousarray(direct),
            "in_at": np.zeros(n, np.int64),
            "out_at": np.zeros(n, np.int64),
            "extent": np.empty((n, ndim), np.int64),
            "left": self._left,
        }
        for axis, pieces in enumerate(job.pieces):
            numbers = boxes[:, axis]
            columns["in_at"] += (pieces.in_start * job.strides[axis]).take(numbers)
            columns["out_at"] += (pieces.out_start * job.out_strides[axis]).take(numbers)
            columns["extent"][:, axis] = pieces.count.take(numbers)
        self._columns = columns
        self._struct = RowsStruct(**{name: column.ctypes.data for name, column in columns.items()})
        self._at = ctypes.addressof(self._struct)

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
        left: list[int] = (self._left[rows.start : rows.stop].nonzero()[0] + rows.start).tolist()
        return left
