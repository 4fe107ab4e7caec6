"""A box of one shard, or of one chunk that is an object of its own, as little reads take it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import floordiv

from xarray_gpuzarr.plan.axis_pieces import blocks
from xarray_gpuzarr.plan.read_plan import BoxTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@record
class ObjectBox:
    """Evenly spaced elements along each axis of one object."""

    coord: tuple[int, ...]
    """Of the object among those of the array."""
    first: tuple[int, ...]
    """First wanted element along each axis, counted from the object's first."""
    count: tuple[int, ...]
    """Wanted elements, at least one."""
    step: tuple[int, ...]
    """Distances between them, at least 1."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what is wanted."""
        return self.count

    def most_chunks(self, chunk_shape: Sequence[int]) -> int:
        """Return how many inner chunks it touches; fewer, where elements lie farther apart than chunks are long."""
        axes = zip(self.first, self.count, self.step, chunk_shape, strict=True)
        return math.prod([min(n, (first % c + (n - 1) * step) // c + 1) for first, n, step, c in axes])


def object_boxes(target: BoxTarget, grid: ChunkGrid) -> Iterator[tuple[ObjectBox, tuple[int, ...]]]:
    """Return the box of each object that a target of slices touches, and where it begins in the output.

    Parameters
    ----------
    target : BoxTarget
    grid : ChunkGrid
    """
    pieces = target.pieces
    for ranges in blocks(pieces, grid.chunks_per_shard, sharded=True, max_chunks=1):
        low = [(p, r.start) for p, r in zip(pieces, ranges, strict=True)]
        high = [(p, r.stop - 1) for p, r in zip(pieces, ranges, strict=True)]
        at = tuple(int(p.out_start[i]) for p, i in low)
        count = tuple(int(p.out_start[i]) + int(p.count[i]) - first for (p, i), first in zip(high, at, strict=True))
        chunk = [int(p.chunk[i]) for p, i in low]
        axes = zip(low, chunk, grid.chunk_shape, grid.chunks_per_shard, strict=True)
        box = ObjectBox(
            coord=tuple(map(floordiv, chunk, grid.chunks_per_shard)),
            first=tuple(c % n * length + int(p.in_start[i]) for (p, i), c, length, n in axes),
            count=count,
            # Any number may follow a single element.
            step=tuple(1 if n == 1 else p.step for n, p in zip(count, pieces, strict=True)),
        )
        yield box, at
