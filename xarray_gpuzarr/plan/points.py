"""A pointwise (vectorized) selection, sorted by the chunks that hold its points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xarray_gpuzarr.plan.selection import Column, checked_index
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class PointGroups:
    """Points of an array, sorted by the chunk that holds them."""

    chunk: Column
    """shape (n_groups, ndim): chunk coordinate of each group, in C order."""
    bounds: Column
    """shape (n_groups + 1,): points ``[bounds[i], bounds[i + 1])`` lie in chunk ``chunk[i]``."""
    within: Column
    """shape (n_points, ndim): each point, counted from the start of its chunk."""
    position: Column
    """shape (n_points,): where each point goes in the flat result."""


def group_points(points: Sequence[Any], grid: ChunkGrid) -> PointGroups:
    """Sort points by chunk.

    Parameters
    ----------
    points : one integer array of shape (n_points,) per axis
        Coordinates; negative ones count from the end.
    grid : ChunkGrid

    Raises
    ------
    SelectionError
        A coordinate lies outside the array.
    """
    at = np.stack(
        [checked_index(np.asarray(p), n, axis) for axis, (p, n) in enumerate(zip(points, grid.shape, strict=True))],
        axis=1,
    )
    chunk_shape = np.asarray(grid.chunk_shape, np.int64)
    chunk = at // chunk_shape
    flat = _numbered(chunk, grid.n_chunks)
    position = np.argsort(flat, kind="stable").astype(np.int64)
    ordered = flat[position]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(at) else position
    return PointGroups(
        chunk=chunk[position[first]],
        bounds=np.r_[first, len(at)].astype(np.int64),
        within=(at - chunk * chunk_shape)[position],
        position=position,
    )


def _numbered(chunk: Column, n_chunks: tuple[int, ...]) -> Column:
    """Return a number for each row of coordinates, in C order of the chunks."""
    if not len(chunk):
        return chunk[:, 0]
    if math.prod(n_chunks) >= 2**63:  # more chunks than there are numbers, of which few are asked for
        return np.unique(chunk, axis=0, return_inverse=True)[1].reshape(-1)
    numbers: Column = np.ravel_multi_index(tuple(chunk.T), n_chunks)
    return numbers
