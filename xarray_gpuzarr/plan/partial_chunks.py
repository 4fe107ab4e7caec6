"""Which chunks a read takes only a part of: another read may want another part of them soon."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.plan.axis_pieces import AxisPieces, Span
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, ReadPlan, Target
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

_Flags = npt.NDArray[np.bool_]


class PartialChunks:
    """The chunks of a target of which a part is taken: less than what lies inside of the array."""

    def __init__(self, target: Target, grid: ChunkGrid) -> None:
        self.are_all = isinstance(target, PointTarget)
        """Whether a part is taken of every chunk."""
        self._axes: list[_Flags | None] = []
        """Per axis, whether pieces are less than their chunks; None if none is."""
        if isinstance(target, BoxTarget) and target.spans is not None and target.n_chunks == 1:
            self.are_all = is_part(target)
        elif isinstance(target, BoxTarget):
            self._cut(target, grid)
        elif isinstance(target, StackTarget):
            axes = zip(target.pieces[1:], grid.chunk_shape, strict=True)
            self.are_all = any(((pieces.count < length) | (pieces.step != 1)).any() for pieces, length in axes)
        self.target = target
        self.are_none = not self.are_all and not [flags for flags in self._axes if flags is not None]
        """Whether all chunks are taken whole."""

    def _cut(self, target: BoxTarget, grid: ChunkGrid) -> None:
        for axis, (_, length, _) in enumerate(target.axes):
            if target.spans is None:
                flags, are_all = _partial_pieces(target.pieces[axis], grid.chunk_shape[axis], length)
            else:
                flags, are_all = _partial_ends(target.spans[axis], length)
            self._axes.append(flags)
            self.are_all = self.are_all or are_all

    def rows(self, plan: ReadPlan) -> list[int]:
        """Return the rows of a plan's stored chunks of which a part is taken."""
        if self.are_all or self.are_none:
            return list(range(plan.n_stored if self.are_all else 0))
        is_partial = np.zeros(plan.n_stored, np.bool_)
        for axis, flags in enumerate(self._axes):
            if flags is not None:
                is_partial |= flags.take(plan.row[:, axis])
        rows: list[int] = is_partial.nonzero()[0].tolist()
        return rows


_MUCH = 100
"""A hundredth of a chunk is much: for a few elements, who reads them of many chunks would write all of these to memory
that is in no core's cache, which takes a tenth of the time that gzip takes (November 2026)."""
_MOST = 7 / 8
"""Share of a chunk from which on decoding up to there counts as decoding all: the rest takes a seventh of the time."""


def are_much(target: Target, grid: ChunkGrid) -> bool:
    """Whether much is taken of the chunks of a target, such as a plane of each, and not a few elements."""
    return math.prod(target.shape) * _MUCH >= target.n_chunks * math.prod(grid.chunk_shape)


def reach_most(target: Target) -> bool:
    """Whether decoding chunks up to their last wanted elements is decoding most of them.

    It is looked at along the first axis, of chunks in C order.
    """
    return _reach(target) > _MOST


def _reach(target: Target) -> float:
    """Return up to where chunks are wanted along the first axis, as a share; 0 if several are, or it is unknown."""
    spans = target.spans if isinstance(target, BoxTarget) else None
    if not spans or spans[0].n_pieces != 1:
        return 0
    first = spans[0]
    return (first.first % first.chunk_length + (first.n_elements - 1) * first.step + 1) / first.chunk_length


def is_part(target: BoxTarget) -> bool:
    """Whether a box of evenly spaced elements is less than what the array has of its chunks."""
    assert target.spans is not None
    for (first, n_elements, step, _, chunk_length), (_, length, _) in zip(target.spans, target.axes, strict=True):
        end = first + (n_elements - 1) * step + 1
        if first % chunk_length or step != 1 or (end % chunk_length and end < length):
            return True
    return False


@lru_cache(maxsize=512)
def _partial_ends(along: Span, length: int) -> tuple[_Flags | None, bool]:
    """Say which pieces of a span, along an axis of a length, are less than their chunks, and whether all are.

    None if none is. It is kept for the next read: most of an array are alike.
    """
    chunk_length = along.chunk_length
    end = along.first + (along.n_elements - 1) * along.step + 1
    is_thinned = along.step != 1 and chunk_length > 1
    flags = np.full(along.n_pieces, is_thinned)
    flags[0] |= along.first % chunk_length != 0
    flags[-1] |= end % chunk_length != 0 and end < length
    return _flags(flags)


def _partial_pieces(pieces: AxisPieces, chunk_length: int, length: int) -> tuple[_Flags | None, bool]:
    """Say of pieces of any kind what `_partial_ends` says of a span."""
    inside: Column = np.minimum(chunk_length, length - pieces.chunk * chunk_length)
    return _flags(pieces.count < inside)


def _flags(flags: _Flags) -> tuple[_Flags | None, bool]:
    return (flags, bool(flags.all())) if flags.any() else (None, False)
