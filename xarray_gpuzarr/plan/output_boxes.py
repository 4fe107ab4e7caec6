"""Where chunks go in an output that is filled box by box: what follows from the axes alone, worked out once a read.

Pure arithmetic on columns. The CUDA decoder asks which chunks it may decode straight into the result.
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
    """Where some chunks go; one row per chunk."""

    whole: Flags
    """shape (n,): every element of the stored chunk is wanted, in order."""
    contiguous: Flags
    """shape (n,): the box is one run of memory in a C-ordered output."""
    out_at: Column
    """shape (n,): where the first element of the box lies, in units of the strides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AxisPlaces:
    """Where the pieces of one axis go; columns have one row per piece, and are one value where all are the same."""

    out_at: Column | int
    """Where the first element of the piece lies, in units of the strides."""
    is_whole: Flags | bool
    """Whether every element of the stored chunk is wanted, in order."""
    is_single: Flags | bool
    """Whether it has one element."""
    is_full: Flags | bool
    """Whether it is all there is of the output."""


def _axis_places(pieces: AxisPieces, chunk_length: int, stride: int) -> _AxisPlaces:
    return _AxisPlaces(
        out_at=_shared(pieces.out_start * stride),
        is_whole=_shared((pieces.count == chunk_length) & (pieces.step == 1)),
        is_single=_shared(pieces.count == 1),
        is_full=_shared(pieces.count == pieces.length),
    )


def _shared(column: npt.NDArray[Any]) -> Any:
    """Return the value that all of a column are, or the column."""
    return column[0].item() if len(column) and (len(column) == 1 or (column == column[0]).all()) else column


def _any(column: Flags | bool) -> bool:  # noqa: FBT001  # a value that all rows have
    return column if isinstance(column, bool) else bool(column.any())


def _taken(column: Any, rows: Column) -> Any:
    return column.take(rows) if isinstance(column, np.ndarray) else column


_kept_places = lru_cache(maxsize=512)(_axis_places)


class OutputBoxes:
    """Where the chunks of a box target, given its pieces per axis, go in an output.

    `chunk_shape` is that of a stored chunk; `strides` are the output's, in bytes or in elements.
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
            if not _any(axis.is_whole) or not (full or _any(axis.is_single)):
                return False
            full = full and _any(axis.is_full)
        return True

    def place(self, row: Column) -> Placement:
        """Work out where chunks go, given their piece numbers: int64, shape (n, ndim)."""
        n = len(row)
        out_at: Column | int = 0
        whole: Flags | bool = True
        run: Flags | bool = True
        full: Flags | bool = True
        for number in range(len(self._axes) - 1, -1, -1):
            axis, pieces = self._axes[number], row[:, number]
            out_at = _taken(axis.out_at, pieces) + out_at
            whole = _taken(axis.is_whole, pieces) & whole
            # Behind an axis of which it has several elements, a run has all there is.
            run = run & (full | _taken(axis.is_single, pieces))
            full = full & _taken(axis.is_full, pieces)
        return Placement(whole=_column(whole, n), contiguous=_column(run, n), out_at=_column(out_at, n))


def _column(values: npt.NDArray[Any] | int, n: int) -> npt.NDArray[Any]:
    """Return a column of `n` rows."""
    return values if isinstance(values, np.ndarray) else np.full(n, values)
