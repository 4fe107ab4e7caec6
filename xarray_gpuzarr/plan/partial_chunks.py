"""Chunks of which a read takes only a part.

The cache of decoded chunks keeps such chunks, since another read may soon take another part of them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.plan.axis_pieces import AxisPieces, Span
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.plan.targets import BoxTarget, PointTarget, Target
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

_Flags = npt.NDArray[np.bool_]


class PartialChunks:
    """The chunks of a target of which a read takes fewer elements than the chunk has inside the array.

    The chunks of a stack are not told apart: all count as partial unless every piece has all elements of a full chunk.
    """

    def __init__(self, target: Target, grid: ChunkGrid) -> None:
        self.all_are_partial = isinstance(target, PointTarget)
        """Whether all chunks are partial."""
        self._flags: list[_Flags | None] = []
        """For each axis, whether each piece is less than its chunk; None if no piece is. Empty for points, stacks,
        and a box of evenly spaced elements in one chunk: `all_are_partial` then tells everything."""
        if isinstance(target, BoxTarget) and target.spans is not None and target.n_chunks == 1:
            # This is the usual short read. `_find_partial_pieces` would find the same, but make arrays for it.
            self.all_are_partial = takes_part(target)
        elif isinstance(target, BoxTarget):
            self._find_partial_pieces(target, grid)
        elif isinstance(target, StackTarget):
            axes = zip(target.pieces[1:], grid.chunk_shape, strict=True)
            self.all_are_partial = any(((pieces.count < length) | (pieces.step != 1)).any() for pieces, length in axes)
        self.target = target
        partial_axes = [axis for axis, flags in enumerate(self._flags) if flags is not None]
        self.none_is_partial = not self.all_are_partial and not partial_axes
        """Whether all chunks are taken as a whole."""

    def _find_partial_pieces(self, target: BoxTarget, grid: ChunkGrid) -> None:
        """Set the flags of each axis, and `all_are_partial` if all pieces along some axis are partial."""
        for axis, (_, length, _) in enumerate(target.axes):
            if target.spans is None:
                flags, all_are_partial = _partial_pieces(target.pieces[axis], grid.chunk_shape[axis], length)
            else:
                flags, all_are_partial = _partial_ends(target.spans[axis], length)
            self._flags.append(flags)
            self.all_are_partial = self.all_are_partial or all_are_partial

    @property
    def n_partial(self) -> int:
        """Number of partial chunks, whether they are stored or not."""
        if self.all_are_partial:
            return self.target.n_chunks
        if self.none_is_partial:
            return 0
        assert isinstance(self.target, BoxTarget)  # for points and stacks, all chunks are partial or none is
        # A chunk is taken as a whole if its pieces along all axes are.
        n_partial_pieces = [0 if flags is None else int(flags.sum()) for flags in self._flags]
        n_whole_pieces = [n - n_partial for n, n_partial in zip(self.target.n_pieces, n_partial_pieces, strict=True)]
        return self.target.n_chunks - math.prod(n_whole_pieces)

    def rows(self, plan: ReadPlan) -> list[int]:
        """Return the rows of a plan's partial chunks that are stored."""
        if self.all_are_partial:
            return list(range(plan.n_stored))
        if self.none_is_partial:
            return []
        is_partial = np.zeros(plan.n_stored, np.bool_)
        for axis, flags in enumerate(self._flags):
            if flags is not None:
                is_partial |= flags.take(plan.piece_numbers[:, axis])
        rows: list[int] = is_partial.nonzero()[0].tolist()
        return rows


_MAX_SPARSITY = 100
"""A read takes much of its chunks if it takes at least one of this many of their elements. Chunks may then be kept when
they are first read. Reads that take less are spared the cost: a chunk that is kept is written as a whole to memory
outside the CPU's caches, which takes a tenth of the time of decoding gzip (November 2026)."""
_NEARLY_ALL = 7 / 8
"""A chunk of which more than this share is decoded counts as decoded as a whole, as in `decode_part` of `codecs.h`."""


def takes_much(target: Target, grid: ChunkGrid) -> bool:
    """Whether a target takes much of its chunks, such as a plane of each, rather than a few elements."""
    return math.prod(target.shape) * _MAX_SPARSITY >= target.n_chunks * math.prod(grid.chunk_shape)


def reaches_most(target: Target) -> bool:
    """Whether decoding chunks up to their last requested elements means decoding most of them.

    Only the first axis counts, along which decoding proceeds for chunks in C order.
    """
    return _reach(target) > _NEARLY_ALL


def _reach(target: Target) -> float:
    """Return the share of each chunk, along the first axis, that lies before the end of the last requested element.

    It is 0 if it is not the same for all chunks, because several are touched along the first axis, or if the elements
    are not evenly spaced.
    """
    spans = target.spans if isinstance(target, BoxTarget) else None
    if not spans or spans[0].n_pieces != 1:
        return 0
    span = spans[0]
    end = span.first % span.chunk_length + (span.n_elements - 1) * span.step + 1
    return end / span.chunk_length


def takes_part(target: BoxTarget) -> bool:
    """Whether a box of evenly spaced elements has fewer elements than its chunks have inside the array."""
    assert target.spans is not None
    for span, (_, length, chunk_length) in zip(target.spans, target.axes, strict=True):
        end = span.first + (span.n_elements - 1) * span.step + 1
        is_strided = span.step != 1 and chunk_length > 1
        if is_strided or span.first % chunk_length or (end % chunk_length and end < length):
            return True
    return False


@lru_cache(maxsize=512)
def _partial_ends(span: Span, length: int) -> tuple[_Flags | None, bool]:
    """Return whether each piece of a span is less than its chunk, and whether all pieces are.

    The first value is None if no piece is. `length` is that of the axis. The result is cached, since most reads of an
    array are alike.
    """
    chunk_length = span.chunk_length
    end = span.first + (span.n_elements - 1) * span.step + 1
    is_strided = span.step != 1 and chunk_length > 1
    flags = np.full(span.n_pieces, is_strided)
    if (end - 1) % chunk_length == 0 and end == length:
        flags[-1] = False  # the last chunk has one element inside the array, so no step skips any of it
    flags[0] |= span.first % chunk_length != 0
    flags[-1] |= end % chunk_length != 0 and end < length
    return _summarize(flags)


def _partial_pieces(pieces: AxisPieces, chunk_length: int, length: int) -> tuple[_Flags | None, bool]:
    """Return the result of `_partial_ends` for pieces of any kind."""
    n_inside: Column = np.minimum(chunk_length, length - pieces.chunk * chunk_length)
    return _summarize(pieces.count < n_inside)


def _summarize(flags: _Flags) -> tuple[_Flags | None, bool]:
    """Return flags, or None if none is set; and whether all are set."""
    return (flags, bool(flags.all())) if flags.any() else (None, False)
