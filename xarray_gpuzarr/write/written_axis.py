"""`WrittenAxis`: the objects and chunks that a write touches along one axis of an array."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.axis_pieces import MAX_CACHED, AxisPieces, Span, intersect_axis
from xarray_gpuzarr.plan.points import run_starts
from xarray_gpuzarr.plan.targets import BoxTarget
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

_NO_PIECE = -1
"""Stands for the piece of a chunk to which nothing is written."""


@record
class WrittenAxis:
    """The objects that are written to along an axis, and their chunks."""

    coords: list[int]
    """Coordinates of the objects along the axis, in increasing order."""
    are_complete: list[bool]
    """For each object, whether all its elements along the axis are written. An object that reaches beyond the end of
    the array counts as incomplete."""
    piece: Column
    """For each chunk of the objects, number of the piece that is written to it, or -1. Shape (n,), object by
    object."""
    piece_address: int
    """Address of `piece` in host memory."""


def written_axes(target: BoxTarget, grid: ChunkGrid) -> list[WrittenAxis]:
    """Return what a write touches along each axis of an array.

    Parameters
    ----------
    target : BoxTarget
        The elements that are written.
    grid : ChunkGrid
        Chunks and shards of the array.
    """
    is_short = max((*target.n_pieces, *grid.chunks_per_shard), default=0) <= MAX_CACHED
    if is_short and target.spans is not None:
        return list(map(_cached_axis, target.spans, grid.chunks_per_shard))
    return list(map(_written_axis, target.pieces, grid.chunk_shape, grid.chunks_per_shard))


@lru_cache(maxsize=512)
def _cached_axis(span: Span, chunks_per_object: int) -> WrittenAxis:
    """Return an axis, given its span. It is cached, since consecutive blocks have most of their axes in common."""
    stop = span.first + (span.n_elements - 1) * span.step + 1
    # `stop` stands for the length of the axis, which a span does not have. No piece depends on what follows `stop`.
    pieces = intersect_axis(slice(span.first, stop, span.step), stop, span.chunk_length)
    return _written_axis(pieces, span.chunk_length, chunks_per_object)


def _written_axis(pieces: AxisPieces, chunk_length: int, chunks_per_object: int) -> WrittenAxis:
    """Return an axis, given the pieces of the write, and the length of a chunk and the chunks of an object along it."""
    object_of_piece = pieces.chunk // chunks_per_object
    first_piece = run_starts(object_of_piece)
    coords = object_of_piece.take(first_piece)

    piece = np.full(len(coords) * chunks_per_object, _NO_PIECE, np.int64)
    # For each piece, the row of its object's first chunk in `piece`.
    first_row = coords.searchsorted(object_of_piece) * chunks_per_object
    piece[first_row + pieces.chunk % chunks_per_object] = np.arange(len(object_of_piece))

    n_written = first_piece  # of length 0 if nothing is written, which `reduceat` refuses
    if len(first_piece):
        n_written = np.add.reduceat(pieces.count, first_piece)
    # An index array may have an element twice, so its number of elements does not tell whether it has all.
    are_complete = (n_written == chunk_length * chunks_per_object) & (pieces.index is None)
    return WrittenAxis(
        coords=coords.tolist(), are_complete=are_complete.tolist(), piece=piece, piece_address=address(piece)
    )
