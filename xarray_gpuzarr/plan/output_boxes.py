"""Where chunks go in an output that is filled box by box: what follows from the axes alone, worked out once a read.

Pure arithmetic on columns. Both decoders ask which chunks they may decode straight into the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
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
    out_at: Column
    """shape (n,): where the first element of the box lies, in units of the strides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AxisPlaces:
    """Where the pieces of one axis go; columns have one row per piece."""

    out_at: Column
    """Where the first element of the piece lies, in units of the strides."""
    is_whole: Flags
    """Whether every element of the stored chunk is wanted, in order."""
    are_whole: bool
    """Whether all are."""
    is_single: Flags
    """Whether it has one element."""
    is_full: Flags
    """Whether it is all there is of the output."""


def _axis_places(pieces: AxisPieces, chunk_length: int, stride: int) -> _AxisPlaces:
    is_whole = (pieces.count == chunk_length) & (pieces.step == 1)
    return _AxisPlaces(
        out_at=pieces.out_start * stride,
        is_whole=is_whole,
        are_whole=bool(is_whole.all()),
        is_single=pieces.count == 1,
        is_full=pieces.count == pieces.length,
    )


_kept_places = lru_cache(maxsize=512)(_axis_places)


class OutputBoxes:
    """Where the chunks of a box target go in an output.

    Parameters
    ----------
    pieces : sequence of AxisPieces
        Of the target, per axis.
    chunk_shape : sequence of int
        Shape of a stored chunk.
    strides : sequence of int
        Of the output, in bytes or in elements.
    """

    def __init__(self, pieces: Sequence[AxisPieces], chunk_shape: Sequence[int], strides: Sequence[int]) -> None:
        self._axes = [
            (_kept_places if axis_pieces.are_kept else _axis_places)(axis_pieces, length, stride)
            for axis_pieces, length, stride in zip(pieces, chunk_shape, strides, strict=True)
        ]

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
        out_at: Column | int = 0
        whole: Flags | bool = True
        run: Flags | bool = True
        full: Flags | bool = True
        for number in range(len(self._axes) - 1, -1, -1):
            axis, pieces = self._axes[number], row[:, number]
            out_at = axis.out_at.take(pieces) + out_at
            if not axis.are_whole:
                whole = axis.is_whole.take(pieces) & whole
            # Behind an axis of which it has several elements, a run has all there is.
            if full is not True:
                run = run & (full | axis.is_single.take(pieces))
            full = full & axis.is_full.take(pieces)
        return Placement(whole=_column(whole, n), contiguous=_column(run, n), out_at=_column(out_at, n))


def _column(values: npt.NDArray[Any] | int, n: int) -> npt.NDArray[Any]:
    """Return a column of `n` rows."""
    return values if isinstance(values, np.ndarray) else np.full(n, values)
