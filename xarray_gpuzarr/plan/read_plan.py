"""Which bytes to fetch and where every chunk goes, before any chunk is read.

Pure: integers in, NumPy columns out. A plan covers one *block*: all touched chunks of one shard, or a run of chunks
that are objects of their own. A decoder carries out plans one after another, or several at a time.

Rows of the chunk table stand in the order in which the bytes lie in their object, so a part (one request) is a range of
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import floordiv

import numpy as np

from xarray_gpuzarr.plan.axis_pieces import AxisPieces, blocks, intersect_axis
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce
from xarray_gpuzarr.plan.points import PointGroups, first_of_each, numbered
from xarray_gpuzarr.plan.selection import Column, OuterSelection
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex

CHUNKS_PER_BLOCK = 1024
"""Unsharded chunks planned at once: 100 us of planning against milliseconds of decoding."""
OBJECTS_PER_PART = 16
"""Small unsharded chunks that one thread takes at a time, and that a store is asked for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTarget:
    """An output that is filled box by box."""

    pieces: tuple[AxisPieces, ...]
    """Per axis, what each chunk along it gives."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return tuple(p.length for p in self.pieces)

    @property
    def n_chunks(self) -> int:
        """Inner chunks that it touches, whether they are stored or not."""
        return math.prod(len(p.chunk) for p in self.pieces)

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
    row: Column
    """shape (n, ndim) of piece numbers (box target) or (n, 1) of group numbers (other targets)."""


@record
class ReadPlan:
    """Everything a decoder needs to know about one block. Columns have one row per stored chunk."""

    spec: ArraySpec
    target: Target
    keys: tuple[str, ...]
    """Store keys of the objects of this block."""
    row: Column
    """shape (n, ndim) of piece numbers (box target) or (n, 1) of group numbers (other targets)."""
    offset: Column
    """shape (n,): first byte inside the object."""
    nbytes: Column
    """shape (n,): encoded bytes, or `WHOLE_OBJECT`."""
    missing_row: Column
    """shape (n_missing, ...): as `row`, for the chunks that take the fill value."""

    @property
    def chunk(self) -> Column:
        """Coordinates of the chunks in the grid of inner chunks, shape (n, ndim)."""
        return self.target.chunk(self.row)

    @property
    def n_chunks(self) -> int:
        """Chunks of the block, stored or not."""
        return len(self.row) + len(self.missing_row)

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of all stored chunks of the block once decoded, known before any of them is read."""
        return len(self.offset) * self.spec.chunk_nbytes

    def cut(self, rule: CoalesceRule) -> Column:
        """Return bounds, shape (n_parts + 1,): rows ``[bounds[i], bounds[i + 1])`` are fetched and decoded together.

        Parameters
        ----------
        rule : CoalesceRule
            Which neighbours one request fetches.
        """
        if len(self.offset) == 1:
            return _ONE_PART
        if self.spec.index is not None:
            return coalesce(self.offset, self.nbytes, rule)
        together = min(OBJECTS_PER_PART, max(1, rule.max_nbytes // max(1, self.spec.chunk_nbytes)))
        return np.append(np.arange(0, len(self.offset), together), len(self.offset))

    def key_of(self, row: int) -> str:
        """Return the store key of the object that a chunk lies in."""
        return self.keys[0 if self.spec.index is not None else row]

    def requests(self, lo: int, hi: int) -> list[tuple[str, ByteRange]]:
        """Return what the part of rows ``[lo, hi)`` asks for: one range, or one whole object per row."""
        if self.spec.index is None:
            whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
            return [(key, whole) for key in self.keys[lo:hi]]
        first, last = int(self.offset[lo]), int(self.offset[hi - 1] + self.nbytes[hi - 1])
        return [(self.keys[0], ByteRange(offset=first, nbytes=last - first))]


_ONE_PART = np.array([0, 1], np.int64)


def box_target(selection: OuterSelection, grid: ChunkGrid, shape: tuple[int, ...] | None = None) -> BoxTarget:
    """Cut a normalised outer selection at the borders of the inner chunks; `shape` if the array has been resized."""
    axes = zip(selection.wanted, grid.shape if shape is None else shape, grid.chunk_shape, strict=True)
    return BoxTarget(pieces=tuple(intersect_axis(*axis) for axis in axes))


def plan_blocks(spec: ArraySpec, target: Target) -> Iterator[Block]:
    """Cut the touched chunks into blocks: one per shard, or runs of `CHUNKS_PER_BLOCK` single chunks."""
    if not isinstance(target, BoxTarget):
        yield from _group_blocks(spec, target.groups.chunk)
        return
    for ranges in blocks(
        target.pieces, spec.grid.chunks_per_shard, sharded=spec.index is not None, max_chunks=CHUNKS_PER_BLOCK
    ):
        lengths = tuple(map(len, ranges))
        positions = (_kept_positions if math.prod(lengths) <= _MAX_KEPT else _positions)(lengths)
        first = [r.start for r in ranges]
        key = None
        if spec.index is not None:
            key = shard_key(spec, [int(pieces.chunk[n]) for pieces, n in zip(target.pieces, first, strict=True)])
        yield Block(key=key, row=positions + np.array(first, np.int64))


def _group_blocks(spec: ArraySpec, chunk: Column) -> Iterator[Block]:
    if spec.index is None:
        row = np.arange(len(chunk), dtype=np.int64)[:, None]
        for lo in range(0, len(row), CHUNKS_PER_BLOCK):
            yield Block(key=None, row=row[lo : lo + CHUNKS_PER_BLOCK])
        return
    for key, members in by_shard(spec, chunk):
        yield Block(key=key, row=members[:, None])


def by_shard(spec: ArraySpec, chunk: Column) -> Iterator[tuple[str, Column]]:
    """Return the key of each shard that holds any of some chunks, and which of these it holds.

    Parameters
    ----------
    spec : ArraySpec
    chunk : int64, shape (n, ndim)
        Coordinates in the grid of inner chunks.
    """
    coord = chunk // np.array(spec.grid.chunks_per_shard, np.int64)
    # Not the grid's own number of shards: the array may have been resized.
    shard = numbered(coord, tuple((coord.max(axis=0, initial=0) + 1).tolist()))
    order = shard.argsort(kind="stable")
    bounds = [*first_of_each(shard.take(order)).tolist(), len(order)]
    for lo, hi in pairwise(bounds):
        yield shard_key(spec, chunk[order[lo]].tolist()), order[lo:hi]


def shard_key(spec: ArraySpec, chunk: Sequence[int]) -> str:
    """Return the store key of the shard that holds a chunk."""
    return spec.keys.key(tuple(map(floordiv, chunk, spec.grid.chunks_per_shard)))


def _positions(lengths: tuple[int, ...]) -> Column:
    """Return all positions in a box in C order, one per row."""
    return np.indices(lengths, np.int64).reshape(len(lengths), math.prod(lengths)).T.copy()


_kept_positions = lru_cache(maxsize=8)(_positions)
"""The shards of an array are mostly of one shape."""
_MAX_KEPT = 4096


def plan_read(spec: ArraySpec, target: Target, block: Block, index: ShardIndex | None) -> ReadPlan:
    """Plan one block.

    Parameters
    ----------
    spec : ArraySpec
    target : BoxTarget, PointTarget or StackTarget
    block : Block
        From `plan_blocks` with the same target.
    index : ShardIndex or None
        Index of the block's shard; None if the shard does not exist, or if chunks are objects of their own.
    """
    n_rows = len(block.row)
    row, missing_row = block.row, block.row[:0]
    if spec.index is None:
        keys = tuple(spec.keys.key(tuple(c)) for c in target.chunk(row).tolist())
        offset, nbytes = np.zeros(n_rows, np.int64), np.full(n_rows, WHOLE_OBJECT, np.int64)
    else:
        keys = (str(block.key),)
        order, missing, offset, nbytes = _look_up(spec, target, block, index)
        if order is not None:
            row, missing_row = row.take(order, axis=0), row.take(missing, axis=0)
    return ReadPlan(
        spec=spec,
        target=target,
        keys=keys,
        row=row,
        offset=offset,
        nbytes=nbytes,
        missing_row=missing_row,
    )


_NONE = np.zeros(0, np.int64)


def _look_up(
    spec: ArraySpec, target: Target, block: Block, index: ShardIndex | None
) -> tuple[Column | None, Column, Column, Column]:
    """Return (stored rows in byte order, missing rows, offset, nbytes) of a block's chunks.

    The order is None if all rows are stored and in byte order already.
    """
    if index is None:
        return _NONE, np.arange(len(block.row), dtype=np.int64), _NONE, _NONE
    offset, nbytes = index.offset, index.nbytes
    if len(block.row) == len(offset) and index.in_order:
        return None, _NONE, offset, nbytes
    if len(block.row) < len(offset):
        entry = entries(spec, target.chunk(block.row))
        offset, nbytes = offset.take(entry), nbytes.take(entry)
    is_stored = nbytes != MISSING
    if index.in_order or is_stored.all():
        if len(offset) == 1 or (offset[1:] > offset[:-1]).all():
            return None, _NONE, offset, nbytes
        order = np.lexsort((nbytes, offset))
        return order, _NONE, offset.take(order), nbytes.take(order)
    stored = np.flatnonzero(is_stored)
    stored = stored[np.lexsort((nbytes[stored], offset[stored]))]
    return stored, np.flatnonzero(~is_stored), offset[stored], nbytes[stored]


def entries(spec: ArraySpec, chunk: Column) -> Column:
    """Return the number of each chunk in the index of its shard; all chunks of a shard are in this order already."""
    entry: Column = np.ravel_multi_index(tuple(chunk.T), spec.grid.chunks_per_shard, mode="wrap")
    return entry
