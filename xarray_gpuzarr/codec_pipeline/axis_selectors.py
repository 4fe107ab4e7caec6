"""Joins what a batch selects along one axis, shard by shard, into one slice or index array.

A *selector* is a selection along one axis: a slice, an integer or an index array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xarray_gpuzarr.process.records import Column

INTEGERS = (int, np.integer)
_INSIDE_TYPES = (slice, *INTEGERS, np.ndarray)
"""Types of selectors inside a shard that can be joined."""
_OUT_TYPES = (slice, np.ndarray, type(None))
"""Types of selectors of the output that can be joined."""

AxisSelectors = dict[int, tuple[Any, Any]]
"""Coordinate of a shard along an axis -> the selector inside the shard, and the selector of the output. The latter is
None if the output lacks the axis."""


def join_axis(
    selectors: AxisSelectors, shard_length: int, out_length: int
) -> tuple[slice | Column, Column | None] | None:
    """Join the selectors of all shards along one axis.

    Parameters
    ----------
    selectors : dict
        The selectors of each shard that is touched; at least one shard.
    shard_length : int
        Elements of a shard along the axis.
    out_length : int
        Elements of the output along the axis, all of which must be filled.

    Returns
    -------
    tuple or None
        ``(selection, index)``: the selection along the axis of the array, in increasing order, and the index that
        brings the elements that were read into the order of the output. `index` is None if both orders are equal.

        The whole result is None if the selectors cannot be joined: they are of other types, lie outside of their
        shards, or do not fill each element of the output once; or they are slices that do not continue each other.
    """
    are_slices = True
    for inside, out in selectors.values():
        if not isinstance(inside, _INSIDE_TYPES) or not isinstance(out, _OUT_TYPES):
            return None
        are_slices = are_slices and not isinstance(inside, np.ndarray) and not isinstance(out, np.ndarray)
    if are_slices:
        joined = _join_slices(selectors, shard_length, out_length)
        return None if joined is None else (joined, None)

    inside_indexes = [_as_index(inside, shard_length) for inside, _ in selectors.values()]
    if not all(is_inside(index, shard_length) for index in inside_indexes):
        return None
    index = np.concatenate([coord * shard_length + i for coord, i in zip(selectors, inside_indexes, strict=True)])
    position = np.concatenate([_as_index(out, out_length) for _, out in selectors.values()])
    if len(index) != out_length or len(position) != out_length:
        return None
    order = np.argsort(index, kind="stable")
    # For each element of the output, its position among the elements in increasing order.
    restore = np.full(out_length, -1, np.int64)
    restore[position[order]] = np.arange(out_length)
    if (restore < 0).any():  # an element is not filled, so another one is filled twice
        return None
    is_in_order = bool((restore[1:] > restore[:-1]).all())
    return _as_slice(index[order]), None if is_in_order else restore


def _join_slices(selectors: AxisSelectors, shard_length: int, out_length: int) -> slice | None:
    """Join slices and integers into one slice of the array; None if there is no such slice."""
    start: int | None = None
    step = 0
    n_joined = 0
    for coord, (inside, out) in sorted(selectors.items()):
        in_range = range(*inside.indices(shard_length)) if isinstance(inside, slice) else range(inside, inside + 1)
        out_range = range(*out.indices(out_length)) if isinstance(out, slice) else range(1)
        if start is None:
            start = coord * shard_length + in_range.start
            step = in_range.step
        is_next = coord * shard_length + in_range.start == start + n_joined * step
        if step != in_range.step or out_range != range(n_joined, n_joined + len(in_range)) or not is_next:
            return None
        n_joined += len(in_range)
    if start is None or n_joined != out_length or step < 1:
        return None
    return slice(start, start + (n_joined - 1) * step + 1, step)


def is_inside(index: Column, length: int) -> bool:
    """Whether all indexes are in ``[0, length)``."""
    return not index.size or (int(index.min()) >= 0 and int(index.max()) < length)


def _as_index(selector: Any, length: int) -> Column:
    """Return a selector of an axis of this length as indexes, int64 of shape (n,); None selects element 0."""
    if isinstance(selector, np.ndarray):
        flat = selector.reshape(-1)  # arrays of `numpy.ix_` have other axes of length 1
        return np.flatnonzero(flat).astype(np.int64) if flat.dtype == bool else flat.astype(np.int64)
    if isinstance(selector, slice):
        return np.arange(*selector.indices(length), dtype=np.int64)
    return np.array([selector or 0], np.int64)


def _as_slice(index: Column) -> slice | Column:
    """Return increasing indexes as a slice if they are evenly spaced.

    zarr-python passes slices as indexes if it has built the selection with `numpy.ix_`.
    """
    if not len(index):
        return index
    start = int(index[0])
    if len(index) == 1:
        return slice(start, start + 1, 1)
    step = int(index[1]) - start
    if step < 1 or (np.diff(index) != step).any():
        return index
    return slice(start, int(index[-1]) + 1, step)
