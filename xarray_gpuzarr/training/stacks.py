"""Read stacked crops of a variable, or of one stored array: each inner chunk once, however many crops share it.

Axes are read in increasing order, and put into the order asked for afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.plan.stack import Crops, StackAxis
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.read import read, read_stacked
from xarray_gpuzarr.stored.array_spec import Unplanned
from xarray_gpuzarr.training.parts import Part, Parts

Back = slice | Column | None
"""Index that turns an axis in increasing order into the requested one: one for all samples, or a row for each."""


def read_stack(part: Part, start: Column, shape: Sequence[int], decoder: Decoder, out: Any = None) -> Any:
    """Read boxes of one shape of a part, with first elements `start`, shape (n, ndim).

    The result has shape (n, *shape), on the decoder's device: `out`, a view of it, or another array. What of a box lies
    outside the part becomes what is next to it inside: it is read anyway.
    """
    selected: list[StackAxis] = [slice(0)] * len(part.key)
    undo: list[tuple[int, slice | Column]] = []
    for axis, at in enumerate(part.axes):
        selected[at], back = _ordered(part.along(axis), start[:, axis], shape[axis])
        if back is not None:
            undo.append((1 + axis, back))
    for at, along in enumerate(part.key):
        if isinstance(along, int):
            selected[at] = slice(along, along + 1)
    stored, n = part.lazy.stored, len(start)
    if isinstance(stored.spec, Unplanned):
        samples = [tuple(_of_sample(each, i) for each in selected) for i in range(n)]
        stack = np.stack([read(stored, sample, decoder) for sample in samples])
    else:
        with_dropped = (slice(None), *[None if isinstance(along, int) else slice(None) for along in part.key])
        room = None if out is None or undo else out[with_dropped]
        stack = read_stacked(stored, stored.spec, selected, n, decoder, room)
    stack = stack[(slice(None), *(0 if isinstance(along, int) else slice(None) for along in part.key))]
    return _restored(stack, undo, decoder) if undo else stack


def _ordered(along: range | Column, start: Column, n: int) -> tuple[StackAxis, Back]:
    """Return what samples take of a stored axis, in increasing order, and how to restore the order asked for."""
    first = int(start[0])
    if (start == first).all() and first >= 0 and first + n <= len(along):
        taken = along[first : first + n]
        if isinstance(taken, range):
            up = taken if taken.step > 0 else taken[::-1]
            return slice(up.start, up.stop, up.step), None if taken.step > 0 else slice(None, None, -1)
        return _sorted(taken)
    if isinstance(along, range) and start.min() >= 0 and start.max() + n <= len(along):
        if along.step > 0:
            return Crops(start=along.start + start * along.step, count=n, step=along.step), None
        last = along.start + (start + n - 1) * along.step
        return Crops(start=last, count=n, step=-along.step), slice(None, None, -1)
    elements = (start[:, None] + np.arange(n)).clip(0, len(along) - 1)
    return _sorted(np.asarray(along, np.int64)[elements])


def _sorted(table: Column) -> tuple[Column, Column | None]:
    """Sort elements along the last axis, if they are not; and return how to undo it."""
    if (table[..., 1:] >= table[..., :-1]).all():
        return table, None
    order = table.argsort(axis=-1, kind="stable")
    return np.take_along_axis(table, order, axis=-1), order.argsort(axis=-1)


def _of_sample(selected: StackAxis, sample: int) -> slice | Column:
    if isinstance(selected, Crops):
        start = int(selected.start[sample])
        return slice(start, start + (selected.count - 1) * selected.step + 1, selected.step)
    return selected if isinstance(selected, slice) or selected.ndim == 1 else selected[sample]


def _restored(stack: Any, undo: Sequence[tuple[int, slice | Column]], decoder: Decoder) -> Any:
    """Return a block in the order asked for, in C order."""
    result = decoder.empty(stack.shape, stack.dtype)
    for axis, back in undo:
        if isinstance(back, slice) or back.ndim == 1:
            stack = stack[(slice(None),) * axis + (back,)]
    tables = [(axis, np.asarray(back)) for axis, back in undo if not isinstance(back, slice) and back.ndim == 2]
    if not tables:
        result[...] = stack
        return result
    for sample in range(len(stack)):
        block = stack[sample]
        for axis, table in tables:
            block = block[(slice(None),) * (axis - 1) + (table[sample],)]
        result[sample] = block
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of one shape."""

    start: Column
    """shape (n, ndim): first element of each."""
    shape: tuple[int, ...]
    """Shape of one, in elements."""

    def slices(self) -> list[tuple[slice, ...]]:
        """Return the slices that select each box."""
        return [tuple(slice(s, s + n) for s, n in zip(row, self.shape, strict=True)) for row in self.start.tolist()]


def read_crops(parts: Parts, boxes: Boxes, decoder: Decoder, out: Any = None) -> Any:
    """Read boxes of a variable, at least one, all inside it: shape (n, *boxes.shape), on the decoder's device.

    The result is `out`, of this shape and dtype, a view of it, or another array.
    """
    result, shape = None, (len(boxes.start), *boxes.shape)
    if 0 in shape:
        return decoder.empty(shape, parts.lazy.dtype)
    for at in product(*map(range, parts.grid.shape)):
        part: Part = parts.grid[at]
        first = np.array([bounds[i] for bounds, i in zip(parts.bounds, at, strict=True)], np.int64)
        length = np.array(part.shape, np.int64)
        start = boxes.start - first
        touches = ((start < length) & (start + boxes.shape > 0)).all(axis=1)
        if not touches.any():
            continue
        start = start[touches]
        is_alone = bool(touches.all()) and bool(((start >= 0) & (start + boxes.shape <= length)).all())
        block = read_stack(part, start, boxes.shape, decoder, out if is_alone else None)
        if is_alone:
            return block
        if result is None:
            result = decoder.empty(shape, parts.lazy.dtype) if out is None else out
        # Boxes of which the same elements lie in the part are copied together.
        lo, hi = np.maximum(-start, 0), np.minimum(length - start, boxes.shape)
        ends, which = np.unique(np.concatenate([lo, hi], axis=1), axis=0, return_inverse=True)
        for number, row in enumerate(ends.tolist()):
            members = np.flatnonzero(which.reshape(-1) == number)
            box = tuple(map(slice, row[: lo.shape[1]], row[lo.shape[1] :]))
            result[(np.flatnonzero(touches)[members], *box)] = block[(members, *box)]
    return result
