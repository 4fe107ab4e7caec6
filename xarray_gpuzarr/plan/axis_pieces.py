"""A selection cut at the borders of chunks, axis by axis.

A *piece* is the part of a selection that lies in one chunk along one axis. `AxisPieces` is the table of all pieces
along an axis: which elements of the chunk are requested, and which positions of the selection they fill. A *piece
number* is the number of a row of this table. A chunk that the selection touches has one piece along each axis, so
`ndim` piece numbers describe it. `Span` describes evenly spaced elements without a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from xarray_gpuzarr.plan.points import run_starts
from xarray_gpuzarr.process.records import Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisPieces:
    """Pieces of a selection along one axis, one for each chunk that it touches. Columns have shape (n_pieces,).

    For a stack, these are the pieces of all samples, so there may be several for one chunk.
    """

    chunk: Column
    """Coordinate of the chunk along the axis."""
    out_start: Column
    """First position in the selection that the piece fills."""
    count: Column
    """Number of positions in the selection that the piece fills."""
    in_start: Column
    """First requested element, counted from the start of the chunk."""
    step: int
    """Distance between requested elements; 0 if `index` lists them."""
    index: Column | None
    """Requested element for each position in the selection, counted from the start of its chunk; None if they are
    evenly spaced."""
    length: int
    """Number of positions in the selection."""
    is_cached: bool = False
    """Whether the next read of the same elements gets this very object. Values computed from it are then worth caching
    (`OutputBoxes`)."""
    index_start: Column | None = None
    """First position of each piece in `index`; None if it is `out_start`. It differs for a stack, where the indices of
    all samples lie one after another in `index`."""

    def in_keys(self) -> list[slice | Column]:
        """Return, for each piece, the index of the requested elements in the chunk."""
        if self.index is not None:
            start = self.out_start if self.index_start is None else self.index_start
            stop = start + self.count
            return [self.index[lo:hi] for lo, hi in zip(start.tolist(), stop.tolist(), strict=True)]
        end = self.in_start + (self.count - 1) * self.step + 1
        return list(map(slice, self.in_start.tolist(), end.tolist(), repeat(self.step)))

    def out_keys(self) -> list[slice]:
        """Return, for each piece, the slice of the selection that it fills."""
        return list(map(slice, self.out_start.tolist(), (self.out_start + self.count).tolist()))


class Span(NamedTuple):
    """Evenly spaced elements along one axis; at least one."""

    first: int
    """First element, counted from the start of the axis."""
    n_elements: int
    step: int
    """Distance between elements, at least 1; it is 1 for a single element."""
    n_pieces: int
    """Number of chunks that the elements lie in."""
    chunk_length: int
    """Number of elements of a chunk along the axis."""


@lru_cache(maxsize=512)
def span_of_slice(start: int, stop: int, step: int, chunk_length: int) -> Span | None:
    """Return ``range(start, stop, step)`` as a span; None if it is empty. The step is positive."""
    if start >= stop:
        return None
    n = (stop - start - 1) // step + 1
    if n == 1:
        return Span(start, 1, 1, 1, chunk_length)  # the step of a single element does not matter
    if step > chunk_length:  # each element lies in a chunk of its own
        return Span(start, n, step, n, chunk_length)
    last = start + (n - 1) * step
    return Span(start, n, step, last // chunk_length - start // chunk_length + 1, chunk_length)


def shards_of_span(span: Span, per_shard: int) -> Iterator[tuple[int, range]]:
    """Yield each shard that a span touches: its coordinate along the axis, and the numbers of the pieces in it.

    A shard has `per_shard` chunks along the axis.
    """
    first, n_elements, step, n_pieces, chunk_length = span
    first_chunk = first // chunk_length
    shard_length = chunk_length * per_shard
    if n_pieces == 1:
        yield first_chunk // per_shard, _ONE_PIECE
        return
    if step > shard_length:  # each element is a piece, and lies in a shard of its own
        for i in range(n_elements):
            yield (first + i * step) // shard_length, range(i, i + 1)
        return
    last_shard = (first + (n_elements - 1) * step) // shard_length
    first_piece = 0
    for shard in range(first // shard_length, last_shard + 1):
        shard_end = (shard + 1) * shard_length  # first element behind the shard
        if step <= chunk_length:  # no chunk is skipped, so each one is a piece
            next_piece = min(n_pieces, shard_end // chunk_length - first_chunk)
        else:  # each element is a piece
            next_piece = min(n_elements, -((first - shard_end) // step))  # the division is rounded up
        yield shard, range(first_piece, next_piece)
        first_piece = next_piece


_ONE_PIECE = range(1)


@lru_cache(maxsize=512)
def cached_shards_of_span(span: Span, per_shard: int) -> list[tuple[int, range]]:
    """Return the shards that `shards_of_span` yields, cached: many reads have the same span along some axes."""
    return list(shards_of_span(span, per_shard))


def chunks_of_span(span: Span, pieces: range) -> Sequence[int]:
    """Return the chunk that each of some pieces lies in, as its coordinate along the axis."""
    first, _, step, _, chunk_length = span
    if step > chunk_length:
        return [(first + i * step) // chunk_length for i in pieces]
    first_chunk = first // chunk_length
    return range(first_chunk + pieces.start, first_chunk + pieces.stop)


def largest_box(pieces: Sequence[AxisPieces]) -> int:
    """Return an upper limit for the number of elements of a box: the product of the longest pieces of all axes.

    With repeated indices, a box may have more elements than its chunk.
    """
    return math.prod(int(axis_pieces.count.max(initial=0)) for axis_pieces in pieces)


def intersect_axis(selected: slice | Column, length: int, chunk_length: int) -> AxisPieces:
    """Cut one axis of a selection at the borders of chunks.

    Parameters
    ----------
    selected : slice or numpy.ndarray
        Requested elements, all inside ``[0, length)``: a slice with a positive step, or int64 of shape (n,) that never
        decreases.
    length, chunk_length : int
        Number of elements of the array and of a chunk along the axis.

    Raises
    ------
    MemoryError
        If there are too many pieces to make columns of them.
    """
    if isinstance(selected, slice):
        start, stop, step = selected.indices(length)
        if stop - start <= MAX_CACHED * chunk_length:
            return _cached_slice(start, stop, step, chunk_length)
        return _intersect_slice(start, stop, step, chunk_length)
    n = len(selected)
    chunk = selected // chunk_length
    index = selected - chunk * chunk_length
    first = run_starts(chunk)
    return AxisPieces(
        chunk=chunk[first],
        out_start=first,
        count=np.diff(np.r_[first, n]),
        in_start=index[first],
        step=0,
        index=index,
        length=n,
    )


def _intersect_slice(start: int, stop: int, step: int, chunk_length: int) -> AxisPieces:
    """Return the pieces of ``range(start, stop, step)``, with a positive step."""
    n = len(range(start, stop, step))
    if n <= 1:
        step = 1  # the step of a single element does not matter, and may not fit int64
    last = start + (n - 1) * step
    n_pieces = min(n, last // chunk_length - start // chunk_length + 1) if n else 0
    if n_pieces >= TOO_MANY_PIECES:
        raise MemoryError(f"{n} elements in {n_pieces} chunks along an axis")
    piece_numbers = np.arange(n_pieces, dtype=np.int64)
    if step > chunk_length:  # each element lies in a chunk of its own, and chunks between them hold none
        chunk = (start + piece_numbers * step) // chunk_length
    else:
        chunk = start // chunk_length + piece_numbers
    return strided_pieces(start, n, step, chunk, chunk_length)


def strided_pieces(start: int | Column, n: int, step: int, chunk: Column, chunk_length: int) -> AxisPieces:
    """Return the pieces of ``range(start, start + n * step, step)``.

    Parameters
    ----------
    start : int or numpy.ndarray
        First element; int64 of shape (n_pieces,) if the pieces belong to different ranges of `n` elements.
    n, step : int
        Number of elements of a range, and the distance between them.
    chunk : numpy.ndarray
        Coordinates along the axis of the chunks that hold an element, int64, shape (n_pieces,).
    chunk_length : int
        Number of elements of a chunk along the axis.
    """
    border = chunk * chunk_length
    # Positions in the range of the first element that is not before the chunk, and of the first one behind the chunk.
    # The negated divisions are rounded up.
    first = np.maximum(-((start - border) // step), 0)
    after = np.minimum(-((start - border - chunk_length) // step), n)
    return AxisPieces(
        chunk=chunk,
        out_start=first,
        count=after - first,
        in_start=start + first * step - border,
        step=step,
        index=None,
        length=n,
    )


@lru_cache(maxsize=512)
def _cached_slice(start: int, stop: int, step: int, chunk_length: int) -> AxisPieces:
    """Return the pieces of a slice, cached: reads of one chunk after another repeat the same slices of each axis."""
    return replace(_intersect_slice(start, stop, step, chunk_length), is_cached=True)


MAX_CACHED = 256
"""Largest number of chunks along an axis for which tables are cached for later reads."""
TOO_MANY_PIECES = 2**48
"""Number of pieces from which on this package raises MemoryError. For columns of this length, NumPy raises other
errors."""


def shards_of_pieces(axis_pieces: AxisPieces, per_shard: int) -> list[tuple[int, range]]:
    """Return the shards of pieces of any kind, in the form of `shards_of_span`."""
    shard = axis_pieces.chunk // per_shard
    cuts = [*run_starts(shard).tolist(), len(shard)]
    return [(int(shard[lo]), range(lo, hi)) for lo, hi in pairwise(cuts)]


def runs_of_pieces(n_pieces: Sequence[int], max_chunks: int) -> Iterator[tuple[range, ...]]:
    """Cut all chunks, the product of the axes' pieces, into boxes of at most `max_chunks` chunks.

    Yields one range of piece numbers for each axis. Boxes are as long as possible along the last axes.
    """
    n_chunks = math.prod(n_pieces)
    if n_chunks <= max_chunks:
        if n_chunks:
            yield tuple(map(range, n_pieces))
        return
    per_axis = []
    max_length = max_chunks  # of a box along the axis that comes next in the loop
    for n in reversed(n_pieces):
        length = min(n, max_length)
        max_length //= length
        per_axis.append(partial(_ranges, n, length))
    yield from lazy_product(per_axis[::-1])


def _ranges(n: int, length: int) -> Iterator[range]:
    """Cut ``range(n)`` into ranges of `length` numbers; the last one may be shorter."""
    for start in range(0, n, length):
        yield range(start, min(start + length, n))


def lazy_product[Item](axes: Sequence[Callable[[], Iterator[Item]]]) -> Iterator[tuple[Item, ...]]:
    """Yield the tuples of `itertools.product`, without listing the items of every axis first.

    Each of `axes` is a function that returns a new iterator over the items of one axis.
    """
    if not axes:
        yield ()
        return
    for item in axes[0]():
        for others in lazy_product(axes[1:]):
            yield item, *others
