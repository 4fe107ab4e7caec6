"""`read_crops`: reads boxes of one shape of a variable into one array. Each chunk is read once for all boxes.

`read_stack` does this for one `Part`, and `read_crops` for a grid of them. Elements are read in increasing order along
stored axes, and `read_stack` then puts them into the order of the part's selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.plan.crops import Crops, StackAxis
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.read import read, read_stacked
from xarray_gpuzarr.stored.array_spec import Unplanned
from xarray_gpuzarr.training.parts import Part, Parts

Reordering = slice | Column
"""Index along an axis that was read in increasing order, which puts it into the requested order: one for all samples,
or a row for each sample, shape (n_samples, n)."""


def read_stack(part: Part, start: Column, shape: Sequence[int], decoder: Decoder, out: Any = None) -> Any:
    """Read boxes of one shape of a part.

    Parameters
    ----------
    part : Part
        The selection that boxes are taken from.
    start : numpy.ndarray of int64, shape (n, ndim)
        First element of each box. Elements of a box that lie outside the part get arbitrary values from inside it.
    shape : sequence of int
        Shape of a box.
    decoder : Decoder
        Decodes the chunks.
    out : array of shape (n, *shape), optional
        Memory that may be used for the result.

    Returns
    -------
    array of shape (n, *shape)
        On the decoder's device: `out`, a view of it, or another array.
    """
    selections: list[StackAxis] = [slice(0)] * len(part.key)  # each of them is replaced below
    reorderings: list[tuple[int, Reordering]] = []
    for axis, stored_axis in enumerate(part.axes):
        selections[stored_axis], reordering = _in_increasing_order(part.selection(axis), start[:, axis], shape[axis])
        if reordering is not None:
            reorderings.append((1 + axis, reordering))
    for stored_axis, selection in enumerate(part.key):
        if isinstance(selection, int):
            selections[stored_axis] = slice(selection, selection + 1)
    # A read returns all stored axes. `drop_axes` removes those along which the part selects a single element, and
    # `add_axes` adds them to `out`, which lacks them.
    dropped = [isinstance(selection, int) for selection in part.key]
    add_axes = (slice(None), *(None if is_dropped else slice(None) for is_dropped in dropped))
    drop_axes = (slice(None), *(0 if is_dropped else slice(None) for is_dropped in dropped))
    stored = part.lazy.stored
    n_samples = len(start)
    if isinstance(stored.spec, Unplanned):
        boxes = [tuple(_select_sample(selection, sample) for selection in selections) for sample in range(n_samples)]
        stack = np.stack([read(stored, box, decoder) for box in boxes])
    else:
        stored_out = None
        if out is not None and not reorderings:
            stored_out = out[add_axes]
        stack = read_stacked(stored, stored.spec, selections, n_samples, decoder, stored_out)
    stack = stack[drop_axes]
    return _reorder(stack, reorderings, decoder) if reorderings else stack


def _in_increasing_order(selection: range | Column, start: Column, n: int) -> tuple[StackAxis, Reordering | None]:
    """Return what boxes take of a stored axis, in increasing order, and how to restore the requested order.

    `selection` is what a part selects along the axis. Box ``i`` takes `n` elements of it from ``start[i]`` on. The
    reordering is None if the requested order is increasing.
    """
    first = int(start[0])
    is_same_for_all = bool((start == first).all())
    if is_same_for_all and first >= 0 and first + n <= len(selection):
        # All boxes take the same elements, so one slice or index serves them all.
        elements = selection[first : first + n]
        if not isinstance(elements, range):
            return _sorted(elements)
        if elements.step > 0:
            return slice(elements.start, elements.stop, elements.step), None
        increasing = elements[::-1]
        return slice(increasing.start, increasing.stop, increasing.step), slice(None, None, -1)
    if isinstance(selection, range) and start.min() >= 0 and start.max() + n <= len(selection):
        # All boxes lie inside the part, and the elements of each are evenly spaced.
        if selection.step > 0:
            return Crops(start=selection.start + start * selection.step, count=n, step=selection.step), None
        lowest = selection.start + (start + n - 1) * selection.step
        return Crops(start=lowest, count=n, step=-selection.step), slice(None, None, -1)
    # Elements outside the part may get any values of it, so their positions are clipped.
    positions = (start[:, None] + np.arange(n)).clip(0, len(selection) - 1)
    return _sorted(np.asarray(selection, np.int64)[positions])


def _sorted(elements: Column) -> tuple[Column, Column | None]:
    """Return elements sorted along the last axis, and the index that undoes this; None if they were sorted already."""
    if (elements[..., 1:] >= elements[..., :-1]).all():
        return elements, None
    order = elements.argsort(axis=-1, kind="stable")
    return np.take_along_axis(elements, order, axis=-1), order.argsort(axis=-1)


def _select_sample(selection: StackAxis, sample: int) -> slice | Column:
    """Return the elements that one sample takes along a stored axis."""
    if isinstance(selection, Crops):
        start = int(selection.start[sample])
        return slice(start, start + (selection.count - 1) * selection.step + 1, selection.step)
    if isinstance(selection, slice) or selection.ndim == 1:
        return selection
    elements: Column = selection[sample]
    return elements


def _reorder(stack: Any, reorderings: Sequence[tuple[int, Reordering]], decoder: Decoder) -> Any:
    """Return a copy of `stack`, in C order, with the axes of `reorderings` put into the requested order."""
    result = decoder.empty(stack.shape, stack.dtype)
    by_sample = []
    for axis, reordering in reorderings:
        if isinstance(reordering, np.ndarray) and reordering.ndim == 2:
            by_sample.append((axis, reordering))
        else:
            stack = stack[(slice(None),) * axis + (reordering,)]
    if not by_sample:
        result[...] = stack
        return result
    for sample in range(len(stack)):
        box = stack[sample]
        for axis, reordering in by_sample:
            box = box[(slice(None),) * (axis - 1) + (reordering[sample],)]  # a box lacks the axis of samples
        result[sample] = box
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of one shape in a variable."""

    start: Column
    """First element of each box, shape (n, ndim)."""
    shape: tuple[int, ...]
    """Shape of a box, in elements."""

    def slices(self) -> list[tuple[slice, ...]]:
        """Return for each box the slices that select it."""
        return [tuple(slice(s, s + n) for s, n in zip(row, self.shape, strict=True)) for row in self.start.tolist()]


def read_crops(parts: Parts, boxes: Boxes, decoder: Decoder, out: Any = None) -> Any:
    """Read boxes of a variable into one array.

    Parameters
    ----------
    parts : Parts
        What the variable is made of.
    boxes : Boxes
        At least one box. All of them lie inside the variable.
    decoder : Decoder
        Decodes the chunks.
    out : array of shape (n, *boxes.shape) and the dtype of the variable, optional
        Memory that may be used for the result.

    Returns
    -------
    array of shape (n, *boxes.shape)
        On the decoder's device: `out`, a view of it, or another array.
    """
    shape = (len(boxes.start), *boxes.shape)
    if 0 in shape:
        return decoder.empty(shape, parts.lazy.dtype)
    result = None
    for position in product(*map(range, parts.grid.shape)):
        part: Part = parts.grid[position]
        origin = np.array([bounds[i] for bounds, i in zip(parts.bounds, position, strict=True)], np.int64)
        part_shape = np.array(part.shape, np.int64)
        start = boxes.start - origin
        touches = ((start < part_shape) & (start + boxes.shape > 0)).all(axis=1)
        if not touches.any():
            continue
        start = start[touches]
        all_are_inside = bool(touches.all()) and bool(((start >= 0) & (start + boxes.shape <= part_shape)).all())
        if all_are_inside:
            return read_stack(part, start, boxes.shape, decoder, out)
        stack = read_stack(part, start, boxes.shape, decoder)
        if result is None:
            result = decoder.empty(shape, parts.lazy.dtype) if out is None else out
        _copy_overlaps(stack, start, part_shape, result, np.flatnonzero(touches))
    return result


def _copy_overlaps(stack: Any, start: Column, part_shape: Column, result: Any, samples: Column) -> None:
    """Copy the elements of boxes that lie in a part from `stack` to `result`.

    Parameters
    ----------
    stack : array of shape (n, *shape)
        The boxes as read from the part.
    start : numpy.ndarray of int64, shape (n, ndim)
        Position of each box relative to the part; may be negative.
    part_shape : numpy.ndarray of int64, shape (ndim,)
        Shape of the part.
    result : array of shape (n_samples, *shape)
        Written to.
    samples : numpy.ndarray of int64, shape (n,)
        Number of each box along the first axis of `result`.
    """
    low = np.maximum(-start, 0)
    high = np.minimum(part_shape - start, stack.shape[1:])
    # One copy serves all boxes that overlap the part in the same elements of the box.
    overlaps, overlap_numbers = np.unique(np.concatenate([low, high], axis=1), axis=0, return_inverse=True)
    ndim = start.shape[1]
    for number, overlap in enumerate(overlaps.tolist()):
        members = np.flatnonzero(overlap_numbers.reshape(-1) == number)
        elements = tuple(map(slice, overlap[:ndim], overlap[ndim:]))
        result[(samples[members], *elements)] = stack[(members, *elements)]
