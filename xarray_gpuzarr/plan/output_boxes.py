"""Where chunks go in an output that is filled box by box: what follows from the axes alone, worked out once a read.

Pure arithmetic on columns. Both decoders ask which chunks they may decode straight into the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.process.records import record

Flags = npt.NDArray[np.bool_]


@record
class Placement:
    """Where some chunks go; one row per chunk."""

    whole: Flags
    """shape (n,): every element of the stored chunk is wanted, in order."""
    contiguous: Flags
    """shape (n,): the box is one run of memory in a C-ordered output."""
    out_index: Column
    """shape (n,): flat position of the first element of the box in a C-ordered output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AxisPlaces:
    """Where the pieces of one axis go; columns have one row per piece."""

    out_index: Column
    """Elements of a C-ordered output before the first one of the piece."""
    is_whole: Flags
    """Whether every element of the stored chunk is wanted, in order."""
    are_whole: bool
    """Whether all are."""
    is_single: Flags
    """Whether it has one element."""
    is_full: Flags
    """Whether it is all there is of the output."""


class OutputBoxes:
    """Where the chunks of a box target go in a C-ordered output.

    Parameters
    ----------
    pieces : sequence of AxisPieces
        Of the target, per axis.
    chunk_shape : sequence of int
        Shape of a stored chunk.
    """

    def __init__(self, pieces: Sequence[AxisPieces], chunk_shape: Sequence[int]) -> None:
        self._axes: list[_AxisPlaces] = []
        stride = 1
        for axis_pieces, length in zip(reversed(pieces), reversed(chunk_shape), strict=True):
            count = axis_pieces.count
            is_whole = (count == length) & (axis_pieces.step == 1)
            axis = _AxisPlaces(
                out_index=axis_pieces.out_start * stride,
                is_whole=is_whole,
                are_whole=bool(is_whole.all()),
                is_single=count == 1,
                is_full=count == axis_pieces.length,
            )
            self._axes.insert(0, axis)
            stride *= axis_pieces.length

    @cached_property
    def may_be_runs(self) -> bool:
        """Whether any chunk may be wanted whole and go to one run of memory."""
        full = True
        for axis in reversed(self._axes):
            if not axis.is_whole.any() or not (full or axis.is_single.any()):
                return False
            full &= bool(axis.is_full.any())
        return True

    def place(self, row: Column) -> Placement:
        """Work out where chunks go.

        Parameters
        ----------
        row : int64, shape (n, ndim)
            Piece numbers of the chunks.
        """
        n = len(row)
        out_index: Column | int = 0
        whole: Flags | bool = True
        run: Flags | bool = True
        full: Flags | bool = True
        for number in range(len(self._axes) - 1, -1, -1):
            axis, pieces = self._axes[number], row[:, number]
            out_index = axis.out_index.take(pieces) + out_index
            if not axis.are_whole:
                whole = axis.is_whole.take(pieces) & whole
            # Behind an axis of which it has several elements, a run has all there is.
            if full is not True:
                run = run & (full | axis.is_single.take(pieces))
            full = full & axis.is_full.take(pieces)
        return Placement(whole=_column(whole, n), contiguous=_column(run, n), out_index=_column(out_index, n))


def _column(values: npt.NDArray[Any] | int, n: int) -> npt.NDArray[Any]:
    """Return a column of `n` rows."""
    return values if isinstance(values, np.ndarray) else np.full(n, values)
