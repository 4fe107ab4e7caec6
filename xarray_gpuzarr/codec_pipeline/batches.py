"""Turns a batch of chunks, which zarr-python passes to a codec pipeline, back into one selection of the array.

zarr-python cuts a selection at the borders of shards. It passes one item for each shard: its key, the selection inside
the shard, and the selection of the output. Basic, block and orthogonal selections are products over the axes, and are
joined axis by axis. Coordinates and masks are points. All other batches have no selection here, and zarr-python reads
them. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from math import prod
from typing import Any

import numpy as np
from zarr.abc.store import ByteGetter
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec

from xarray_gpuzarr.codec_pipeline.axis_selectors import INTEGERS, AxisSelectors, is_inside, join_axis
from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec

Item = tuple[ByteGetter, ZarrChunkSpec, Any, Any, bool]
"""A shard or unsharded chunk as zarr-python passes it: byte getter, spec, selection inside it, selection of the output,
and whether it is selected completely."""
Coord = tuple[int, ...]


def shard_coords(batch: Iterable[Any], spec: ArraySpec) -> list[Coord] | None:
    """Return the coordinates of each item's shard; None if an item does not belong to the array of `spec`."""
    try:
        return [spec.keys.coord(item[0].path, spec.grid.ndim) for item in batch]
    except (AttributeError, ValueError):  # the getter has no path, or one outside this array
        return None


@record
class BatchSelection:
    """What a batch selects of an array: either a product over the axes, or points."""

    outer: OuterSelection | None = None
    """The product over the axes. `restore` brings what was read to the shape and order of the output."""
    dropped: tuple[int, ...] = ()
    """Axes of the array that the output of `outer` lacks."""
    points: tuple[Column, ...] | None = None
    """For each axis, the coordinates of all elements of the output, shape (n,)."""
    bounds: tuple[int, ...]
    """For each axis, an upper bound of the selected indexes: the end of the last shard."""

    def view_of(self, out: Any) -> Any:
        """Return a view of the output in the shape of what is read: with all axes of the array, or flat for points.

        None if what was read must be reordered before it is assigned to the output.
        """
        if self.outer is None or not self.outer.undo:
            return out
        for _, index in self.outer.undo:
            if not isinstance(index, int):  # an index array reorders elements, which a view cannot undo
                return None
        # The other steps of `undo` are integers. Each drops an axis of length 1, which None adds again.
        key = [None if axis in self.dropped else slice(None) for axis in range(len(self.bounds))]
        return out[(*key, ...)]


def join_batch(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord, drop_axes: Coord
) -> BatchSelection | None:
    """Join the items of a batch into one selection.

    Parameters
    ----------
    coords : sequence of tuple of int
        Coordinates of each item's shard.
    batch : sequence of Item
        One item or more.
    shard_shape : tuple of int
        Elements of a shard along each axis.
    out_shape : tuple of int
        Shape of the output, all of which must be filled.
    drop_axes : tuple of int
        Axes that zarr-python removes from what each item selects, before it is assigned to the output.

    Returns
    -------
    BatchSelection or None
        None if the items are neither a product over the axes nor points.
    """
    coords_by_axis = zip(*coords, strict=True)
    bounds = tuple([(max(axis) + 1) * length for axis, length in zip(coords_by_axis, shard_shape, strict=True)])
    _, _, _, first_out, _ = batch[0]
    if not isinstance(first_out, tuple):  # zarr-python selects the output of points by one array
        points = _join_points(coords, batch, shard_shape, out_shape)
        return None if points is None else BatchSelection(points=points, bounds=bounds)
    outer = None
    dropped: tuple[int, ...] = ()
    if len(batch) == 1 and not drop_axes:
        outer, dropped = _basic_selection(coords[0], batch[0], shard_shape, out_shape)
    if outer is None:
        outer, dropped = _join_product(coords, batch, shard_shape, out_shape, drop_axes)
    return None if outer is None else BatchSelection(outer=outer, dropped=dropped, bounds=bounds)


def _basic_selection(
    coord: Coord, item: Item, shard_shape: Coord, out_shape: Coord
) -> tuple[OuterSelection | None, tuple[int, ...]]:
    """Return the selection of a single item of integers and slices, and the axes that the output lacks.

    The result is that of `_join_product`, in a fifth of its time. There is no selection if the item has anything else.
    """
    _, _, inside, out, _ = item
    if not isinstance(inside, tuple) or len(inside) != len(shard_shape):
        return None, ()
    dropped = tuple([axis for axis, selector in enumerate(inside) if isinstance(selector, INTEGERS)])
    if not len(out) == len(out_shape) == len(inside) - len(dropped):
        return None, ()
    slices = []
    out_axes = iter(zip(out, out_shape, strict=True))
    for axis, (shard, length, selector) in enumerate(zip(coord, shard_shape, inside, strict=True)):
        if axis in dropped:
            start = int(selector)
            step = n = 1
        else:
            out_selector, n = next(out_axes)
            if type(selector) is not slice or type(out_selector) is not slice:
                return None, ()
            start, stop, step = selector.indices(length)
            fills_out = out_selector.indices(n) == (0, n, 1)
            if step < 1 or not n or not fills_out or len(range(start, stop, step)) != n:
                return None, ()
        first = shard * length + start
        slices.append(slice(first, first + (n - 1) * step + 1, step))
    undo = tuple([(axis, 0) for axis in reversed(dropped)])
    return OuterSelection(selectors=tuple(slices), undo=undo), dropped


def _join_product(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord, drop_axes: Coord
) -> tuple[OuterSelection | None, Coord]:
    """Return the selection of items that are a product over the axes, and the axes that the output lacks.

    There is no selection if the items are anything else.
    """
    ndim = len(shard_shape)
    _, _, first_inside, _, _ = batch[0]
    if not isinstance(first_inside, tuple) or len(first_inside) != ndim:
        return None, ()
    # If a selection has index arrays, zarr-python passes its integers as arrays, and lists their axes in `drop_axes`.
    # Without index arrays, integers stay integers, and `drop_axes` is empty.
    dropped = drop_axes or tuple([axis for axis, key in enumerate(first_inside) if isinstance(key, INTEGERS)])
    out_axes = [axis for axis in range(ndim) if axis not in dropped]
    if len(out_axes) != len(out_shape):
        return None, ()
    axes = _split_by_axis(coords, batch, out_axes, ndim)
    if axes is None:
        return None, ()
    keys: list[slice | Column] = []
    undo: list[tuple[int, slice | Column | int]] = []
    out_lengths = dict(zip(out_axes, out_shape, strict=True))
    for axis, selectors in enumerate(axes):
        joined = join_axis(selectors, shard_shape[axis], out_lengths.get(axis, 1))
        if joined is None:
            return None, ()
        key, restore = joined
        keys.append(key)
        if restore is not None:
            undo.append((axis, restore))
    undo += zip(reversed(dropped), repeat(0))
    return OuterSelection(selectors=tuple(keys), undo=tuple(undo)), dropped


def _split_by_axis(
    coords: Sequence[Coord], batch: Sequence[Item], out_axes: Sequence[int], ndim: int
) -> list[AxisSelectors] | None:
    """Return the selectors of the items, axis by axis; None if the items are not a product over the axes."""
    axes: list[AxisSelectors] = [{} for _ in range(ndim)]
    for coord, (_, _, inside, out, _) in zip(coords, batch, strict=True):
        if not isinstance(inside, tuple) or not isinstance(out, tuple):
            return None
        if len(inside) != ndim or len(out) != len(out_axes):
            return None
        out_selectors = dict(zip(out_axes, out, strict=True))
        for axis, shard in enumerate(coord):
            selectors = inside[axis], out_selectors.get(axis)
            known = axes[axis].setdefault(shard, selectors)
            if known is selectors:  # this item is the first one with this coordinate
                continue
            if not _is_equal(known[0], selectors[0]) or not _is_equal(known[1], selectors[1]):
                return None
    # In a product, every combination of the coordinates occurs, and each of them once.
    is_product = len(coords) == prod(map(len, axes)) == len(set(coords))
    return axes if is_product else None


def _is_equal(selector: Any, other: Any) -> bool:
    if selector is other:
        return True
    if isinstance(selector, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(selector, other)
    return bool(selector == other)


def _join_points(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord
) -> tuple[Column, ...] | None:
    """Return, for each axis, the coordinates of all elements of a flat output; None if the items are not points."""
    if len(out_shape) != 1 or not shard_shape:
        return None
    points = tuple(np.full(out_shape, -1, np.int64) for _ in shard_shape)  # -1: an element that no item fills
    for coord, (_, _, inside, out, _) in zip(coords, batch, strict=True):
        columns = [c for c in inside if isinstance(c, np.ndarray) and c.dtype.kind in "iu"]
        if len(columns) != len(shard_shape) or any(column.ndim != 1 for column in columns):
            return None
        if not all(map(is_inside, inside, shard_shape)):
            return None
        for column, shard, index, length in zip(points, coord, inside, shard_shape, strict=True):
            column[out] = shard * length + index
    return None if any((column < 0).any() for column in points) else points
