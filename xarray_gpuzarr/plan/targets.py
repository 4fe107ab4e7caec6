"""Targets: the outputs of reads, and the chunks that fill them.

A `BoxTarget` is filled box by box, a `PointTarget` point by point; `plan.stack` has the `StackTarget` for crops that
are stacked. Everything here is arithmetic on integers and NumPy columns, without I/O.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import numpy as np

from xarray_gpuzarr.plan.axis_pieces import (
    MAX_CACHED,
    AxisPieces,
    Span,
    cached_shards_of_span,
    intersect_axis,
    lazy_product,
    shards_of_pieces,
    shards_of_span,
    span_of_slice,
)
from xarray_gpuzarr.plan.points import PointGroups
from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


class BoxTarget:
    """An output that is filled box by box.

    Parameters
    ----------
    axes : sequence of (slice or numpy.ndarray, int, int)
        For each axis, the requested elements, the length of the axis, and the length of a chunk along it; see
        `intersect_axis`.
    per_shard : sequence of int
        Number of chunks of a shard along each axis.
    """

    def __init__(self, axes: Sequence[tuple[slice | Column, int, int]], per_shard: Sequence[int]) -> None:
        self.axes = axes
        """For each axis, the requested elements, the length of the axis, and the length of a chunk along it."""
        self._per_shard = per_shard
        spans = [
            span_of_slice(*selected.indices(length), chunk_length) if isinstance(selected, slice) else None
            for selected, length, chunk_length in axes
        ]
        existing_spans = [axis_span for axis_span in spans if axis_span is not None]
        self.spans = tuple(existing_spans) if len(existing_spans) == len(axes) else None
        """Requested elements along each axis; None if they are not evenly spaced along all axes, or there are none."""
        self._index_pieces: dict[int, AxisPieces] = {}
        """Pieces along the axes with index arrays."""
        if self.spans is None:
            lengths, n_pieces = self._count(spans)
        else:
            lengths = [axis_span.n_elements for axis_span in existing_spans]
            n_pieces = [axis_span.n_pieces for axis_span in existing_spans]
            fields: list[int] = []
            for axis_span, n_per_shard in zip(existing_spans, per_shard, strict=True):
                fields += (*axis_span, n_per_shard)
            self._span_structs = array("q", fields)
            """One ``span_of_axis_t`` for each axis. Keeps the memory at `spans_address` alive."""
            self.spans_address = self._span_structs.buffer_info()[0]
            """Address of `_span_structs`, for the compiled loops. Both exist only if `spans` is set."""
        self.shape = tuple(lengths)
        """Shape of the output."""
        self.n_pieces = n_pieces
        """Number of pieces along each axis."""
        self.n_chunks = math.prod(n_pieces)
        """Number of inner chunks that the target touches, whether they are stored or not."""

    def _count(self, spans: Sequence[Span | None]) -> tuple[list[int], list[int]]:
        """Return the number of elements and of pieces along each axis.

        Index arrays are cut for that, and their pieces are kept. Slices are not, since they may have very many pieces.
        """
        lengths: list[int] = []
        n_pieces: list[int] = []
        for axis, axis_span in enumerate(spans):
            selected, length, chunk_length = self.axes[axis]
            if axis_span is not None:
                lengths.append(axis_span.n_elements)
                n_pieces.append(axis_span.n_pieces)
            elif isinstance(selected, slice):  # an empty one, which has no span
                lengths.append(0)
                n_pieces.append(0)
            else:
                self._index_pieces[axis] = intersect_axis(selected, length, chunk_length)
                lengths.append(len(selected))
                n_pieces.append(len(self._index_pieces[axis].chunk))
        return lengths, n_pieces

    @cached_property
    def pieces(self) -> tuple[AxisPieces, ...]:
        """Pieces along each axis; no pieces along any axis if nothing is requested."""
        if not self.n_chunks:
            no_pieces = intersect_axis(slice(0, 0), 0, 1)
            return tuple([replace(no_pieces, length=length) for length in self.shape])
        return tuple(
            [self._index_pieces.get(axis) or intersect_axis(*arguments) for axis, arguments in enumerate(self.axes)]
        )

    def shards(self) -> Iterator[tuple[tuple[int, range], ...]]:
        """Return the touched shards in C order: for each axis, the coordinate of the shard and its piece numbers.

        If the elements are evenly spaced and lie in many chunks, shards are generated as they are needed. Otherwise the
        shards along every axis are listed before the first one is returned, as `itertools.product` does.
        """
        if not self.n_chunks:
            return iter(())
        if self.spans is None:
            return product(*map(shards_of_pieces, self.pieces, self._per_shard))
        if self.n_chunks <= MAX_CACHED:  # then no axis has more, either
            return product(*map(cached_shards_of_span, self.spans, self._per_shard))
        return lazy_product(
            [
                partial(shards_of_span, axis_span, n_per_shard)
                for axis_span, n_per_shard in zip(self.spans, self._per_shard, strict=True)
            ]
        )

    def chunk_coordinates(self, piece_numbers: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape of `piece_numbers`.

        `piece_numbers` are rows of `ReadPlan.all_piece_numbers`.
        """
        coordinates = np.empty_like(piece_numbers)
        for axis, pieces in enumerate(self.pieces):
            coordinates[:, axis] = pieces.chunk.take(piece_numbers[:, axis])
        return coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTarget:
    """A flat output that is filled point by point."""

    groups: PointGroups
    """Points, sorted by the chunks that hold them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (len(self.groups.position),)

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks that the target touches, whether they are stored or not."""
        return len(self.groups.chunk)

    def chunk_coordinates(self, piece_numbers: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape (n, ndim).

        `piece_numbers` are rows of `ReadPlan.all_piece_numbers`: the number of each chunk's group.
        """
        return self.groups.chunk.take(piece_numbers[:, 0], axis=0)


Target = BoxTarget | PointTarget | StackTarget
"""Description of an output and of the chunks that fill it."""


def box_target(selection: OuterSelection, grid: ChunkGrid, shape: tuple[int, ...] | None = None) -> BoxTarget:
    """Return the target of an outer selection.

    Parameters
    ----------
    selection : OuterSelection
        Requested elements.
    grid : ChunkGrid
        Chunks of the array.
    shape : tuple of int, optional
        Shape of the array, if it has been resized since `grid` was made.
    """
    lengths = grid.shape if shape is None else shape
    return BoxTarget(tuple(zip(selection.selectors, lengths, grid.chunk_shape, strict=True)), grid.chunks_per_shard)
