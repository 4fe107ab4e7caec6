"""Positions of chunks in an output that is filled by boxes.

`OutputBoxes` computes once for a read what depends on each axis alone, and combines it for any number of chunks, by
arithmetic on columns. The CUDA decoder uses it to find the chunks that it can decode straight into the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.process.records import Column, record

Flags = npt.NDArray[np.bool_]


@record
class Placement:
    """Positions of the boxes of some chunks in the output, one row for each box."""

    whole: Flags
    """Whether all elements of the stored chunk are requested, in order; shape (n,)."""
    contiguous: Flags
    """Whether the box that the chunk fills is contiguous in a C-ordered output; shape (n,)."""
    out_offset: Column
    """Offset of the first element of the box in the output, in bytes or in elements, as the strides that `OutputBoxes`
    was given; shape (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AxisPlacement:
    """Positions of the pieces of one axis. Columns have one row for each piece; a single value holds for all pieces."""

    out_offset: Column | int
    """Offset of the first element of the piece in the output, in bytes or in elements, as the strides."""
    is_whole: Flags | bool
    """Whether all elements of the stored chunk along the axis are requested, in order."""
    is_single: Flags | bool
    """Whether the piece has one element."""
    is_full: Flags | bool
    """Whether the piece fills the whole axis of the output."""


def _axis_placement(pieces: AxisPieces, chunk_length: int, stride: int) -> _AxisPlacement:
    return _AxisPlacement(
        out_offset=_shared(pieces.out_start * stride),
        is_whole=_shared((pieces.count == chunk_length) & (pieces.step == 1)),
        is_single=_shared(pieces.count == 1),
        is_full=_shared(pieces.count == pieces.length),
    )


def _shared(column: npt.NDArray[Any]) -> Any:
    """Return the value that all rows of a column have, or the column if they differ or there are none."""
    if not len(column):
        return column
    is_shared = len(column) == 1 or (column == column[0]).all()
    return column[0].item() if is_shared else column


def _any(column: Flags | bool) -> bool:  # noqa: FBT001  # a single value holds for all rows
    return column if isinstance(column, bool) else bool(column.any())


def _take(column: Any, rows: Column) -> Any:
    """Return some rows of a column; a single value as it is."""
    return column.take(rows) if isinstance(column, np.ndarray) else column


_cached_placement = lru_cache(maxsize=512)(_axis_placement)


class OutputBoxes:
    """Positions of the boxes of a target in an output. For a `StackTarget`, the first axis is that of samples.

    Parameters
    ----------
    pieces : sequence of AxisPieces
        Pieces along each axis.
    chunk_shape : sequence of int
        Shape of a stored chunk, with the length 1 along the axis of samples.
    strides : sequence of int
        Strides of the output, in bytes or in elements.
    """

    def __init__(self, pieces: Sequence[AxisPieces], chunk_shape: Sequence[int], strides: Sequence[int]) -> None:
        self._axes = [
            (_cached_placement if axis_pieces.is_cached else _axis_placement)(axis_pieces, length, stride)
            for axis_pieces, length, stride in zip(pieces, chunk_shape, strides, strict=True)
        ]

    @cached_property
    def may_be_contiguous(self) -> bool:
        """Whether some chunk may be requested as a whole and be contiguous in the output.

        The conditions of `place` are applied to each axis alone. True does not mean that a chunk fulfils all of them.
        """
        full = True  # whether some piece fills each of the later axes
        for axis in reversed(self._axes):
            if not _any(axis.is_whole) or not (full or _any(axis.is_single)):
                return False
            full = full and _any(axis.is_full)
        return True

    def place(self, piece_numbers: Column) -> Placement:
        """Return the positions of boxes, given their piece numbers along the axes: int64, shape (n, ndim)."""
        n = len(piece_numbers)
        out_offset: Column | int = 0
        whole: Flags | bool = True
        contiguous: Flags | bool = True
        full: Flags | bool = True  # whether each box fills the output along all later axes
        for number in range(len(self._axes) - 1, -1, -1):
            axis = self._axes[number]
            pieces = piece_numbers[:, number]
            out_offset = _take(axis.out_offset, pieces) + out_offset
            whole = _take(axis.is_whole, pieces) & whole
            # A contiguous box with several elements along an axis fills the output along all later axes.
            contiguous = contiguous & (full | _take(axis.is_single, pieces))
            full = full & _take(axis.is_full, pieces)
        return Placement(whole=_column(whole, n), contiguous=_column(contiguous, n), out_offset=_column(out_offset, n))


def _column(values: npt.NDArray[Any] | int, n: int) -> npt.NDArray[Any]:
    """Return an array unchanged, or a column of `n` rows with a single value."""
    return values if isinstance(values, np.ndarray) else np.full(n, values)
