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

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce
from xarray_gpuzarr.grid import (
    AxisPieces,
    ChunkGrid,
    OuterSelection,
    PointGroups,
    blocks,
    intersect_axis,
)
from xarray_gpuzarr.metadata import ArraySpec
from xarray_gpuzarr.shard_index import MISSING, ShardIndex

Column = npt.NDArray[np.int64]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTarget:
    """A flat output that is filled point by point."""

    groups: PointGroups

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (len(self.groups.position),)


Target = BoxTarget | PointTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Chunks that one plan covers, before their byte ranges are known."""

    key: str | None
    """Store key of the shard; None for chunks that are objects of their own."""
    chunk: Column
    """shape (n, ndim): coordinates in the grid of inner chunks."""
    row: Column
    """shape (n, ndim) of piece numbers (box target) or (n, 1) of group numbers (point target)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Everything a decoder needs to know about one block. Columns have one row per stored chunk."""

    spec: ArraySpec
    target: Target
    keys: tuple[str, ...]
    """Store keys of the objects of this block."""
    chunk: Column
    """shape (n, ndim): coordinates in the grid of inner chunks."""
    row: Column
    """shape (n, ndim) of piece numbers (box target) or (n, 1) of group numbers (point target)."""
    object: Column
    """shape (n,): index into `keys`."""
    offset: Column
    """shape (n,): first byte inside the object."""
    nbytes: Column
    """shape (n,): encoded bytes, or `WHOLE_OBJECT`."""
    parts: Column
    """shape (n_parts + 1,): rows ``[parts[i], parts[i + 1])`` are fetched and decoded together."""
    missing_row: Column
    """shape (n_missing, ...): as `row`, for the chunks that take the fill value."""

    @property
    def decoded_nbytes(self) -> int:
        """Bytes of all stored chunks of the block once decoded, known before any of them is read."""
        return len(self.offset) * self.spec.chunk_nbytes

    def requests(self, lo: int, hi: int) -> list[tuple[str, ByteRange]]:
        """Return what the part of rows ``[lo, hi)`` asks for: one range, or one whole object per row."""
        if self.spec.index is None:
            whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
            return [(key, whole) for key in self.keys[lo:hi]]
        first, last = int(self.offset[lo]), int(self.offset[hi - 1] + self.nbytes[hi - 1])
        return [(self.keys[0], ByteRange(offset=first, nbytes=last - first))]


def box_target(selection: OuterSelection, grid: ChunkGrid) -> BoxTarget:
    """Cut a normalised outer selection at the borders of the inner chunks."""
    axes = zip(selection.wanted, grid.shape, grid.chunk_shape, strict=True)
    return BoxTarget(pieces=tuple(intersect_axis(*axis) for axis in axes))


def plan_blocks(spec: ArraySpec, target: Target) -> Iterator[Block]:
    """Cut the touched chunks into blocks: one per shard, or runs of `CHUNKS_PER_BLOCK` single chunks."""
    per_shard = np.asarray(spec.grid.chunks_per_shard, np.int64)
    if isinstance(target, PointTarget):
        yield from _point_blocks(spec, target.groups, per_shard)
        return
    for ranges in blocks(
        target.pieces, spec.grid.chunks_per_shard, sharded=spec.index is not None, max_chunks=CHUNKS_PER_BLOCK
    ):
        row = _product(ranges)
        chunk = np.empty_like(row)
        for axis, pieces in enumerate(target.pieces):
            chunk[:, axis] = pieces.chunk[row[:, axis]]
        yield Block(key=_shard_key(spec, chunk, per_shard), chunk=chunk, row=row)


def _point_blocks(spec: ArraySpec, groups: PointGroups, per_shard: Column) -> Iterator[Block]:
    row = np.arange(len(groups.chunk), dtype=np.int64)[:, None]
    if spec.index is None:
        for lo in range(0, len(row), CHUNKS_PER_BLOCK):
            hi = lo + CHUNKS_PER_BLOCK
            yield Block(key=None, chunk=groups.chunk[lo:hi], row=row[lo:hi])
        return
    shards, which = np.unique(groups.chunk // per_shard, axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    counts = np.bincount(which.reshape(-1), minlength=len(shards))
    for members in np.split(order, np.cumsum(counts)[:-1]) if len(shards) else []:
        chunk = groups.chunk[members]
        yield Block(key=_shard_key(spec, chunk, per_shard), chunk=chunk, row=row[members])


def _shard_key(spec: ArraySpec, chunk: Column, per_shard: Column) -> str | None:
    if spec.index is None:
        return None
    return spec.keys.key(tuple((chunk[0] // per_shard).tolist()))


def _product(ranges: Sequence[range]) -> Column:
    """Return the Cartesian product of `ranges` in C order, one combination per row."""
    lengths = [len(r) for r in ranges]
    n_rows = math.prod(lengths)
    rows = np.empty((n_rows, len(ranges)), np.int64)
    repeat = n_rows
    for axis, r in enumerate(ranges):
        repeat //= max(1, lengths[axis])
        column = np.repeat(np.arange(r.start, r.stop), repeat)
        rows[:, axis] = np.tile(column, n_rows // max(1, len(column)))
    return rows


def plan_read(spec: ArraySpec, target: Target, block: Block, index: ShardIndex | None, rule: CoalesceRule) -> ReadPlan:
    """Plan one block.

    Parameters
    ----------
    spec : ArraySpec
    target : BoxTarget or PointTarget
    block : Block
        From `plan_blocks` with the same target.
    index : ShardIndex or None
        Index of the block's shard; None if the shard does not exist, or if chunks are objects of their own.
    rule : CoalesceRule
        Which neighbours one request fetches.
    """
    n_rows = len(block.row)
    chunk, row, missing_row = block.chunk, block.row, block.row[:0]
    if spec.index is None:
        keys = tuple(spec.keys.key(tuple(c)) for c in chunk.tolist())
        obj, offset = np.arange(n_rows, dtype=np.int64), np.zeros(n_rows, np.int64)
        nbytes = np.full(n_rows, WHOLE_OBJECT, np.int64)
        together = min(OBJECTS_PER_PART, max(1, rule.max_nbytes // max(1, spec.chunk_nbytes)))
        parts = np.r_[np.arange(0, n_rows, together), n_rows]
    else:
        keys = (str(block.key),)
        order, missing, offset, nbytes = _look_up(spec, block, index)
        if order is not None:
            chunk, row, missing_row = chunk.take(order, axis=0), row.take(order, axis=0), row.take(missing, axis=0)
        obj = np.zeros(len(offset), np.int64)
        parts = coalesce(obj, offset, nbytes, rule)
    return ReadPlan(
        spec=spec,
        target=target,
        keys=keys,
        chunk=chunk,
        row=row,
        object=obj,
        offset=offset,
        nbytes=nbytes,
        parts=parts,
        missing_row=missing_row,
    )


def _look_up(spec: ArraySpec, block: Block, index: ShardIndex | None) -> tuple[Column | None, Column, Column, Column]:
    """Return (stored rows in byte order, missing rows, offset, nbytes) of a block's chunks.

    The order is None if all rows are stored and in byte order already.
    """
    none = np.zeros(0, np.int64)
    if index is None:
        return none, np.arange(len(block.row), dtype=np.int64), none, none
    entry = _entries(spec, block.chunk)
    offset, nbytes = index.offset, index.nbytes
    if entry is not None:
        offset, nbytes = offset.take(entry), nbytes.take(entry)
    absent = nbytes == MISSING
    if not absent.any():
        if (offset[1:] > offset[:-1]).all():
            return None, none, offset, nbytes
        order = np.lexsort((nbytes, offset))
        return order, none, offset.take(order), nbytes.take(order)
    stored = np.flatnonzero(~absent)
    stored = stored[np.lexsort((nbytes[stored], offset[stored]))]
    return stored, np.flatnonzero(absent), offset[stored], nbytes[stored]


def _entries(spec: ArraySpec, chunk: Column) -> Column | None:
    """Return the number of each chunk in the index of its shard; None for all chunks of a shard.

    The chunks of a block are distinct and in C order, as those of the index are.
    """
    if spec.index is not None and len(chunk) == spec.index.n_chunks:
        return None
    entry = np.zeros(len(chunk), np.int64)
    for axis, n in enumerate(spec.grid.chunks_per_shard):
        entry = entry * n + chunk[:, axis] % n
    return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the chunks of a plan go in a box target; one row per stored chunk."""

    out_start: Column
    """shape (n, ndim): first element of the box in the output."""
    count: Column
    """shape (n, ndim): elements of the box along each axis."""
    whole: npt.NDArray[np.bool_]
    """shape (n,): every element of the stored chunk is wanted, in order."""
    contiguous: npt.NDArray[np.bool_]
    """shape (n,): the box is one run of memory in a C-ordered output."""
    out_index: Column
    """shape (n,): flat position of the first element of the box in a C-ordered output."""


def place_boxes(target: BoxTarget, row: Column, chunk_shape: Sequence[int]) -> Placement:
    """Work out where chunks go.

    Parameters
    ----------
    target : BoxTarget
    row : int64, shape (n, ndim)
        Piece numbers of the chunks.
    chunk_shape : sequence of int
        Shape of a stored chunk.
    """
    n_rows, ndim = row.shape
    start, count = np.empty_like(row), np.empty_like(row)
    whole, contiguous = np.ones(n_rows, bool), np.ones(n_rows, bool)
    out_index, stride = np.zeros(n_rows, np.int64), 1
    partial = np.zeros(n_rows, bool)
    for axis in range(ndim - 1, -1, -1):
        pieces, rows = target.pieces[axis], row[:, axis]
        start[:, axis], count[:, axis] = pieces.out_start[rows], pieces.count[rows]
        whole &= (count[:, axis] == chunk_shape[axis]) & (pieces.step == 1)
        contiguous &= ~partial | (count[:, axis] == 1)
        partial |= count[:, axis] != pieces.length
        out_index += start[:, axis] * stride
        stride *= pieces.length
    return Placement(out_start=start, count=count, whole=whole, contiguous=contiguous, out_index=out_index)
