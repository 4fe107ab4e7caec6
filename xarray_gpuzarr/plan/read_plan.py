"""Which bytes to fetch and where every chunk goes, before any chunk is read.

Pure: integers in, NumPy columns out. A plan is a table with a row per chunk, of one or several *blocks*: all touched
chunks of one shard, or a run of chunks that are objects of their own. A decoder carries out plans one after another, or
several at a time.

Rows stand object by object, in the order in which their bytes lie there, so a part (one request) is a range of rows.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise, product
from typing import Self

import numpy as np

from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.axis_pieces import (
    MAX_KEPT,
    AxisPieces,
    Span,
    intersect_axis,
    kept_shards_of_span,
    lazy_product,
    runs_of_pieces,
    shards_of_pieces,
    shards_of_span,
    span,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce
from xarray_gpuzarr.plan.points import PointGroups, first_of_each, numbered, sorting
from xarray_gpuzarr.plan.selection import OuterSelection
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.shard_index import MISSING

CHUNKS_PER_BLOCK = 1024
"""Unsharded chunks planned at once: 100 us of planning against milliseconds of decoding."""
OBJECTS_PER_PART = 16
"""Small unsharded chunks that one thread takes at a time, and that a store is asked for at once."""


class BoxTarget:
    """An output that is filled box by box.

    `axes` says per axis what is wanted, the length of the axis and that of a chunk along it, see `intersect_axis`;
    `per_shard` is the chunks of a shard along each axis.
    """

    def __init__(self, axes: Sequence[tuple[slice | Column, int, int]], per_shard: Sequence[int]) -> None:
        self.axes = axes
        """Per axis, what is wanted, the length of the axis, and that of a chunk along it."""
        self._per_shard = per_shard
        spans = [
            span(*selected.indices(length), chunk_length) if isinstance(selected, slice) else None
            for selected, length, chunk_length in axes
        ]
        plain = [along for along in spans if along is not None]
        self.spans = tuple(plain) if len(plain) == len(axes) else None
        """Per axis, what is wanted; None if it is not evenly spaced elements along all axes, or nothing."""
        self._of_arrays: dict[int, AxisPieces] = {}
        if self.spans is None:
            lengths, pieces = self._count(spans)
        else:
            lengths, pieces = [along.n_elements for along in plain], [along.n_pieces for along in plain]
            numbers = [n for along, count in zip(plain, per_shard, strict=True) for n in (*along, count)]
            self._numbers = array("q", numbers)
            self.spans_address = self._numbers.buffer_info()[0]
            """Address of `spans` and the chunks of a shard, as the compiled loops take them."""
        self.shape = tuple(lengths)
        """Shape of the output."""
        self.n_pieces = pieces
        """Per axis, the chunks along it that it touches."""
        self.n_chunks = math.prod(pieces)
        """Inner chunks that it touches, whether they are stored or not."""

    def _count(self, spans: Sequence[Span | None]) -> tuple[list[int], list[int]]:
        """Return, per axis, the elements and the pieces; only index arrays are cut, which are in memory anyway."""
        lengths, n_pieces = [], []
        for axis, along in enumerate(spans):
            selected, length, chunk_length = self.axes[axis]
            if along is not None:
                n, of_axis = along.n_elements, along.n_pieces
            elif isinstance(selected, slice):
                n, of_axis = 0, 0
            else:
                self._of_arrays[axis] = intersect_axis(selected, length, chunk_length)
                n, of_axis = len(selected), len(self._of_arrays[axis].chunk)
            lengths.append(n)
            n_pieces.append(of_axis)
        return lengths, n_pieces

    @cached_property
    def pieces(self) -> tuple[AxisPieces, ...]:
        """Per axis, what each chunk along it gives; where nothing is wanted, chunks give nothing along any axis."""
        if not self.n_chunks:
            return tuple([replace(intersect_axis(slice(0, 0), 0, 1), length=length) for length in self.shape])
        return tuple([self._of_arrays.get(axis) or intersect_axis(*of_axis) for axis, of_axis in enumerate(self.axes)])

    def shards(self) -> Iterator[tuple[tuple[int, range], ...]]:
        """Return, shard by shard in C order, its coordinate along each axis and which pieces there are its own.

        Many shards are not listed beforehand.
        """
        if not self.n_chunks:
            return iter(())
        if self.spans is None:
            return product(*map(shards_of_pieces, self.pieces, self._per_shard))
        if self.n_chunks <= MAX_KEPT:
            return product(*map(kept_shards_of_span, self.spans, self._per_shard))
        return lazy_product(
            [partial(shards_of_span, along, n) for along, n in zip(self.spans, self._per_shard, strict=True)]
        )

    def chunk(self, row: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape (n, ndim)."""
        chunk = np.empty_like(row)
        for axis, pieces in enumerate(self.pieces):
            chunk[:, axis] = pieces.chunk.take(row[:, axis])
        return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTarget:
    """A flat output that is filled point by point."""

    groups: PointGroups

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (len(self.groups.position),)

    @property
    def n_chunks(self) -> int:
        """Inner chunks that it touches, whether they are stored or not."""
        return len(self.groups.chunk)

    def chunk(self, row: Column) -> Column:
        """Return the coordinates of chunks in the grid of inner chunks, shape (n, ndim)."""
        return self.groups.chunk.take(row[:, 0], axis=0)


Target = BoxTarget | PointTarget | StackTarget


@record
class Block:
    """Chunks that one plan covers, before their byte ranges are known."""

    key: str | None
    """Store key of the shard; None for chunks that are objects of their own."""
    n_rows: int
    ranges: tuple[range, ...]
    """Piece numbers per axis (box target), or a range of `members`."""
    members: Column | None = None
    """Group numbers of all blocks (other targets)."""

    @property
    def row(self) -> Column:
        """Shape (n_rows, ndim) of piece numbers in C order (box target) or (n_rows, 1) of group numbers."""
        if self.members is not None:
            (numbers,) = self.ranges
            return self.members[numbers.start : numbers.stop, None]
        lengths = tuple(map(len, self.ranges))
        positions = (_kept_positions if self.n_rows <= _MAX_KEPT else _positions)(lengths)
        return positions + np.array([r.start for r in self.ranges], np.int64)


@record
class ReadPlan:
    """Everything a decoder needs to know about some blocks: the chunk table.

    Rows of stored chunks come first, object by object in the order of their bytes, then those of chunks that take the
    fill value.
    """

    spec: ArraySpec
    target: Target
    keys: tuple[str, ...]
    """Store keys of the objects of these blocks."""
    n_chunks: int
    """Chunks, stored or not."""
    n_stored: int
    memory: Column
    """The columns, one after another, as the compiled loops take them; see `empty_plan`."""
    addresses: Mapping[str, int]
    """Address of each column."""
    most_nbytes: int
    """Encoded bytes of the longest chunk, 0 if there is none, or `WHOLE_OBJECT`."""

    @classmethod
    def of(
        cls,
        spec: ArraySpec,
        target: Target,
        keys: tuple[str, ...],
        columns: tuple[Column, Column, Column],
        all_row: Column,
    ) -> Self:
        """Return a plan of the columns `object`, `offset` and `nbytes` of stored chunks, and the rows of all."""
        n, n_stored = len(all_row), len(columns[0])
        memory, addresses = empty_plan(n, all_row.shape[1])
        memory[: 3 * n].reshape(3, n)[:, :n_stored] = columns
        memory[2 * n + n_stored : 3 * n] = MISSING
        memory[3 * n :] = all_row.reshape(-1)
        most = int(columns[2].max(initial=WHOLE_OBJECT if spec.index is None else 0))
        return cls(
            spec=spec,
            target=target,
            keys=keys,
            n_chunks=n,
            n_stored=n_stored,
            memory=memory,
            addresses=addresses,
            most_nbytes=most,
        )

    @property
    def object(self) -> Column:
        """Shape (n_stored,): number of the key of the object that each stored chunk lies in."""
        return self.memory[: self.n_stored]

    @property
    def offset(self) -> Column:
        """Shape (n_stored,): first byte inside the object."""
        return self.memory[self.n_chunks : self.n_chunks + self.n_stored]

    @property
    def nbytes(self) -> Column:
        """Shape (n_stored,): encoded bytes, or `WHOLE_OBJECT`."""
        return self.memory[2 * self.n_chunks : 2 * self.n_chunks + self.n_stored]

    @property
    def all_nbytes(self) -> Column:
        """Shape (n_chunks,): `nbytes`, and `MISSING` for those that take the fill value."""
        return self.memory[2 * self.n_chunks : 3 * self.n_chunks]

    @property
    def all_row(self) -> Column:
        """Shape (n_chunks, ndim) of piece numbers (box target) or (n_chunks, 1) of group numbers (other targets)."""
        n = self.n_chunks
        return self.memory[3 * n :].reshape(n, len(self.memory) // max(1, n) - 3)

    @property
    def row(self) -> Column:
        """Rows of `all_row` whose chunks are stored."""
        return self.all_row[: self.n_stored]

    @property
    def missing_row(self) -> Column:
        """Rows of `all_row` whose chunks take the fill value."""
        return self.all_row[self.n_stored :]

    @property
    def chunk(self) -> Column:
        """Coordinates of the chunks in the grid of inner chunks, shape (n, ndim)."""
        return self.target.chunk(self.row)

    def take(self, rows: Column, missing_row: Column) -> Self:
        """Return a plan of some of the stored chunks, in the order of their rows, and of some that are missing."""
        columns = self.object.take(rows), self.offset.take(rows), self.nbytes.take(rows)
        all_row = np.concatenate([self.row.take(rows, axis=0), missing_row])
        return self.of(self.spec, self.target, self.keys, columns, all_row)

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of all stored chunks once decoded, known before any of them is read."""
        return self.n_stored * self.spec.chunk_nbytes

    def cut(self, rule: CoalesceRule) -> Column:
        """Return bounds, shape (n_parts + 1,): rows ``[bounds[i], bounds[i + 1])`` are fetched and decoded together."""
        if self.n_stored == 1:
            return _ONE_PART
        if self.spec.index is not None:
            share = self.n_chunks / max(1, self.target.n_chunks)
            return coalesce(self.offset, self.nbytes, rule, self.object, share)
        together = min(OBJECTS_PER_PART, max(1, rule.max_nbytes // max(1, self.spec.chunk_nbytes)))
        return np.append(np.arange(0, self.n_stored, together), self.n_stored)

    def key_of(self, row: int) -> str:
        """Return the store key of the object that a chunk lies in."""
        return self.keys[int(self.object[row])]

    def requests(self, lo: int, hi: int) -> list[tuple[str, ByteRange]]:
        """Return what the part of rows ``[lo, hi)`` asks for: one range, or one whole object per row."""
        if self.spec.index is None:
            whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
            return [(self.key_of(row), whole) for row in range(lo, hi)]
        first, last = int(self.offset[lo]), int(self.offset[hi - 1] + self.nbytes[hi - 1])
        return [(self.key_of(lo), ByteRange(offset=first, nbytes=last - first))]


def empty_plan(n_chunks: int, width: int) -> tuple[Column, dict[str, int]]:
    """Return the columns of a plan, one after another, contents undefined, and the address of each by its name.

    `width` is that of `all_row`.
    """
    memory = np.empty(n_chunks * (3 + width), np.int64)
    first, step = address(memory), memory.itemsize * n_chunks
    return memory, {"object": first, "offset": first + step, "nbytes": first + 2 * step, "all_row": first + 3 * step}


_ONE_PART = np.array([0, 1], np.int64)


def box_target(selection: OuterSelection, grid: ChunkGrid, shape: tuple[int, ...] | None = None) -> BoxTarget:
    """Cut a normalised outer selection at the borders of the inner chunks; `shape` if the array has been resized."""
    lengths = grid.shape if shape is None else shape
    return BoxTarget(tuple(zip(selection.wanted, lengths, grid.chunk_shape, strict=True)), grid.chunks_per_shard)


def plan_blocks(spec: ArraySpec, target: Target) -> Iterator[Block]:
    """Cut the touched chunks into blocks: one per shard, or runs of `CHUNKS_PER_BLOCK` single chunks."""
    if not isinstance(target, BoxTarget):
        chunk = target.groups.chunk
        if spec.index is not None:
            for key, members in _by_shard(spec, chunk):
                yield Block(key=key, n_rows=len(members), ranges=(range(len(members)),), members=members)
            return
        members = np.arange(len(chunk), dtype=np.int64)
        for lo in range(0, len(chunk), CHUNKS_PER_BLOCK):
            some = range(lo, min(lo + CHUNKS_PER_BLOCK, len(chunk)))
            yield Block(key=None, n_rows=len(some), ranges=(some,), members=members)
    elif spec.index is None:
        for ranges in runs_of_pieces(target.n_pieces, CHUNKS_PER_BLOCK):
            yield Block(key=None, n_rows=math.prod(map(len, ranges)), ranges=ranges)
    else:
        for axes in target.shards():
            ranges = tuple([pieces for _, pieces in axes])
            key = spec.keys.key(tuple([at for at, _ in axes]))
            yield Block(key=key, n_rows=math.prod(map(len, ranges)), ranges=ranges)


def _by_shard(spec: ArraySpec, chunk: Column) -> Iterator[tuple[str, Column]]:
    """Return the key of each shard that holds any of some chunks, and which of these it holds."""
    coord = chunk // np.array(spec.grid.chunks_per_shard, np.int64)
    # Not the grid's own number of shards: the array may have been resized.
    shard = numbered(coord, tuple((coord.max(axis=0, initial=0) + 1).tolist()))
    order = sorting(shard)
    bounds = [*first_of_each(shard.take(order)).tolist(), len(order)]
    for lo, hi in pairwise(bounds):
        yield spec.keys.key(tuple(coord[order[lo]].tolist())), order[lo:hi]


def _positions(lengths: tuple[int, ...]) -> Column:
    """Return all positions in a box in C order, one per row."""
    return np.indices(lengths, np.int64).reshape(len(lengths), math.prod(lengths)).T.copy()


_kept_positions = lru_cache(maxsize=8)(_positions)
"""The shards of an array are mostly of one shape."""
_MAX_KEPT = 4096
