"""Turn the chunks that zarr-python asks a codec pipeline for back into one selection of the array.

zarr-python cuts a selection at the borders of shards and passes one item for each shard: its key, a selection within
it, and a selection of the output. Basic, block and orthogonal selections are products over the axes, and are joined
axis by axis. Coordinates and masks are points. If the items are neither, the result is None and zarr-python reads them.
No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from math import prod
from typing import Any

import numpy as np
from zarr.abc.store import ByteGetter
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec

from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec

Item = tuple[ByteGetter, ZarrChunkSpec, Any, Any, bool]
"""A chunk that zarr-python asks for: getter, spec, selection within it, selection of the output, whether it is all."""
Coord = tuple[int, ...]
_Pieces = dict[int, tuple[Any, Any]]
"""Along one axis, by the shard's coordinate: selection within the shard, and selection of the output."""
_NUMBERS = (int, np.integer)
_SELECTORS = (slice, *_NUMBERS, np.ndarray)
_PLACES = (slice, np.ndarray, type(None))


def coords_of(batch: Iterable[Any], spec: ArraySpec) -> list[Coord] | None:
    """Return the coordinate of each item's shard; None if an item is not of the array that `spec` describes."""
    try:
        return [spec.keys.coord(item[0].path, spec.grid.ndim) for item in batch]
    except (AttributeError, ValueError):  # no path in a store, or not one of this array
        return None


@record
class Requested:
    """A selection of an array: a product over the axes, or points."""

    outer: OuterSelection | None = None
    """A product over the axes; `undo` brings what was read to the shape and order of the output."""
    dropped: tuple[int, ...] = ()
    """Axes that the output of `outer` lacks."""
    points: tuple[Column, ...] | None = None
    """Per axis the coordinates of every element of the output, shape (n,)."""
    bounds: tuple[int, ...]
    """Per axis, an upper bound of the selected indexes."""

    def place(self, out: Any) -> Any:
        """Return a view of `out` with one axis per axis of the array; None if the result must be reordered first."""
        if self.outer is None or not self.outer.undo:
            return out
        if [back for _, back in self.outer.undo if not isinstance(back, int)]:
            return None
        index = [None if axis in self.dropped else slice(None) for axis in range(len(self.bounds))]
        return out[(*index, ...)]


def requested(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord, drop_axes: Coord
) -> Requested | None:
    """Join the items of a batch into one selection; None if they are neither a product nor points.

    `coords` are those of the shard of each item, and `drop_axes` what zarr-python takes from each piece before it is
    placed. All of the output must be filled.
    """
    bounds = tuple([(max(axis) + 1) * n for axis, n in zip(zip(*coords, strict=True), shard_shape, strict=True)])
    if isinstance(batch[0][3], tuple):
        is_alone = len(batch) == 1 and not drop_axes
        outer, dropped = _basic(coords[0], batch[0], shard_shape, out_shape) if is_alone else (None, ())
        if outer is None:
            outer, dropped = _product(coords, batch, shard_shape, out_shape, drop_axes)
        return None if outer is None else Requested(outer=outer, dropped=dropped, bounds=bounds)
    points = _points(coords, batch, shard_shape, out_shape)
    return None if points is None else Requested(points=points, bounds=bounds)


def _basic(
    coord: Coord, item: Item, shard_shape: Coord, out_shape: Coord
) -> tuple[OuterSelection | None, tuple[int, ...]]:
    """Return the selection of a single item of integers and slices: what `_product` gives, in a fifth of its time."""
    inside, place = item[2], item[3]
    if not isinstance(inside, tuple) or len(inside) != len(shard_shape):
        return None, ()
    dropped = tuple([axis for axis, within in enumerate(inside) if isinstance(within, _NUMBERS)])
    if not len(place) == len(out_shape) == len(inside) - len(dropped):
        return None, ()
    selectors, outputs = [], iter(zip(place, out_shape, strict=True))
    for axis, (at, n, within) in enumerate(zip(coord, shard_shape, inside, strict=True)):
        if axis in dropped:
            start, n_out, step = int(within), 1, 1
        else:
            to, n_out = next(outputs)
            if type(within) is not slice or type(to) is not slice or to.indices(n_out) != (0, n_out, 1):
                return None, ()
            start, stop, step = within.indices(n)
            if step < 1 or len(range(start, stop, step)) != n_out or not n_out:
                return None, ()
        first = at * n + start
        selectors.append(slice(first, first + (n_out - 1) * step + 1, step))
    undo = tuple([(axis, 0) for axis in reversed(dropped)])
    return OuterSelection(selectors=tuple(selectors), undo=undo), dropped


def _product(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord, drop_axes: Coord
) -> tuple[OuterSelection | None, Coord]:
    """Join items that are a product over the axes, or return None; also return the axes that the output lacks."""
    ndim = len(shard_shape)
    first = batch[0][2]
    if not isinstance(first, tuple) or len(first) != ndim:
        return None, ()
    dropped = drop_axes or tuple([axis for axis, inside in enumerate(first) if isinstance(inside, _NUMBERS)])
    out_axes = [axis for axis in range(ndim) if axis not in dropped]
    axes = _axes(coords, batch, out_axes, ndim) if len(out_axes) == len(out_shape) else None
    if axes is None:
        return None, ()
    selectors: list[slice | Column] = []
    undo: list[tuple[int, slice | Column | int]] = []
    lengths = dict(zip(out_axes, out_shape, strict=True))
    for axis, pieces in enumerate(axes):
        joined = _join(pieces, shard_shape[axis], lengths.get(axis, 1))
        if joined is None:
            return None, ()
        selectors.append(joined[0])
        if joined[1] is not None:
            undo.append((axis, joined[1]))
    undo += zip(reversed(dropped), repeat(0))
    return OuterSelection(selectors=tuple(selectors), undo=tuple(undo)), dropped


def _axes(coords: Sequence[Coord], batch: Sequence[Item], out_axes: Sequence[int], ndim: int) -> list[_Pieces] | None:
    """Split the items of a product by axis; None if they are not a product."""
    axes: list[_Pieces] = [{} for _ in range(ndim)]
    for coord, (_, _, inside, place, _) in zip(coords, batch, strict=True):
        if not isinstance(inside, tuple) or not isinstance(place, tuple):
            return None
        if len(inside) != ndim or len(place) != len(out_axes):
            return None
        places = dict(zip(out_axes, place, strict=True))
        for axis, at in enumerate(coord):
            piece = inside[axis], places.get(axis)
            known = axes[axis].setdefault(at, piece)
            if known is not piece and not (_is_same(known[0], piece[0]) and _is_same(known[1], piece[1])):
                return None
    is_product = len(coords) == prod(map(len, axes)) == len(set(coords))
    return axes if is_product else None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _join(pieces: _Pieces, length: int, n_out: int) -> tuple[slice | Column, Column | None] | None:
    """Return the selection along an axis in increasing order, and the index that restores the output's order."""
    is_sliced = True
    for inside, place in pieces.values():
        if not isinstance(inside, _SELECTORS) or not isinstance(place, _PLACES):
            return None
        is_sliced = is_sliced and not isinstance(inside, np.ndarray) and not isinstance(place, np.ndarray)
    if is_sliced:
        joined_slice = _join_slices(pieces, length, n_out)
        return None if joined_slice is None else (joined_slice, None)
    inside = [_indices(selector, length) for selector, _ in pieces.values()]
    if not all(_are_inside(within, length) for within in inside):
        return None
    index = np.concatenate([at * length + within for at, within in zip(pieces, inside, strict=True)])
    position = np.concatenate([_indices(place, n_out) for _, place in pieces.values()])
    if len(index) != n_out or len(position) != n_out:
        return None
    back = np.full(n_out, -1, np.int64)
    order = np.argsort(index, kind="stable")
    back[position[order]] = np.arange(n_out)
    if (back < 0).any():
        return None
    index = index[order]
    in_order = bool((back[1:] > back[:-1]).all())
    return _as_slice(index), None if in_order else back


def _are_inside(within: Column, length: int) -> bool:
    return not within.size or (int(within.min()) >= 0 and int(within.max()) < length)


def _join_slices(pieces: _Pieces, length: int, n_out: int) -> slice | None:
    """Join slices and single elements of shards into one slice; None if there is no such slice."""
    first = step = None
    n_done = 0
    for at, (inside, place) in sorted(pieces.items()):
        within = range(*inside.indices(length)) if isinstance(inside, slice) else range(inside, inside + 1)
        if first is None:
            first, step = at * length + within.start, within.step
        placed = range(*place.indices(n_out)) if isinstance(place, slice) else range(1)
        expected = range(n_done, n_done + len(within))
        if step != within.step or placed != expected or at * length + within.start != first + n_done * step:
            return None
        n_done += len(within)
    if first is None or step is None or n_done != n_out or step < 1:
        return None
    return slice(first, first + (n_done - 1) * step + 1, step)


def _indices(selector: Any, length: int) -> Column:
    """Return a selector of one axis as indexes, shape (n,); an array of `numpy.ix_` has other axes of length 1."""
    if isinstance(selector, np.ndarray):
        flat = selector.reshape(-1)
        return np.flatnonzero(flat).astype(np.int64) if flat.dtype == bool else flat.astype(np.int64)
    if isinstance(selector, slice):
        return np.arange(*selector.indices(length), dtype=np.int64)
    return np.array([selector or 0], np.int64)


def _as_slice(index: Column) -> slice | Column:
    """Return increasing indexes as a slice if they are evenly spaced: `numpy.ix_` turns slices into indexes."""
    if len(index) < 2:
        return slice(int(index[0]), int(index[0]) + 1, 1) if len(index) else index
    step = int(index[1] - index[0])
    if step < 1 or (np.diff(index) != step).any():
        return index
    return slice(int(index[0]), int(index[-1]) + 1, step)


def _points(
    coords: Sequence[Coord], batch: Sequence[Item], shard_shape: Coord, out_shape: Coord
) -> tuple[Column, ...] | None:
    """Return the coordinates of all elements of a flat output, one column per axis."""
    if len(out_shape) != 1 or not shard_shape:
        return None
    points = tuple(np.full(out_shape, -1, np.int64) for _ in shard_shape)
    for coord, (_, _, inside, place, _) in zip(coords, batch, strict=True):
        columns = [c for c in inside if isinstance(c, np.ndarray) and c.dtype.kind in "iu"]
        if len(columns) != len(shard_shape) or any(column.ndim != 1 for column in columns):
            return None
        if not all(map(_are_inside, inside, shard_shape)):
            return None
        for column, at, within, length in zip(points, coord, inside, shard_shape, strict=True):
            column[place] = within + at * length
    return None if any((column < 0).any() for column in points) else points
