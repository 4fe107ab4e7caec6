"""Stacks: crops of one array that are read together, each chunk once for all samples.

The output has an axis of samples before the axes of the array. A *box* is the part of a sample that lies in one chunk:
a row of piece numbers, with the number of the sample in front. `stack_target` sorts the boxes by chunk.
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
from xarray_gpuzarr.plan.axis_pieces import TOO_MANY_PIECES, AxisPieces, intersect_axis, strided_pieces
from xarray_gpuzarr.plan.points import chunk_numbers, run_starts, stable_order
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Crops:
    """Elements of each sample along one axis: evenly spaced, the same number for all, from a start of their own."""

    start: Column
    """First element of each sample, counted from the start of the axis; shape (n_samples,)."""
    count: int
    """Number of elements of each sample."""
    step: int = 1
    """Distance between elements, at least 1."""


StackAxis = slice | Column | Crops
"""Elements of the samples along one axis. The same for all samples: a slice with a positive step, or int64 of shape
(n,). Different ones: int64 of shape (n_samples, n), or `Crops`. Index arrays never decrease along a row."""


def sample_length(axis: StackAxis) -> int:
    """Return the number of elements of each sample along an axis. A slice must have a stop."""
    if isinstance(axis, Crops):
        return axis.count
    if isinstance(axis, slice):
        return len(range(axis.start or 0, axis.stop, axis.step or 1))
    return int(np.shape(axis)[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxGroups:
    """Boxes of the output, sorted by the chunks that they lie in."""

    chunk: Column
    """Coordinate of each group's chunk, shape (n_groups, ndim), sorted in C order."""
    bounds: Column
    """Boxes ``[bounds[i], bounds[i + 1])`` lie in chunk ``chunk[i]``; shape (n_groups + 1,)."""
    piece_numbers: Column
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

        `piece_numbers` are rows of `ReadPlan.all_piece_numbers`, here and below: the number of each chunk's group.
        """
        return self.groups.chunk.take(piece_numbers[:, 0], axis=0)

    def n_boxes(self, piece_numbers: Column) -> Column:
        """Return the number of boxes in each of some chunks, shape (n,)."""
        group = piece_numbers[:, 0]
        bounds = self.groups.bounds
        return bounds.take(group + 1) - bounds.take(group)

    def first_box(self, piece_numbers: Column) -> Column:
        """Return the first box in each of some chunks, as rows of `BoxGroups.piece_numbers`."""
        return self.groups.piece_numbers.take(self.groups.bounds.take(piece_numbers[:, 0]), axis=0)

    def boxes(self, piece_numbers: Column) -> Column:
        """Return all boxes in some chunks, chunk after chunk, as rows of `BoxGroups.piece_numbers`."""
        n_boxes = self.n_boxes(piece_numbers)
        first = self.groups.bounds.take(piece_numbers[:, 0])
        return self.groups.piece_numbers.take(_count_up(n_boxes) + first.repeat(n_boxes), axis=0)


def stack_target(axes: Sequence[StackAxis], n_samples: int, grid: ChunkGrid) -> StackTarget:
    """Cut crops of an array at the borders of the inner chunks, and sort the boxes by chunk.

    Parameters
    ----------
    axes : sequence of StackAxis
        Elements of the samples along each axis of the array. A sample has the values of ``array[np.ix_(...)]``.
    n_samples : int
        Number of samples.
    grid : ChunkGrid
        Chunks of the array.

    Raises
    ------
    SelectionError
        If an element lies outside the array (negative ones do not count from the end), if starts or indices are not
        integers or not given for each sample, if indices decrease, or if a count or step is not allowed.
    MemoryError
        If there are too many boxes to count.
    """
    cut_axes = [
        _cut_axis(axis, selected, n_samples, length, chunk_length)
        for axis, (selected, length, chunk_length) in enumerate(zip(axes, grid.shape, grid.chunk_shape, strict=True))
    ]
    piece_numbers = _box_piece_numbers(cut_axes, n_samples)
    chunk = np.empty((len(piece_numbers), len(cut_axes)), np.int64)
    for axis, (pieces, _) in enumerate(cut_axes):
        chunk[:, axis] = pieces.chunk.take(piece_numbers[:, 1 + axis])
    numbers = chunk_numbers(chunk, grid.n_chunks)
    order = stable_order(numbers)
    first = run_starts(numbers.take(order))
    groups = BoxGroups(
        chunk=chunk.take(order.take(first), axis=0),
        bounds=np.append(first, len(order)),
        piece_numbers=piece_numbers.take(order, axis=0),
    )
    return StackTarget(pieces=(_sample_pieces(n_samples), *(pieces for pieces, _ in cut_axes)), groups=groups)


def _sample_pieces(n_samples: int) -> AxisPieces:
    """Return the pieces along the axis of samples: each sample is one, as if it were a chunk."""
    sample = np.arange(n_samples, dtype=np.int64)
    zeros, ones = np.zeros_like(sample), np.ones_like(sample)
    return AxisPieces(chunk=sample, out_start=sample, count=ones, in_start=zeros, step=1, index=None, length=n_samples)


def _box_piece_numbers(axes: Sequence[_CutAxis], n_samples: int) -> Column:
    """Return all combinations of each sample's pieces, sample by sample in C order; see `BoxGroups.piece_numbers`."""
    n_pieces = [len(pieces.chunk) if n is None else n for pieces, n in axes]
    max_pieces = [n if isinstance(n, int) else int(n.max()) for n in n_pieces]
    _check_number(n_samples * math.prod(max_pieces), "boxes of a stack")
    n_boxes: Column = np.ones(n_samples, np.int64)
    for n in n_pieces:
        n_boxes = n_boxes * n
    sample = np.arange(n_samples, dtype=np.int64).repeat(n_boxes)
    piece_numbers = np.empty((len(sample), 1 + len(axes)), np.int64)
    piece_numbers[:, 0] = sample
    quotient = _count_up(n_boxes)  # number of each box in its sample, divided by the pieces of the later axes
    for axis in range(len(axes) - 1, -1, -1):
        n = n_pieces[axis]
        number: Column | int = 0
        if max_pieces[axis] > 1:
            quotient, number = np.divmod(quotient, n if isinstance(n, int) else n.take(sample))
        if not isinstance(n, int):  # the pieces of a sample follow those of the samples before it
            number = (n.cumsum() - n).take(sample) + number
        piece_numbers[:, 1 + axis] = number
    return piece_numbers


def _check_number(n: int, noun: str) -> None:
    """Raise `MemoryError` if there are too many boxes or pieces, as `noun` says, to make columns of them."""
    if n >= TOO_MANY_PIECES:
        raise MemoryError(f"{n} {noun}")


def _count_up(n: Column) -> Column:
    """Return the numbers ``0, 1, ... n[i] - 1`` for each i, one after another."""
    end = n.cumsum()
    numbers: Column = np.arange(end[-1] if len(n) else 0, dtype=np.int64) - (end - n).repeat(n)
    return numbers


_CutAxis = tuple[AxisPieces, Column | None]
"""Pieces along an axis of an array, and the number of pieces of each sample; None if all samples have the same
pieces."""


def _cut_axis(axis: int, selected: StackAxis, n_samples: int, length: int, chunk_length: int) -> _CutAxis:
    """Check the elements of the samples along an axis, and cut them at the borders of chunks."""
    if isinstance(selected, slice):
        if selected.step is not None and selected.step < 1:
            raise _bad_crops(f"{selected} on axis {axis}")
        return intersect_axis(selected, length, chunk_length), None
    if isinstance(selected, Crops):
        return _cut_crops(_checked_crops(selected, n_samples, axis, length), length, chunk_length)
    table = _checked_table(selected, n_samples, axis, length)
    count = table.shape[1]
    if count < 2:
        start = table[:, 0] if count else np.zeros(len(table), np.int64)
        return _cut_crops(Crops(start=start, count=count), length, chunk_length)
    steps = np.diff(table, axis=1)
    step = int(steps[0, 0]) if len(steps) else 1
    if step and (steps == step).all():
        return _cut_crops(Crops(start=table[:, 0], count=count, step=step), length, chunk_length)
    if len(table) > 1:
        return _cut_table(table, chunk_length)
    # All samples have the elements of the one row, or there is only one sample.
    return intersect_axis(table[0], length, chunk_length), None


def _checked_crops(crops: Crops, n_samples: int, axis: int, length: int) -> Crops:
    """Return crops whose elements all lie on an axis of the given length. Raises `SelectionError`."""
    start = np.asarray(crops.start)
    count = operator.index(crops.count)
    step = operator.index(crops.step)
    if start.shape != (n_samples,) or count < 0 or step < 1:
        starts = f"starts of shape {start.shape}, {count} elements each, {step} apart"
        raise _bad_crops(f"{starts}, on axis {axis}, for {n_samples} samples")
    if count:
        extent = (count - 1) * step
        start = _checked_index(start, axis, length, length - extent, f" and {extent} elements behind it")
    return Crops(start=start, count=count, step=step)


def _cut_crops(crops: Crops, length: int, chunk_length: int) -> _CutAxis:
    """Cut crops, whose elements all lie on the axis, at the borders of chunks."""
    start, count, step = crops.start, crops.count, crops.step
    if not count or not len(start):  # no pieces, but the output has an axis of the length `count`
        return replace(intersect_axis(slice(0, 0), length, chunk_length), length=count), None
    if (start == start[0]).all():
        first = int(start[0])
        return intersect_axis(slice(first, first + (count - 1) * step + 1, step), length, chunk_length), None
    extent = (count - 1) * step
    _check_number(len(start) * min(count, extent // chunk_length + 2), "pieces along an axis of a stack")
    if step > chunk_length:  # each element lies in a chunk of its own, and chunks between them hold none
        n = np.full(len(start), count)
        chunk = (start[:, None] + np.arange(count) * step).reshape(-1) // chunk_length
    else:
        first_chunk = start // chunk_length
        n = (start + extent) // chunk_length - first_chunk + 1
        chunk = first_chunk.repeat(n) + _count_up(n)
    return strided_pieces(start.repeat(n), count, step, chunk, chunk_length), n


def _cut_table(table: Column, chunk_length: int) -> tuple[AxisPieces, Column]:
    """Return the pieces of an index array of shape (n_samples, n), and the number of pieces of each sample."""
    n_samples, count = table.shape
    chunk = table // chunk_length
    is_first = np.ones(table.shape, np.bool_)
    np.not_equal(chunk[:, 1:], chunk[:, :-1], out=is_first[:, 1:])
    first = np.flatnonzero(is_first)
    index = (table - chunk * chunk_length).reshape(-1)
    pieces = AxisPieces(
        chunk=chunk.reshape(-1).take(first),
        out_start=first % count,
        count=np.diff(first, append=n_samples * count),
        in_start=index.take(first),
        step=0,
        index=index,
        index_start=first,
        length=count,
    )
    return pieces, np.count_nonzero(is_first, axis=1)


def _checked_table(selected: Column, n_samples: int, axis: int, length: int) -> Column:
    """Return an index array of shape (n_samples, n); of a single row if all samples have the same elements."""
    table = np.asarray(selected)
    if table.ndim == 1:
        table = table[None]
    elif table.ndim != 2 or len(table) != n_samples:
        raise _bad_crops(f"an index array of shape {table.shape} on axis {axis}, for {n_samples} samples")
    table = _checked_index(table, axis, length, length)
    if (table[:, 1:] < table[:, :-1]).any():
        raise _bad_crops(f"indices that decrease, on axis {axis}")
    return table


def _checked_index(index: npt.NDArray[Any], axis: int, length: int, end: int, suffix: str = "") -> Column:
    """Return indices as int64.

    Raises `SelectionError` unless all lie in ``[0, end)``; its message names the first other index, followed by
    `suffix`.
    """
    if index.size and index.dtype.kind not in "iu":
        raise _bad_crops(f"an index of dtype {index.dtype} on axis {axis}")
    is_outside = (index < 0) | (index >= max(0, end))
    if is_outside.any():
        raise _bad_crops(f"index {index[is_outside][0]}{suffix} on axis {axis} of length {length}")
    return index.astype(np.int64, copy=False)


def _bad_crops(found: str) -> SelectionError:
    return SelectionError(
        "the crops do not fit the array",
        tried="to stack crops of equal shape",
        found=found,
        do="give starts or indices inside the array, counted from its start, for each sample; indices never decrease",
    )
