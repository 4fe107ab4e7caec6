"""A pointwise (vectorized) selection, sorted by the chunks that hold its points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xarray_gpuzarr.plan.selection import checked_index
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class PointGroups:
    """Points of an array, sorted by the chunk that holds them."""

    chunk: Column
    """shape (n_groups, ndim): chunk coordinate of each group, in C order."""
    bounds: Column
    """shape (n_groups + 1,): points ``[bounds[i], bounds[i + 1])`` lie in chunk ``chunk[i]``."""
    chunk_offset: Column
    """shape (n_points, ndim): each point, counted from the start of its chunk."""
    position: Column
    """shape (n_points,): where each point goes in the flat result."""


def group_points(points: Sequence[Any], grid: ChunkGrid) -> PointGroups:
    """Sort points by chunk: one integer array of shape (n_points,) per axis; negative coordinates count from the end.

    Raises `SelectionError` if a coordinate lies outside the array.
    """
    n_points = len(points[0]) if points else 0
    chunk, chunk_offset = np.empty((2, n_points, len(grid.shape)), np.int64)
    for axis, (column, length, n) in enumerate(zip(points, grid.shape, grid.chunk_shape, strict=True)):
        at = checked_index(np.asarray(column), length, axis)
        coord = at // n  # by one number: by an array, NumPy takes ten times as long
        chunk[:, axis] = coord
        chunk_offset[:, axis] = at - coord * n
    flat = numbered(chunk, grid.n_chunks)
    position = sorting(flat)
    first = first_of_each(flat[position])
    bounds, chunk_offset = np.append(first, n_points), chunk_offset.take(position, axis=0)
    return PointGroups(chunk=chunk[position[first]], bounds=bounds, chunk_offset=chunk_offset, position=position)


def sorting(numbers: Column) -> Column:
    """Return what sorts numbers from 0 on, equal ones in their order."""
    if len(numbers) and int(numbers.max()) < 2**16:  # NumPy sorts them by their digits, in a fifth of the time
        return np.argsort(numbers.astype(np.uint16), kind="stable").astype(np.int64, copy=False)
    return np.argsort(numbers, kind="stable").astype(np.int64, copy=False)


def numbered(chunk: Column, n_chunks: tuple[int, ...]) -> Column:
    """Return a number for each row of coordinates in a grid of shape `n_chunks`, in C order of the chunks.

    `chunk` is int64, shape (n, ndim).
    """
    if not chunk.size:
        return np.zeros(len(chunk), np.int64)
    if math.prod(n_chunks) >= 2**63:  # more chunks than there are numbers, of which few are asked for
        return np.unique(chunk, axis=0, return_inverse=True)[1].reshape(-1)
    numbers: Column = np.ravel_multi_index(tuple(chunk.T), n_chunks)
    return numbers


def first_of_each(ordered: Column) -> Column:
    """Return where each new number begins in a sorted column."""
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)
