"""Stacks: crops of one array that are read together, each chunk once for all samples.

The output has an axis of samples before the axes of the array. A *box* is the part of a sample that lies in one chunk.
A row of numbers describes it: the number of the sample, and a piece number along each axis of the array (see
`axis_pieces`). `stack_target` sorts the boxes by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xarray_gpuzarr.plan.axis_pieces import TOO_MANY_PIECES, AxisPieces, intersect_axis, strided_pieces
from xarray_gpuzarr.plan.crops import Crops, StackAxis, bad_crops, checked_crops, checked_table
from xarray_gpuzarr.plan.points import chunk_numbers, run_starts, stable_order
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

_CutAxis = tuple[AxisPieces, Column | None]
"""Pieces along an axis of an array, and the number of pieces of each sample; None if all samples have the same
pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxGroups:
    """Boxes of the output, sorted by the chunks that they lie in."""

    chunk: Column
    """Coordinate of each group's chunk, shape (n_groups, ndim), sorted in C order."""
    bounds: Column
    """Boxes ``[bounds[i], bounds[i + 1])`` lie in chunk ``chunk[i]``; shape (n_groups + 1,)."""
    boxes: Column
    """Sample of each box, and its piece number along each axis of the array; shape (n_boxes, 1 + ndim)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTarget:
    """An output with a leading axis of samples, of which a chunk may fill several boxes."""

    pieces: tuple[AxisPieces, ...]
    """Pieces along the axis of samples, one for each sample; then, for each axis of the array, the pieces of all
    samples."""
    groups: BoxGroups
    """Boxes, sorted by chunk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return tuple(axis_pieces.length for axis_pieces in self.pieces)

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks that the target touches, whether they are stored or not."""
        return len(self.groups.chunk)

    def chunk_coordinates(self, piece_numbers: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape (n, ndim).

        Here and below, `piece_numbers` are rows of `ReadPlan.all_piece_numbers`, shape (n, 1). For a stack, these are
        no piece numbers, but the number of each chunk's group in `groups`.
        """
        group = piece_numbers[:, 0]
        return self.groups.chunk.take(group, axis=0)

    def n_boxes(self, piece_numbers: Column) -> Column:
        """Return the number of boxes in each of some chunks, shape (n,)."""
        group = piece_numbers[:, 0]
        bounds = self.groups.bounds
        return bounds.take(group + 1) - bounds.take(group)

    def first_box(self, piece_numbers: Column) -> Column:
        """Return the first box in each of some chunks, as rows of `BoxGroups.boxes`."""
        group = piece_numbers[:, 0]
        return self.groups.boxes.take(self.groups.bounds.take(group), axis=0)

    def boxes(self, piece_numbers: Column) -> Column:
        """Return all boxes in some chunks, chunk after chunk, as rows of `BoxGroups.boxes`."""
        group = piece_numbers[:, 0]
        n_boxes = self.n_boxes(piece_numbers)
        first = self.groups.bounds.take(group)
        return self.groups.boxes.take(_count_up(n_boxes) + first.repeat(n_boxes), axis=0)


def stack_target(axes: Sequence[StackAxis], n_samples: int, grid: ChunkGrid) -> StackTarget:
    """Cut crops of an array at the borders of the inner chunks, and sort the boxes by chunk.

    Parameters
    ----------
    axes : sequence of StackAxis
        Elements of the samples along each axis of the array. A sample is ``array[np.ix_(...)]`` of its elements.
    n_samples : int
        Number of samples.
    grid : ChunkGrid
        Chunks of the array.

    Raises
    ------
    SelectionError
        If a start or index is not an integer, or lies outside the array (negative ones do not count from the end); if
        there are not as many starts, or rows of a 2-D index, as samples; if indices decrease; if a count is negative;
        if a step is less than 1. Slices that reach beyond the array are cut off, as in NumPy.
    MemoryError
        If there are too many boxes or pieces to make columns of them.
    """
    cut_axes = [
        _cut_axis(axis, selected, n_samples, length, chunk_length)
        for axis, (selected, length, chunk_length) in enumerate(zip(axes, grid.shape, grid.chunk_shape, strict=True))
    ]
    boxes = _boxes(cut_axes, n_samples)
    chunk = np.empty((len(boxes), len(cut_axes)), np.int64)
    for axis, (pieces, _) in enumerate(cut_axes):
        chunk[:, axis] = pieces.chunk.take(boxes[:, 1 + axis])
    numbers = chunk_numbers(chunk, grid.n_chunks)
    order = stable_order(numbers)
    first = run_starts(numbers.take(order))
    groups = BoxGroups(
        chunk=chunk.take(order.take(first), axis=0),
        bounds=np.append(first, len(order)),
        boxes=boxes.take(order, axis=0),
    )
    return StackTarget(pieces=(_sample_pieces(n_samples), *(pieces for pieces, _ in cut_axes)), groups=groups)


def _sample_pieces(n_samples: int) -> AxisPieces:
    """Return the pieces along the axis of samples: each sample is one, as if it were a chunk."""
    sample = np.arange(n_samples, dtype=np.int64)
    zeros, ones = np.zeros_like(sample), np.ones_like(sample)
    return AxisPieces(chunk=sample, out_start=sample, count=ones, in_start=zeros, step=1, index=None, length=n_samples)


def _boxes(axes: Sequence[_CutAxis], n_samples: int) -> Column:
    """Return all combinations of each sample's pieces, sample by sample in C order; see `BoxGroups.boxes`."""
    # For each axis, the number of pieces of a sample: a number if it is the same for all samples, else a column.
    n_pieces = [len(pieces.chunk) if n is None else n for pieces, n in axes]
    max_pieces = [n if isinstance(n, int) else int(n.max()) for n in n_pieces]
    _check_number(n_samples * math.prod(max_pieces), "boxes of a stack")
    n_boxes: Column = np.ones(n_samples, np.int64)
    for n in n_pieces:
        n_boxes = n_boxes * n
    sample = np.arange(n_samples, dtype=np.int64).repeat(n_boxes)
    boxes = np.empty((len(sample), 1 + len(axes)), np.int64)
    boxes[:, 0] = sample
    # The number of each box in its sample has the piece numbers as digits, whose bases are `n_pieces`. The loop finds
    # them, from the last axis to the first.
    quotient = _count_up(n_boxes)
    for axis in range(len(axes) - 1, -1, -1):
        n = n_pieces[axis]
        number: Column | int = 0
        if max_pieces[axis] > 1:
            base = n if isinstance(n, int) else n.take(sample)
            quotient, number = np.divmod(quotient, base)
        if not isinstance(n, int):  # the pieces of a sample follow those of the samples before it
            number = (n.cumsum() - n).take(sample) + number
        boxes[:, 1 + axis] = number
    return boxes


def _check_number(n: int, noun: str) -> None:
    """Raise `MemoryError` if there are too many boxes or pieces, as `noun` says, to make columns of them."""
    if n >= TOO_MANY_PIECES:
        raise MemoryError(f"{n} {noun}")


def _count_up(n: Column) -> Column:
    """Return the numbers ``0, 1, ... n[i] - 1`` for each i, all in one column."""
    end = n.cumsum()
    numbers: Column = np.arange(end[-1] if len(n) else 0, dtype=np.int64) - (end - n).repeat(n)
    return numbers


def _cut_axis(axis: int, selected: StackAxis, n_samples: int, length: int, chunk_length: int) -> _CutAxis:
    """Check the elements of the samples along an axis, and cut them at the borders of chunks."""
    if isinstance(selected, slice):
        if selected.step is not None and selected.step < 1:
            raise bad_crops(f"{selected} on axis {axis}")
        return intersect_axis(selected, length, chunk_length), None
    if isinstance(selected, Crops):
        return _cut_crops(checked_crops(selected, n_samples, axis, length), length, chunk_length)
    table = checked_table(selected, n_samples, axis, length)
    count = table.shape[1]
    if count < 2:  # there is no distance between elements
        start = table[:, 0] if count else np.zeros(len(table), np.int64)
        return _cut_crops(Crops(start=start, count=count), length, chunk_length)
    steps = np.diff(table, axis=1)
    step = int(steps[0, 0]) if len(steps) else 1  # without samples, any step will do
    if step and (steps == step).all():  # `Crops` have no step 0, which repeats one index
        return _cut_crops(Crops(start=table[:, 0], count=count, step=step), length, chunk_length)
    if len(table) > 1:
        return _cut_table(table, chunk_length)
    # The table has one row: a 1-D index that all samples share, or the index of the only sample.
    return intersect_axis(table[0], length, chunk_length), None


def _cut_crops(crops: Crops, length: int, chunk_length: int) -> _CutAxis:
    """Cut crops, whose elements all lie on the axis, at the borders of chunks."""
    start, count, step = crops.start, crops.count, crops.step
    if not count or not len(start):  # no pieces, but the output has an axis of the length `count`
        return replace(intersect_axis(slice(0, 0), length, chunk_length), length=count), None
    if (start == start[0]).all():
        first = int(start[0])
        return intersect_axis(slice(first, first + (count - 1) * step + 1, step), length, chunk_length), None
    extent = (count - 1) * step
    # An upper bound for one sample: its last element lies `extent` behind its first one.
    max_pieces = min(count, extent // chunk_length + 2)
    _check_number(len(start) * max_pieces, "pieces along an axis of a stack")
    if step > chunk_length:  # each element lies in a chunk of its own, and chunks between them hold none
        n = np.full(len(start), count)
        chunk = (start[:, None] + np.arange(count) * step).reshape(-1) // chunk_length
    else:
        first_chunk = start // chunk_length
        n = (start + extent) // chunk_length - first_chunk + 1
        chunk = first_chunk.repeat(n) + _count_up(n)
    return strided_pieces(start.repeat(n), count, step, chunk, chunk_length), n


def _cut_table(table: Column, chunk_length: int) -> tuple[AxisPieces, Column]:
    """Return the pieces of an index array of shape (n_samples, n_elements), and the number of pieces of each sample."""
    n_samples, n_elements = table.shape
    chunk = table // chunk_length
    is_first = np.ones(table.shape, np.bool_)
    np.not_equal(chunk[:, 1:], chunk[:, :-1], out=is_first[:, 1:])
    first = np.flatnonzero(is_first)
    index = (table - chunk * chunk_length).reshape(-1)
    pieces = AxisPieces(
        chunk=chunk.reshape(-1).take(first),
        out_start=first % n_elements,
        count=np.diff(first, append=n_samples * n_elements),
        in_start=index.take(first),
        step=0,  # `index` lists the elements
        index=index,
        index_start=first,
        length=n_elements,
    )
    return pieces, np.count_nonzero(is_first, axis=1)
