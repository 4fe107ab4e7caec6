"""A selection cut at the borders of chunks, axis by axis.

`AxisPieces` says for every chunk along one axis which of its elements are wanted and where they go. A chunk of the
array is one piece per axis, so everything about it follows from `ndim` small numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from xarray_gpuzarr.plan.points import first_of_each
from xarray_gpuzarr.process.records import Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AxisPieces:
    """The chunks along one axis that a selection touches; every column has shape (n_pieces,)."""

    chunk: Column
    """Coordinate of the chunk along the axis."""
    out_start: Column
    """First position in the selection that the chunk gives."""
    count: Column
    """Positions in the selection that the chunk gives."""
    in_start: Column
    """First wanted element, counted from the start of the chunk."""
    step: int
    """Distance between wanted elements; 0 where `index` lists them."""
    index: Column | None
    """Wanted element of every position in the selection, counted from the start of its chunk."""
    length: int
    """Positions in the selection."""
    are_kept: bool = False
    """Whether the next read that asks for the same is given this object again."""
    index_start: Column | None = None
    """Where in `index` the elements of a piece begin, if not at `out_start`: samples share a column, each has a row."""

    def in_keys(self) -> list[slice | Column]:
        """Return the index into its chunk that picks the wanted elements, for each piece."""
        if self.index is not None:
            first = self.out_start if self.index_start is None else self.index_start
            return [self.index[lo:hi] for lo, hi in zip(first.tolist(), (first + self.count).tolist(), strict=True)]
        end = self.in_start + (self.count - 1) * self.step + 1
        return list(map(slice, self.in_start.tolist(), end.tolist(), repeat(self.step)))

    def out_keys(self) -> list[slice]:
        """Return the slice of the selection that each piece fills."""
        return list(map(slice, self.out_start.tolist(), (self.out_start + self.count).tolist()))


class Span(NamedTuple):
    """Evenly spaced elements along one axis, one at least."""

    first: int
    n_elements: int
    step: int
    n_pieces: int
    """Chunks that it touches."""
    chunk_length: int


@lru_cache(maxsize=512)
def span(start: int, stop: int, step: int, chunk_length: int) -> Span | None:
    """Return the elements of a range with a positive step as a span; None if there are none."""
    if start >= stop:
        return None
    n = (stop - start - 1) // step + 1
    if n == 1:
        return Span(start, 1, 1, 1, chunk_length)  # any step may follow a single element
    if step > chunk_length:
        return Span(start, n, step, n, chunk_length)
    return Span(start, n, step, (start + (n - 1) * step) // chunk_length - start // chunk_length + 1, chunk_length)


def shards_of_span(along: Span, per_shard: int) -> Iterator[tuple[int, range]]:
    """Yield the coordinate of each shard that a span touches, and which of its pieces are the shard's.

    A shard has `per_shard` chunks along the axis.
    """
    first, count, step, n_pieces, chunk_length = along
    low, shard_length = first // chunk_length, chunk_length * per_shard
    if n_pieces == 1:
        yield low // per_shard, _ONE
        return
    if step > shard_length:
        for i in range(count):
            yield (first + i * step) // shard_length, range(i, i + 1)
        return
    start = 0
    for shard in range(first // shard_length, (first + (count - 1) * step) // shard_length + 1):
        end = (shard + 1) * shard_length
        stop = (
            min(n_pieces, end // chunk_length - low) if step <= chunk_length else min(count, -((first - end) // step))
        )
        yield shard, range(start, stop)
        start = stop


_ONE = range(1)


@lru_cache(maxsize=512)
def kept_shards_of_span(along: Span, per_shard: int) -> list[tuple[int, range]]:
    """Return few shards as `shards_of_span` does: what one read asks for of them, the next one mostly does as well."""
    return list(shards_of_span(along, per_shard))


def chunks_of_span(along: Span, pieces: range) -> Sequence[int]:
    """Return the coordinates of the chunks that give some pieces of a span."""
    first, _, step, _, chunk_length = along
    if step > chunk_length:
        return [(first + i * step) // chunk_length for i in pieces]
    low = first // chunk_length
    return range(low + pieces.start, low + pieces.stop)


def largest_box(pieces: Sequence[AxisPieces]) -> int:
    """Return how many elements a chunk gives at most: more than it has where elements are wanted repeatedly."""
    return math.prod(int(axis_pieces.count.max(initial=0)) for axis_pieces in pieces)


def intersect_axis(selected: slice | Column, length: int, chunk_length: int) -> AxisPieces:
    """Cut one axis of a selection at the chunk borders.

    `selected`, all inside ``[0, length)``, is a slice with a positive step, or int64 of shape (n,) that never
    decreases. `length` and `chunk_length` are the elements of the array and of a chunk along the axis.
    """
    if isinstance(selected, slice):
        start, stop, step = selected.indices(length)
        if stop - start <= MAX_KEPT * chunk_length:
            return _kept_slice(start, stop, step, chunk_length)
        return _intersect_slice(start, stop, step, chunk_length)
    chunk_of = selected // chunk_length
    first = np.flatnonzero(np.r_[True, chunk_of[1:] != chunk_of[:-1]]) if len(selected) else selected
    chunk, n = chunk_of[first], len(selected)
    count, index = np.diff(np.r_[first, n]), selected - chunk_of * chunk_length
    return AxisPieces(chunk=chunk, out_start=first, count=count, in_start=index[first], step=0, index=index, length=n)


def _intersect_slice(start: int, stop: int, step: int, chunk_length: int) -> AxisPieces:
    n = len(range(start, stop, step))
    if n <= 1:
        step = 1  # any step may follow a single element, also one that is no int64
    last = start + (n - 1) * step
    n_pieces = min(n, last // chunk_length - start // chunk_length + 1) if n else 0
    if n_pieces >= MOST_PIECES:
        raise MemoryError(f"{n} elements in {n_pieces} chunks along an axis")
    chunk = np.arange(n_pieces, dtype=np.int64)
    if step > chunk_length:  # then each element has a chunk of its own, and others between them hold none
        chunk = (start + chunk * step) // chunk_length
    else:
        chunk += start // chunk_length
    return strided_pieces(start, n, step, chunk, chunk_length)


def strided_pieces(start: int | Column, n: int, step: int, chunk: Column, chunk_length: int) -> AxisPieces:
    """Say what chunks give to ``range(start, start + n * step, step)``, of which each holds an element.

    `start` is a column of shape (n_pieces,) if pieces are of different ranges, each with `n` and `step`. `chunk`, int64
    of shape (n_pieces,), has the coordinates of the chunks along the axis, `chunk_length` is their elements along it.
    """
    border = chunk * chunk_length
    # Positions in the selection: the first at or after the border of a chunk, and at or after that of the next one.
    first = np.maximum(-((start - border) // step), 0)
    after = np.minimum(-((start - border - chunk_length) // step), n)
    count, in_start = after - first, start + first * step - border
    return AxisPieces(chunk=chunk, out_start=first, count=count, in_start=in_start, step=step, index=None, length=n)


@lru_cache(maxsize=512)
def _kept_slice(start: int, stop: int, step: int, chunk_length: int) -> AxisPieces:
    """Cut a slice: reads of one chunk after another ask for the same few of each axis again and again."""
    return replace(_intersect_slice(start, stop, step, chunk_length), are_kept=True)


MAX_KEPT = 256
"""Chunks of what is kept for the next read, at most."""
MOST_PIECES = 2**48
"""NumPy has other words than a lack of memory for columns beyond this."""


def shards_of_pieces(axis_pieces: AxisPieces, per_shard: int) -> list[tuple[int, range]]:
    """Return what `shards_of_span` yields, of pieces of any kind."""
    shard = axis_pieces.chunk // per_shard
    cuts = [*first_of_each(shard).tolist(), len(shard)]
    return [(int(shard[lo]), range(lo, hi)) for lo, hi in pairwise(cuts)]


def runs_of_pieces(n_pieces: Sequence[int], most: int) -> Iterator[tuple[range, ...]]:
    """Cut the product of all axes' pieces into boxes of at most so many: one range of pieces per axis."""
    n_boxes = math.prod(n_pieces)
    if n_boxes <= most:
        if n_boxes:
            yield tuple(map(range, n_pieces))
        return
    per_axis, room = [], most
    for n in reversed(n_pieces):
        length = max(1, min(n, room))
        room = max(1, room // length)
        per_axis.append(partial(_parts, n, length))
    yield from lazy_product(per_axis[::-1])


def _parts(n: int, length: int) -> Iterator[range]:
    """Cut numbers below `n` into ranges of a length, of which the last may be shorter."""
    for start in range(0, n, length):
        yield range(start, min(start + length, n))


def lazy_product[Item](axes: Sequence[Callable[[], Iterator[Item]]]) -> Iterator[tuple[Item, ...]]:
    """Yield what `itertools.product` yields, which would first list all items of every axis.

    `axes` are called for their items again and again.
    """
    if not axes:
        yield ()
        return
    for item in axes[0]():
        for others in lazy_product(axes[1:]):
            yield item, *others
