"""Crops of one array, stacked: every chunk that any of them touches is planned once, with all the boxes that it gives.

The output has an axis of samples before those of the array. A box is a row of piece numbers as for a single crop, with
the number of its sample in front; boxes are sorted by the chunk that gives them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import SelectionError
from xarray_gpuzarr.plan.axis_pieces import MOST_PIECES, AxisPieces, intersect_axis, strided_pieces
from xarray_gpuzarr.plan.points import first_of_each, numbered, sorting
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Crops:
    """Elements that samples want along one axis: as many each, evenly spaced, from starts of their own."""

    start: Column
    """shape (n_samples,): first wanted element, counted from the start of the axis."""
    count: int
    """Elements that each sample wants."""
    step: int = 1
    """Distance between wanted elements, at least 1."""


StackAxis = slice | Column | Crops
"""Selection of the samples along one axis: a slice with a positive step, or int64 of shape (n,), for all samples; int64
of shape (n_samples, n), a row for each; or `Crops`. Index arrays never decrease along a row."""


def n_wanted(axis: StackAxis) -> int:
    """Return how many elements each sample wants along an axis; the slices of samples have a start and a stop."""
    if isinstance(axis, Crops):
        return axis.count
    if isinstance(axis, slice):
        return len(range(axis.start or 0, axis.stop, axis.step or 1))
    return int(np.shape(axis)[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxGroups:
    """Boxes of the output, sorted by the chunk that gives them."""

    chunk: Column
    """shape (n_groups, ndim): chunk coordinate of each group, in C order."""
    bounds: Column
    """shape (n_groups + 1,): boxes ``[bounds[i], bounds[i + 1])`` come from chunk ``chunk[i]``."""
    row: Column
    """shape (n_boxes, 1 + ndim): sample of each box, and its piece number per axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTarget:
    """An output with a leading axis of samples, to which a chunk may give several boxes."""

    pieces: tuple[AxisPieces, ...]
    """Along the axis of samples, which is as if cut into chunks of one; then per axis, those of all samples."""
    groups: BoxGroups

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return tuple(p.length for p in self.pieces)

    @property
    def n_chunks(self) -> int:
        """Inner chunks that it touches, whether they are stored or not."""
        return len(self.groups.chunk)

    def chunk(self, row: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape (n, ndim)."""
        return self.groups.chunk.take(row[:, 0], axis=0)

    def n_boxes(self, row: Column) -> Column:
        """Return how many boxes chunks give, shape (n,)."""
        group, bounds = row[:, 0], self.groups.bounds
        return bounds.take(group + 1) - bounds.take(group)

    def first_box(self, row: Column) -> Column:
        """Return the first box of each of some chunks, as rows of `BoxGroups.row`."""
        return self.groups.row.take(self.groups.bounds.take(row[:, 0]), axis=0)

    def boxes(self, row: Column) -> Column:
        """Return all boxes of some chunks, one chunk's after another's, as rows of `BoxGroups.row`."""
        n, after = self.n_boxes(row), self.groups.bounds.take(row[:, 0] + 1)
        return self.groups.row.take(_counted(n) + (after - n).repeat(n), axis=0)


def stack_target(axes: Sequence[StackAxis], n_samples: int, grid: ChunkGrid) -> StackTarget:
    """Cut crops of an array at the borders of the inner chunks, and sort what chunks give by chunk.

    `axes` are those of the array; sample ``b`` of the output is what NumPy's ``array[np.ix_(...)]`` gives for its
    elements along each axis.

    Raises `SelectionError` if a wanted element lies outside the array (elements are counted from the start of their
    axis only), or starts or index arrays are not of integers, not one for each sample, or decrease; `MemoryError` for
    more boxes than can be counted.
    """
    cut_axes = [
        _cut_axis(axis, selected, n_samples, (length, chunk_length))
        for axis, (selected, length, chunk_length) in enumerate(zip(axes, grid.shape, grid.chunk_shape, strict=True))
    ]
    row = _box_rows(cut_axes, n_samples)
    chunk = np.empty((len(row), len(cut_axes)), np.int64)
    for axis, (pieces, _) in enumerate(cut_axes):
        chunk[:, axis] = pieces.chunk.take(row[:, 1 + axis])
    number = numbered(chunk, grid.n_chunks)
    order = sorting(number)
    first = first_of_each(number.take(order))
    each = np.arange(n_samples, dtype=np.int64)
    zeros, ones = np.zeros_like(each), np.ones_like(each)
    samples = AxisPieces(chunk=each, out_start=each, count=ones, in_start=zeros, step=1, index=None, length=n_samples)
    chunk, row, bounds = chunk.take(order.take(first), axis=0), row.take(order, axis=0), np.append(first, len(order))
    groups = BoxGroups(chunk=chunk, bounds=bounds, row=row)
    return StackTarget(pieces=(samples, *(pieces for pieces, _ in cut_axes)), groups=groups)


def _box_rows(axes: Sequence[tuple[AxisPieces, Column | None]], n_samples: int) -> Column:
    """Return all combinations of each sample's pieces, shape (n_boxes, 1 + ndim), sample by sample in C order.

    `axes` has the pieces along each axis, and how many of them each sample has; None where all have all of them.
    """
    n_pieces = [len(pieces.chunk) if n is None else n for pieces, n in axes]
    most = [n if isinstance(n, int) else int(n.max()) for n in n_pieces]
    _check_number(n_samples * math.prod(most), "boxes of a stack")
    n_boxes: Column = np.ones(n_samples, np.int64)
    for n in n_pieces:
        n_boxes = n_boxes * n
    sample = np.arange(n_samples, dtype=np.int64).repeat(n_boxes)
    row = np.empty((len(sample), 1 + len(axes)), np.int64)
    row[:, 0], quotient = sample, _counted(n_boxes)
    for axis in range(len(axes) - 1, -1, -1):
        n = n_pieces[axis]
        number: Column | int = 0
        if most[axis] > 1:
            quotient, number = np.divmod(quotient, n if isinstance(n, int) else n.take(sample))
        row[:, 1 + axis] = number if isinstance(n, int) else (n.cumsum() - n).take(sample) + number
    return row


def _check_number(n: int, what: str) -> None:
    if n >= MOST_PIECES:
        raise MemoryError(f"{n} {what}")


def _counted(n: Column) -> Column:
    """Return ``0, 1, ... n[i] - 1`` for each i, side by side."""
    after = n.cumsum()
    numbers: Column = np.arange(after[-1] if len(n) else 0, dtype=np.int64) - (after - n).repeat(n)
    return numbers


def _cut_axis(
    axis: int, selected: StackAxis, n_samples: int, lengths: tuple[int, int]
) -> tuple[AxisPieces, Column | None]:
    """Return the pieces along an axis of an array, and how many each sample has; None if all have all of them.

    `lengths` are those of the axis and of a chunk along it.
    """
    length, chunk_length = lengths
    if isinstance(selected, slice):
        if selected.step is not None and selected.step < 1:
            raise _bad(f"{selected} on axis {axis}")
        return intersect_axis(selected, length, chunk_length), None
    if isinstance(selected, Crops):
        start, count, step = np.asarray(selected.start), operator.index(selected.count), operator.index(selected.step)
        if start.shape != (n_samples,) or count < 0 or step < 1:
            starts = f"starts of shape {start.shape}, {count} elements each, {step} apart"
            raise _bad(f"{starts}, on axis {axis}, for {n_samples} samples")
        if count:
            span = (count - 1) * step
            start = _inside(start, axis, length, length - span, f" and {span} elements behind it")
        return _cut_crops(Crops(start=start, count=count, step=step), length, chunk_length)
    table = _checked_table(selected, n_samples, axis, length)
    count = table.shape[1]
    if count < 2:
        start = table[:, 0] if count else np.zeros(len(table), np.int64)
        return _cut_crops(Crops(start=start, count=count), length, chunk_length)
    steps = np.diff(table, axis=1)
    step = int(steps[0, 0]) if len(steps) else 1
    if step and (steps == step).all():
        return _cut_crops(Crops(start=table[:, 0], count=count, step=step), length, chunk_length)
    return _cut_table(table, chunk_length) if len(table) > 1 else (intersect_axis(table[0], length, chunk_length), None)


def _cut_crops(crops: Crops, length: int, chunk_length: int) -> tuple[AxisPieces, Column | None]:
    start, count, step = crops.start, crops.count, crops.step
    if not count or not len(start):
        return replace(intersect_axis(slice(0, 0), length, chunk_length), length=count), None
    if (start == start[0]).all():
        begin = int(start[0])
        return intersect_axis(slice(begin, begin + (count - 1) * step + 1, step), length, chunk_length), None
    span = (count - 1) * step
    _check_number(len(start) * min(count, span // chunk_length + 2), "pieces along an axis of a stack")
    if step > chunk_length:  # then each element has a chunk of its own, and others between them hold none
        n = np.full(len(start), count)
        chunk = (start[:, None] + np.arange(count) * step).reshape(-1) // chunk_length
    else:
        lowest = start // chunk_length
        n = (start + span) // chunk_length - lowest + 1
        chunk = lowest.repeat(n) + _counted(n)
    return strided_pieces(start.repeat(n), count, step, chunk, chunk_length), n


def _cut_table(table: Column, chunk_length: int) -> tuple[AxisPieces, Column]:
    n_samples, count = table.shape
    chunk_of = table // chunk_length
    is_first = np.ones(table.shape, np.bool_)
    np.not_equal(chunk_of[:, 1:], chunk_of[:, :-1], out=is_first[:, 1:])
    first = np.flatnonzero(is_first)
    index = (table - chunk_of * chunk_length).reshape(-1)
    chunk, at, in_start = chunk_of.reshape(-1).take(first), first % count, index.take(first)
    counts = np.diff(first, append=n_samples * count)
    pieces = AxisPieces(
        chunk=chunk, out_start=at, count=counts, in_start=in_start, step=0, index=index, index_start=first, length=count
    )
    return pieces, np.count_nonzero(is_first, axis=1)


def _checked_table(selected: Column, n_samples: int, axis: int, length: int) -> Column:
    """Return an index array as a table, of a single row if that is for all samples."""
    table = np.asarray(selected)
    if table.ndim == 1:
        table = table[None]
    elif table.ndim != 2 or len(table) != n_samples:
        raise _bad(f"an index array of shape {table.shape} on axis {axis}, for {n_samples} samples")
    table = _inside(table, axis, length, length)
    if (table[:, 1:] < table[:, :-1]).any():
        raise _bad(f"indices that decrease, on axis {axis}")
    return table


def _inside(at: npt.NDArray[Any], axis: int, length: int, end: int, behind: str = "") -> Column:
    """Return indices, all of them in ``[0, end)``."""
    if at.size and at.dtype.kind not in "iu":
        raise _bad(f"an index of dtype {at.dtype} on axis {axis}")
    outside = (at < 0) | (at >= max(0, end))
    if outside.any():
        raise _bad(f"index {at[outside][0]}{behind} on axis {axis} of length {length}")
    return at.astype(np.int64, copy=False)


def _bad(found: str) -> SelectionError:
    return SelectionError(
        "the crops do not fit the array",
        tried="to stack crops of equal shape",
        found=found,
        do="give starts or indices inside the array, counted from its start, for each sample; indices never decrease",
    )
