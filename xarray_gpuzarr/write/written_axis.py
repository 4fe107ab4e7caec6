"""`WrittenAxis`: which objects and chunks a write touches along one axis of an array."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.axis_pieces import MAX_CACHED, AxisPieces, Span, intersect_axis
from xarray_gpuzarr.plan.points import run_starts
from xarray_gpuzarr.plan.targets import BoxTarget
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@record
class WrittenAxis:
    """The objects that are written to along an axis, and their chunks."""

    coords: list[int]
    """Coordinates of the objects."""
    are_complete: list[bool]
    """Whether all elements of an object are written, along this axis."""
    piece: Column
    """Piece of the selection that each chunk of the objects takes, -1 for none; int64, shape (objects * chunks,)."""
    piece_address: int
    """Address of `piece` in host memory."""


def written_axes(target: BoxTarget, grid: ChunkGrid) -> list[WrittenAxis]:
    """Return what a write to the elements `target` of an array touches along each axis of its grid of chunks."""
    if target.spans is not None and max((*target.n_pieces, *grid.chunks_per_shard), default=0) <= MAX_CACHED:
        return list(map(_kept_axis, target.spans, grid.chunks_per_shard))
    return list(map(_written_axis, target.pieces, grid.chunk_shape, grid.chunks_per_shard))


@lru_cache(maxsize=512)
def _kept_axis(span: Span, per_object: int) -> WrittenAxis:
    """Return a short axis: blocks that are written one after another have most axes in common."""
    stop = span.first + (span.n_elements - 1) * span.step + 1
    pieces = intersect_axis(slice(span.first, stop, span.step), stop, span.chunk_length)
    return _written_axis(pieces, span.chunk_length, per_object)


def _written_axis(pieces: AxisPieces, chunk_length: int, per_object: int) -> WrittenAxis:
    """Return an axis of which a selection gives `pieces` to chunks of `chunk_length`, `per_object` in an object."""
    number = pieces.chunk // per_object
    first = run_starts(number)
    coords = number.take(first)
    piece = np.full(len(coords) * per_object, -1, np.int64)
    piece[coords.searchsorted(number) * per_object + pieces.chunk % per_object] = np.arange(len(number))
    n = np.add.reduceat(pieces.count, first) if len(first) else first
    are_complete = (n == chunk_length * per_object) & (pieces.index is None)
    return WrittenAxis(
        coords=coords.tolist(), are_complete=are_complete.tolist(), piece=piece, piece_address=address(piece)
    )
