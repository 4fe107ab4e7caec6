"""What chunks give to the output, by the kind of target: to the compiled loops, and to NumPy for what these leave."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.native_rows import Boxes, Points
from xarray_gpuzarr.native import address
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, ReadPlan, Target
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.plan.stack import StackTarget

Array = npt.NDArray[Any]
Key = tuple[Any, ...]
"""What picks a part of an array."""


class GivenBoxes:
    """Boxes of the output, one of each chunk; or, where samples are stacked, any number."""

    def __init__(self, target: BoxTarget | StackTarget) -> None:
        self._target, self._stack = target, target if isinstance(target, StackTarget) else None
        self.samples = () if self._stack is None else (1,)
        """Lengths of the axes that chunks have in front only in the output."""

    @property
    def axes(self) -> tuple[AxisPieces, ...]:
        """Of the output."""
        return self._target.pieces

    @cached_property
    def _in_keys(self) -> list[list[slice | Column]]:
        return [pieces.in_keys() for pieces in self.axes]

    @cached_property
    def _out_keys(self) -> list[list[slice]]:
        return [pieces.out_keys() for pieces in self.axes]

    @cached_property
    def _rows(self) -> tuple[list[list[int]], list[int]]:
        """Boxes of a stack, and the first one of each chunk."""
        assert self._stack is not None
        return self._stack.groups.row.tolist(), self._stack.groups.bounds.tolist()

    @cached_property
    def has_index(self) -> bool:
        """Whether the wanted elements along any axis are listed."""
        return any(p.index is not None for p in self.axes)

    def to_loops(self, plan: ReadPlan, strides: tuple[int, ...], out_stride: int) -> Boxes:  # noqa: ARG002
        """Return the boxes that the chunks of a plan give."""
        if self._stack is None:
            return Boxes(at=plan.row_at, first=None)
        row = plan.all_row
        numbers, first = self._stack.boxes(row), np.concatenate([[0], self._stack.n_boxes(row).cumsum()])
        return Boxes(at=address(numbers), first=first, kept=numbers)

    def _boxes(self, numbers: list[int]) -> list[list[int]]:
        if self._stack is None:
            return [numbers]
        rows, bounds = self._rows
        return rows[bounds[numbers[0]] : bounds[numbers[0] + 1]]

    def keys(self, numbers: list[int]) -> Iterator[Key]:
        """Return what picks each box."""
        # The ellipsis keeps an array without axes an array.
        return ((*map(getitem, self._out_keys, box), ...) for box in self._boxes(numbers))

    def parts(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Return the boxes of a chunk."""
        seen = chunk if self._stack is None else chunk[None]
        for box, key in zip(self._boxes(numbers), self.keys(numbers), strict=True):
            yield key, _picked(seen, tuple(map(getitem, self._in_keys, box)))


def _picked(chunk: Array, keys: Key) -> Array:
    """Pick the wanted elements of a chunk."""
    slices: Key = (*(key if isinstance(key, slice) else slice(None) for key in keys), ...)
    picked = chunk[slices]
    listed = {axis: key for axis, key in enumerate(keys) if not isinstance(key, slice)}
    # Axis by axis, that which leaves least first: one index of all axes may be longer than the chunk.
    for axis in sorted(listed, key=lambda axis: len(listed[axis]) / chunk.shape[axis]):
        picked = picked.take(listed[axis], axis)
    return picked


class GivenPoints:
    """Scattered points of the output."""

    axes: tuple[AxisPieces, ...] = ()
    samples: tuple[int, ...] = ()
    has_index = True

    def __init__(self, target: PointTarget) -> None:
        self._groups = target.groups

    def _members(self, numbers: list[int]) -> slice:
        bounds = self._groups.bounds
        return slice(int(bounds[numbers[0]]), int(bounds[numbers[0] + 1]))

    def to_loops(self, plan: ReadPlan, strides: tuple[int, ...], out_stride: int) -> Points:
        """Return the points that the chunks of a plan give, by strides of chunk and output in bytes."""
        group, groups = plan.all_row[:, 0], self._groups
        low = groups.bounds.take(group)
        n = groups.bounds.take(group + 1) - low
        first = np.concatenate([[0], n.cumsum()])
        members = np.arange(first[-1]) + (low - first[:-1]).repeat(n)
        in_at = groups.within.take(members, axis=0) @ np.array(strides, np.int64)
        return Points(in_at=in_at, out_at=groups.position.take(members) * out_stride, first=first)

    def keys(self, numbers: list[int]) -> Iterator[Key]:
        """Return what picks the points of a chunk, all at once."""
        yield (self._groups.position[self._members(numbers)],)

    def parts(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Return the points of a chunk."""
        for key in self.keys(numbers):
            yield key, chunk[tuple(self._groups.within[self._members(numbers)].T)]


Given = GivenBoxes | GivenPoints


def given_by(target: Target) -> Given:
    """Return what the chunks of a read give."""
    return GivenPoints(target) if isinstance(target, PointTarget) else GivenBoxes(target)
