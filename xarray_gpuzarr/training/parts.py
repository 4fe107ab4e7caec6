"""Selections of stored arrays that together, side by side, are a variable. Pure."""

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

Along = int | range | Column
"""Selection along a stored axis: one element, which drops the axis, or several, in any order."""


class UnresolvedError(Exception):
    """A variable is not made of selections alone; the message says of what else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A selection of a stored array."""

    lazy: LazyArray
    key: tuple[Along, ...]
    """One for each stored axis; nothing is negative."""

    @classmethod
    def of(cls, array: Any) -> Self:
        """Return what xarray has indexed lazily; raises `UnresolvedError`."""
        lazy = find_lazy_array(array)
        if lazy is None:
            raise UnresolvedError("it is read by xarray")
        if not isinstance(array, indexing.LazilyIndexedArray):
            raise UnresolvedError("it was indexed pointwise or transposed before it was read")
        return cls(lazy=lazy, key=tuple(map(elements, array.key.tuple, lazy.shape)))

    @property
    def axes(self) -> tuple[int, ...]:
        """Stored axes that are kept."""
        return tuple(n for n, along in enumerate(self.key) if not isinstance(along, int))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selection."""
        return tuple(len(along) for along in self.key if not isinstance(along, int))

    def along(self, axis: int) -> range | Column:
        """Return what is taken along an axis that is kept."""
        selected = self.key[self.axes[axis]]
        assert not isinstance(selected, int)
        return selected

    def taking(self, axis: int, along: Along) -> Self:
        """Return a part that takes something else along an axis that is kept."""
        at = self.axes[axis]
        return type(self)(lazy=self.lazy, key=(*self.key[:at], along, *self.key[at + 1 :]))

    def joins(self, other: Self, axis: int) -> bool:
        """Whether two parts differ in nothing but what they take along an axis that is kept."""
        if self.lazy is not other.lazy or self.axes != other.axes:
            return False
        at = self.axes[axis]
        return all(
            n == at or (np.array_equal(a, b) if np.ndarray in (type(a), type(b)) else a == b)
            for n, (a, b) in enumerate(zip(self.key, other.key, strict=True))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Selections side by side."""

    bounds: tuple[Column, ...]
    """Per axis the first element of each part, and the length of the axis."""
    grid: npt.NDArray[Any]
    """The parts: objects, one axis for each of the variable."""

    @property
    def lazy(self) -> LazyArray:
        """The stored array of the first part."""
        first: Part = self.grid.flat[0]
        return first.lazy

    def in_float32(self) -> Self:
        """Return the same selections with values in float32 where they are float64."""
        grid = np.empty_like(self.grid)
        for number, part in enumerate(self.grid.flat):
            grid.flat[number] = Part(lazy=part.lazy.in_float32(), key=part.key)
        return type(self)(bounds=self.bounds, grid=grid)

    @classmethod
    def of(cls, part: Part) -> Self:
        """Return a single part as `Parts`."""
        grid = np.empty((1,) * len(part.shape), object)
        grid.flat[0] = part
        return cls(bounds=tuple(np.array([0, n]) for n in part.shape), grid=grid)

    def merged(self) -> Self:
        """Join neighbours that are of one stored array."""
        grid, bounds = self.grid, list(self.bounds)
        for axis in range(grid.ndim):
            planes = [np.take(grid, [i], axis) for i in range(grid.shape[axis])]
            borders = [
                n
                for n, (p, q) in enumerate(pairwise(planes), start=1)
                if not all(a.joins(b, axis) for a, b in zip(p.flat, q.flat, strict=True))
            ]
            cuts = [0, *borders, len(planes)]
            wider = []
            for lo, hi in pairwise(cuts):
                wider.append(np.empty_like(planes[lo]))
                for number, parts in enumerate(zip(*(plane.flat for plane in planes[lo:hi]), strict=True)):
                    wider[-1].flat[number] = joined(parts, axis) if len(parts) > 1 else parts[0]
            grid = np.concatenate(wider, axis)
            bounds[axis] = bounds[axis][cuts]
        return type(self)(bounds=tuple(bounds), grid=grid)


def joined(parts: Sequence[Part], axis: int) -> Part:
    """Return one part for several side by side that `join` each other."""
    along = np.concatenate([np.asarray(part.along(axis), np.int64) for part in parts])
    return parts[0].taking(axis, as_range(along))


def elements(key: Any, length: int) -> Along:
    """Return what a slice, an integer, or an array of integers or booleans takes along an axis; raises `IndexError`."""
    if isinstance(key, slice):
        return range(*key.indices(length))
    index = np.asarray(key)
    index = np.flatnonzero(index) if index.dtype.kind == "b" else index.astype(np.int64)
    if index.size and not -length <= index.min() <= index.max() < length:
        raise IndexError(f"an index is out of bounds of {length} elements")
    index = np.where(index < 0, index + length, index)
    return int(index) if index.ndim == 0 else as_range(index)


def as_range(index: Column) -> range | Column:
    """Return elements that are equally spaced as a range, others as they are."""
    if not len(index):
        return range(0)
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    if step == 0 or (np.diff(index) != step).any():
        return index
    return range(int(index[0]), int(index[0]) + len(index) * step, step)
