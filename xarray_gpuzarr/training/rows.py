"""`BlockRow`: parts of stored arrays one after another along an axis, as dask joins or sorts them into a block. Pure.

`join_rows` and `BlockRow.select` do to the selections what dask's tasks would do to the values. `cut_rows` turns the
rows of all blocks of an array into one grid of parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.training.parts import (
    AxisSelection,
    Part,
    Parts,
    UnresolvedError,
    as_range,
    join_parts,
    selected_elements,
)

INTERLEAVED = "elements of several arrays alternate in it"
"""Why a variable is not read in parts: some chunks would be read for several parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """Parts that follow each other along one axis of a block."""

    parts: tuple[Part, ...]
    axis: int = 0
    """The axis along which parts follow each other. It has no meaning if there is only one part."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block."""
        shape = list(self.parts[0].shape)
        if len(self.parts) > 1:
            shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    @property
    def ends(self) -> Column:
        """Position along `axis` at which each part ends, exclusive; shape (n_parts,)."""
        return np.cumsum([part.shape[self.axis] for part in self.parts])

    def select(self, axis: int, key: Any) -> Self:
        """Return what an integer, a slice or an array selects along an axis. An integer drops the axis.

        Raises
        ------
        UnresolvedError
            Elements of several parts would alternate in the result.
        """
        if len(self.parts) > 1 and axis == self.axis:
            return self._select_across_parts(key)
        parts = tuple(part.with_selection(axis, _select(part.selection(axis), key)) for part in self.parts)
        drops_earlier_axis = isinstance(key, int | np.integer) and axis < self.axis
        return type(self)(parts=parts, axis=self.axis - 1 if drops_earlier_axis else self.axis)

    def _select_across_parts(self, key: Any) -> Self:
        """Return what a key selects along the axis on which parts follow each other."""
        axis = self.axis
        selected = np.atleast_1d(np.asarray(selected_elements(key, self.shape[axis]), np.int64))
        part_numbers = np.searchsorted(self.ends, selected, side="right")
        # A run is a series of selected elements that are in the same part. Each part may have only one. If nothing is
        # selected, there is one empty run, which the first part gets.
        run_bounds = [0, *(np.flatnonzero(np.diff(part_numbers)) + 1).tolist(), len(selected)]
        n_runs = len(run_bounds) - 1
        if n_runs > max(1, len(np.unique(part_numbers))):
            raise UnresolvedError(INTERLEAVED)
        part_starts = self.ends - np.diff(self.ends, prepend=0)
        parts = []
        for start, stop in pairwise(run_bounds):
            part = self.parts[part_numbers[start] if stop > start else 0]
            index = selected[start:stop] - part_starts[part_numbers[start:stop]]
            if isinstance(key, int | np.integer):
                index = index[0]  # a single element, so that the axis is dropped
            parts.append(part.with_selection(axis, _select(part.selection(axis), index)))
        return type(self)(parts=tuple(parts), axis=axis)


def _select(selection: range | Column, key: Any) -> AxisSelection:
    """Return what a key selects of elements that are selected already."""
    if isinstance(key, slice):
        return selection[key]
    index = selected_elements(key, len(selection))
    if isinstance(index, int):
        return int(selection[index])
    index = np.asarray(index)
    if isinstance(selection, range):
        return as_range(selection.start + selection.step * index)
    return as_range(selection[index])


def join_rows(rows: Sequence[BlockRow], axis: int) -> BlockRow:
    """Return the row of the block that results if the blocks of several rows are joined along an axis.

    Raises
    ------
    UnresolvedError
        The blocks consist of several arrays along different axes, so that the result is a grid and not a row.
    """
    if all(len(row.parts) == 1 or row.axis == axis for row in rows):
        return BlockRow(parts=_merge([part for row in rows for part in row.parts], axis), axis=axis)
    # The rows run along another axis. They can be joined if their parts have the same lengths and arrays.
    first = rows[0]
    layouts = [(row.axis, row.ends.tolist()) for row in rows]
    if any(layout != layouts[0] for layout in layouts):
        raise UnresolvedError("dask joins blocks of several arrays")
    merged = [_merge(parts, axis) for parts in zip(*(row.parts for row in rows), strict=True)]
    if any(len(parts) > 1 for parts in merged):
        raise UnresolvedError("dask joins blocks of several arrays")
    return BlockRow(parts=tuple(parts[0] for parts in merged), axis=first.axis)


def _merge(parts: Sequence[Part], axis: int) -> tuple[Part, ...]:
    """Return parts that follow each other along an axis, with those neighbours joined that `can_join` each other."""
    run_bounds = [0]
    for number, (part, next_part) in enumerate(pairwise(parts), start=1):
        if not part.can_join(next_part, axis):
            run_bounds.append(number)
    run_bounds.append(len(parts))
    return tuple(join_parts(parts[start:stop], axis) for start, stop in pairwise(run_bounds))


def cut_rows(rows: npt.NDArray[Any], chunks: Sequence[Sequence[int]]) -> Parts:
    """Return the parts of all blocks of an array as one grid.

    Every block is cut wherever one of the blocks beside it has a border between two parts, so that the borders go
    through the whole array.

    Parameters
    ----------
    rows : numpy.ndarray of BlockRow objects
        One for each block, in a grid with the axes of the array.
    chunks : sequence of sequence of int
        For each axis, the lengths of the blocks in elements.
    """
    # For each axis, and for each block along it: the borders in that block.
    borders = [[{0, length} for length in lengths] for lengths in chunks]
    for block in product(*map(range, rows.shape)):
        row: BlockRow = rows[block]
        if len(row.parts) > 1:
            borders[row.axis][block[row.axis]].update(row.ends.tolist())
    # The same for the intervals between borders.
    intervals = [[_split_axis(block_borders) for block_borders in axis_borders] for axis_borders in borders]
    # For each axis: the number of each block's first interval, followed by the number of all intervals.
    first_intervals = [np.cumsum([0, *map(len, axis_intervals)]) for axis_intervals in intervals]
    parts = np.empty([axis_firsts[-1] for axis_firsts in first_intervals], object)
    for block in product(*map(range, rows.shape)):
        block_intervals = [axis_intervals[number] for axis_intervals, number in zip(intervals, block, strict=True)]
        origin = [axis_firsts[number] for axis_firsts, number in zip(first_intervals, block, strict=True)]
        _fill_grid(parts, origin, rows[block], block_intervals)
    bounds = []
    for axis_intervals in intervals:
        lengths = [interval.stop - interval.start for interval in chain.from_iterable(axis_intervals)]
        bounds.append(np.cumsum([0, *lengths]))
    return Parts(bounds=tuple(bounds), grid=parts)


def _split_axis(borders: set[int]) -> list[slice]:
    """Return the intervals between borders along an axis of a block; an empty one if the block has no elements."""
    return [slice(start, stop) for start, stop in pairwise(sorted(borders))] or [slice(0, 0)]


def _fill_grid(
    parts: npt.NDArray[Any], origin: Sequence[int], row: BlockRow, intervals: Sequence[Sequence[slice]]
) -> None:
    """Write the parts of a block, cut into intervals along each axis, to `parts` from the index `origin` on."""
    for position in product(*map(range, map(len, intervals))):
        selected = row
        for axis, number in enumerate(position):
            if len(intervals[axis]) > 1:
                selected = selected.select(axis, intervals[axis][number])
        # Borders between parts are borders of intervals, and dask joins no empty blocks, so this row has one part.
        parts[tuple(start + number for start, number in zip(origin, position, strict=True))] = selected.parts[0]
