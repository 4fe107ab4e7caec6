"""Parts of several stored arrays, concatenated along an axis: what dask has joined or sorted into one block. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.training.parts import Along, Part, Parts, UnresolvedError, as_range, elements, joined

IN_TURNS = "elements of several arrays take turns in it"
"""Why parts would not do: chunks would be read for several of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """Parts that follow one another along an axis."""

    parts: tuple[Part, ...]
    axis: int = 0
    """Without meaning if there is but one part."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all parts together."""
        shape = list(self.parts[0].shape)
        if len(self.parts) > 1:
            shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    @property
    def ends(self) -> Column:
        """Where parts end along their axis, shape (n_parts,)."""
        return np.cumsum([part.shape[self.axis] for part in self.parts])

    def taking(self, axis: int, key: Any) -> Self:
        """Return what an integer, a slice or an array takes along an axis; parts that take turns are an error."""
        if len(self.parts) == 1 or axis != self.axis:
            taken = tuple(p.taking(axis, _taken(p.along(axis), key)) for p in self.parts)
            return type(self)(parts=taken, axis=self.axis - (isinstance(key, int | np.integer) and axis < self.axis))
        numbers = np.atleast_1d(np.asarray(elements(key, self.shape[axis]), np.int64))
        which = np.searchsorted(self.ends, numbers, side="right")
        cuts = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), len(numbers)]
        if len(cuts) - 1 > max(1, len(np.unique(which))):
            raise UnresolvedError(IN_TURNS)
        starts = self.ends - np.diff(self.ends, prepend=0)
        parts = []
        for lo, hi in pairwise(cuts):
            part = self.parts[which[lo] if hi > lo else 0]
            at = numbers[lo:hi] - starts[which[lo:hi]]
            parts.append(
                part.taking(axis, _taken(part.along(axis), at[0] if isinstance(key, int | np.integer) else at))
            )
        return type(self)(parts=tuple(parts), axis=axis)


def _taken(along: range | Column, key: Any) -> Along:
    if isinstance(key, slice):
        return along[key]
    index = elements(key, len(along))
    if isinstance(index, int):
        return int(along[index])
    index = np.asarray(index)
    return as_range(along.start + along.step * index if isinstance(along, range) else along[index])


def join_rows(rows: Sequence[BlockRow], axis: int) -> BlockRow:
    """Return several rows, one behind another along an axis, as one.

    If they are of other arrays along another axis, that is an `UnresolvedError`.
    """
    if all(len(row.parts) == 1 or row.axis == axis for row in rows):
        return BlockRow(parts=_merged([part for row in rows for part in row.parts], axis), axis=axis)
    first = rows[0]
    if any(
        (len(row.parts), row.axis, row.ends.tolist()) != (len(first.parts), first.axis, first.ends.tolist())
        for row in rows
    ):
        raise UnresolvedError("dask joins blocks of several arrays")
    merged = [_merged(parts, axis) for parts in zip(*(row.parts for row in rows), strict=True)]
    if any(len(parts) > 1 for parts in merged):
        raise UnresolvedError("dask joins blocks of several arrays")
    return BlockRow(parts=tuple(parts[0] for parts in merged), axis=first.axis)


def _merged(parts: Sequence[Part], axis: int) -> tuple[Part, ...]:
    """Join neighbours of one stored array."""
    borders = [n for n, (a, b) in enumerate(pairwise(parts), start=1) if not a.joins(b, axis)]
    runs = [parts[lo:hi] for lo, hi in pairwise([0, *borders, len(parts)])]
    return tuple(joined(run, axis) if len(run) > 1 else run[0] for run in runs)


def cut_rows(grid: npt.NDArray[Any], chunks: Sequence[Sequence[int]]) -> Parts:
    """Return a grid of `BlockRow`, whose lengths along each axis are `chunks`, as a grid of their parts."""
    cuts = [[{0, n} for n in lengths] for lengths in chunks]
    for at in product(*map(range, grid.shape)):
        row: BlockRow = grid[at]
        if len(row.parts) > 1:
            cuts[row.axis][at[row.axis]].update(row.ends.tolist())
    ranges = [[[slice(lo, hi) for lo, hi in pairwise(sorted(cut))] or [slice(0, 0)] for cut in axis] for axis in cuts]
    parts = np.empty([sum(map(len, axis)) for axis in ranges], object)
    fresh = [np.cumsum([0, *map(len, axis)]) for axis in ranges]
    for at in product(*map(range, grid.shape)):
        of_row = [axis[i] for axis, i in zip(ranges, at, strict=True)]
        for within in product(*(range(len(pieces)) for pieces in of_row)):
            row = grid[at]
            for axis, (pieces, i) in enumerate(zip(of_row, within, strict=True)):
                row = row if len(pieces) == 1 else row.taking(axis, pieces[i])
            parts[tuple(f[i] + k for f, i, k in zip(fresh, at, within, strict=True))] = row.parts[0]
    lengths = [[piece.stop - piece.start for pieces in axis for piece in pieces] for axis in ranges]
    return Parts(bounds=tuple(np.cumsum([0, *axis]) for axis in lengths), grid=parts)
