"""`Part` and `Parts`: the selections of stored arrays that a variable is made of. No I/O.

A variable that was opened from one store is a single `Part`. One that was joined from several stores, as by
`xarray.open_mfdataset`, is a grid of parts, which `Parts` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from xarray.core import indexing

from xarray_gpuzarr.backend.lazy_array import LazyArray, find_lazy_array
from xarray_gpuzarr.process.records import Column

AxisSelection = int | range | Column
"""Elements selected along a stored axis: one, which drops the axis, or several in any order. No index is negative."""


class UnresolvedError(Exception):
    """A variable is not made of selections of stored arrays. The message completes the sentence "because ..."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A selection of a stored array."""

    lazy: LazyArray
    key: tuple[AxisSelection, ...]
    """One selection for each stored axis."""

    @classmethod
    def from_indexed(cls, array: Any) -> Self:
        """Return the selection that one of xarray's lazily indexed arrays stands for.

        Raises
        ------
        UnresolvedError
            xarray decodes the array, or it was indexed pointwise or transposed.
        """
        lazy = find_lazy_array(array)
        if lazy is None:
            raise UnresolvedError("it is read by xarray")
        if not isinstance(array, indexing.LazilyIndexedArray):
            raise UnresolvedError("it was indexed pointwise or transposed before it was read")
        return cls(lazy=lazy, key=tuple(map(selected_elements, array.key.tuple, lazy.shape)))

    @property
    def axes(self) -> tuple[int, ...]:
        """The stored axis of each axis of the selection."""
        return tuple(axis for axis, selection in enumerate(self.key) if not isinstance(selection, int))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selection."""
        return tuple(len(selection) for selection in self.key if not isinstance(selection, int))

    def selection(self, axis: int) -> range | Column:
        """Return the stored elements that an axis of the selection consists of."""
        selection = self.key[self.axes[axis]]
        assert not isinstance(selection, int)
        return selection

    def with_selection(self, axis: int, selection: AxisSelection) -> Self:
        """Return a part with other stored elements along an axis of the selection."""
        stored_axis = self.axes[axis]
        key = (*self.key[:stored_axis], selection, *self.key[stored_axis + 1 :])
        return type(self)(lazy=self.lazy, key=key)

    def can_join(self, other: Self, axis: int) -> bool:
        """Whether two parts differ in nothing but what they select along an axis."""
        # Identity suffices: parts of one stored array share a `LazyArray` until `Parts.in_float32` makes one for each,
        # and that happens after the parts are merged.
        if self.lazy is not other.lazy or self.axes != other.axes:
            return False
        joined_axis = self.axes[axis]
        return all(
            stored_axis == joined_axis or _is_equal(selection, other_selection)
            for stored_axis, (selection, other_selection) in enumerate(zip(self.key, other.key, strict=True))
        )


def _is_equal(selection: AxisSelection, other: AxisSelection) -> bool:
    if isinstance(selection, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(selection, other)
    return selection == other


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A grid of parts that are side by side in a variable."""

    bounds: tuple[Column, ...]
    """For each axis of the variable, the first element of each part, followed by the length of the axis."""
    grid: npt.NDArray[Any]
    """The parts, as objects. The grid has the axes of the variable."""

    @property
    def lazy(self) -> LazyArray:
        """The stored array of the first part."""
        first: Part = self.grid.flat[0]
        return first.lazy

    def in_float32(self) -> Self:
        """Return the same selections, with results in float32 where they are float64."""
        grid = np.empty_like(self.grid)
        for number, part in enumerate(self.grid.flat):
            grid.flat[number] = Part(lazy=part.lazy.in_float32(), key=part.key)
        return type(self)(bounds=self.bounds, grid=grid)

    @classmethod
    def single(cls, part: Part) -> Self:
        """Return a grid that consists of one part."""
        grid = np.empty((1,) * len(part.shape), object)
        grid.flat[0] = part
        return cls(bounds=tuple(np.array([0, n]) for n in part.shape), grid=grid)

    def merged(self) -> Self:
        """Return a grid with fewer parts. Neighbouring planes become one if all their parts can be joined.

        A plane consists of the parts at one index along an axis of the grid.
        """
        grid = self.grid
        bounds = list(self.bounds)
        for axis in range(grid.ndim):
            grid, starts = _merge_planes(grid, axis)
            bounds[axis] = bounds[axis][starts]
        return type(self)(bounds=tuple(bounds), grid=grid)


def _merge_planes(grid: npt.NDArray[Any], axis: int) -> tuple[npt.NDArray[Any], list[int]]:
    """Join neighbouring planes of a grid along an axis, wherever each part of one can be joined with its neighbour.

    Returns
    -------
    grid : numpy.ndarray of objects
        The grid of joined parts.
    starts : list of int
        For each new plane, the number of the first plane that was joined into it; then the number of all planes.
    """
    planes = [np.take(grid, [number], axis) for number in range(grid.shape[axis])]
    starts = [0]
    for number, (plane, next_plane) in enumerate(pairwise(planes), start=1):
        if not all(part.can_join(other, axis) for part, other in zip(plane.flat, next_plane.flat, strict=True)):
            starts.append(number)
    starts.append(len(planes))
    merged = []
    for start, stop in pairwise(starts):
        merged_plane = np.empty_like(planes[start])
        for number, parts in enumerate(zip(*(plane.flat for plane in planes[start:stop]), strict=True)):
            merged_plane.flat[number] = join_parts(parts, axis)
        merged.append(merged_plane)
    return np.concatenate(merged, axis), starts


def join_parts(parts: Sequence[Part], axis: int) -> Part:
    """Return one part for several that follow each other along an axis, each of which `can_join` the next."""
    if len(parts) == 1:
        return parts[0]
    selections = [np.asarray(part.selection(axis), np.int64) for part in parts]
    return parts[0].with_selection(axis, as_range(np.concatenate(selections)))


def selected_elements(key: Any, length: int) -> AxisSelection:
    """Return the elements that a key selects along an axis of the given length.

    Parameters
    ----------
    key : int, slice, or array-like of int or bool
        As NumPy takes it, so integers may be negative.
    length : int
        Number of elements along the axis.

    Raises
    ------
    IndexError
        An integer is out of bounds.
    """
    if isinstance(key, slice):
        return range(*key.indices(length))
    index = np.asarray(key)
    index = np.flatnonzero(index) if index.dtype.kind == "b" else index.astype(np.int64)
    if index.size and not -length <= index.min() <= index.max() < length:
        raise IndexError(f"an index is out of bounds of {length} elements")
    index = np.where(index < 0, index + length, index)
    return int(index) if index.ndim == 0 else as_range(index)


def as_range(index: Column) -> range | Column:
    """Return an array of elements as a range if they are equally spaced and differ, otherwise as it is."""
    if not len(index):
        return range(0)
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if step == 0 or (np.diff(index) != step).any():
        return index
    return range(int(index[0]), int(index[0]) + len(index) * step, step)
