"""Plans of reads: the byte range of each chunk, and the box of the output that it fills.

`plan_blocks` cuts the chunks that a target touches into *blocks*: the touched chunks of one shard, or a run of
unsharded chunks. `ReadPlan` is the chunk table of one or several blocks, one row for each chunk, which a decoder
carries out.

Rows are sorted by object and by offset in it. So a *part*, the chunks that a thread reads and decodes at a time, is a
range of rows. Everything here is arithmetic on integers and NumPy columns, without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Self

import numpy as np

from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.axis_pieces import runs_of_pieces
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce
from xarray_gpuzarr.plan.points import chunk_numbers, run_starts, stable_order
from xarray_gpuzarr.plan.targets import BoxTarget, Target
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import MISSING

CHUNKS_PER_BLOCK = 1024
"""Largest number of unsharded chunks in a block. Blocks are planned one by one, so the first of them are decoded before
all are planned. Longer blocks would save little: planning one takes 100 us, decoding it takes milliseconds."""
OBJECTS_PER_PART = 16
"""Largest number of unsharded chunks in a part. Parts of long chunks have fewer. All requests of a part start at the
same time, so a thread waits once for 16 small chunks rather than for each."""


@record
class Block:
    """Chunks of one shard, or a run of unsharded chunks, before their byte ranges are known."""

    key: str | None
    """Store key of the shard; None for unsharded chunks."""
    n_rows: int
    """Number of chunks, each of which is a row of the plan."""
    ranges: tuple[range, ...]
    """Piece numbers along each axis for a box target; for other targets, one range of positions in `groups`."""
    groups: Column | None = None
    """Numbers of groups; None for a box target. A group is what a target of points or stacks takes of one chunk."""

    @property
    def piece_numbers(self) -> Column:
        """Rows of `ReadPlan.all_piece_numbers` for these chunks, which are in C order for a box target."""
        if self.groups is not None:
            (positions,) = self.ranges
            return self.groups[positions.start : positions.stop, None]
        lengths = tuple(map(len, self.ranges))
        cells = _cached_cells(lengths) if self.n_rows <= _MAX_CACHED_CELLS else _cells_of_box(lengths)
        return cells + np.array([pieces.start for pieces in self.ranges], np.int64)


@record
class ReadPlan:
    """The chunk table of some blocks: everything that a decoder needs to know about their chunks.

    The rows of stored chunks come first, sorted by object and offset. The rows of missing chunks, whose boxes take the
    fill value, follow.
    """

    spec: ArraySpec
    target: Target
    keys: tuple[str, ...]
    """Store keys of the objects of these blocks."""
    n_chunks: int
    """Number of chunks, stored or missing."""
    n_stored: int
    """Number of stored chunks."""
    memory: Column
    """The columns one after another, as the compiled loops take them; see `allocate_columns`."""
    addresses: Mapping[str, int]
    """Address of each column, by name."""
    longest_nbytes: int
    """Encoded length of the longest chunk in bytes. 0 if no chunk of a shard is stored; `WHOLE_OBJECT` for unsharded
    chunks, whose lengths are unknown."""
    width: int
    """Number of columns of `all_piece_numbers`: the number of dimensions for a box target, 1 for others."""

    @classmethod
    def from_columns(
        cls,
        spec: ArraySpec,
        target: Target,
        keys: tuple[str, ...],
        columns: tuple[Column, Column, Column],
        all_piece_numbers: Column,
    ) -> Self:
        """Return a plan with copies of columns.

        `columns` are `object`, `offset` and `nbytes` of the stored chunks, int64, shape (n_stored,).
        `all_piece_numbers` is int64, shape (n_chunks, width), stored chunks first.
        """
        n, width = all_piece_numbers.shape
        n_stored = len(columns[0])
        memory, addresses = allocate_columns(n, width)
        memory[: 3 * n].reshape(3, n)[:, :n_stored] = columns
        memory[2 * n + n_stored : 3 * n] = MISSING  # nothing reads `object` and `offset` of a missing chunk
        memory[3 * n :] = all_piece_numbers.reshape(-1)
        longest_nbytes = WHOLE_OBJECT if spec.index is None else int(columns[2].max(initial=0))
        return cls(
            spec=spec,
            target=target,
            keys=keys,
            n_chunks=n,
            n_stored=n_stored,
            memory=memory,
            addresses=addresses,
            longest_nbytes=longest_nbytes,
            width=width,
        )

    @property
    def object(self) -> Column:
        """Position in `keys` of each stored chunk's object, shape (n_stored,)."""
        return self.memory[: self.n_stored]

    @property
    def offset(self) -> Column:
        """First byte of each stored chunk in its object, shape (n_stored,)."""
        return self.memory[self.n_chunks : self.n_chunks + self.n_stored]

    @property
    def nbytes(self) -> Column:
        """Encoded length of each stored chunk in bytes, or `WHOLE_OBJECT`; shape (n_stored,)."""
        return self.memory[2 * self.n_chunks : 2 * self.n_chunks + self.n_stored]

    @property
    def all_nbytes(self) -> Column:
        """`nbytes` of all chunks, `MISSING` for missing ones; shape (n_chunks,).

        `MISSING` equals `WHOLE_OBJECT`: among unsharded chunks, only `n_stored` tells which rows are missing.
        """
        return self.memory[2 * self.n_chunks : 3 * self.n_chunks]

    @property
    def all_piece_numbers(self) -> Column:
        """Which part of the output each chunk fills, shape (n_chunks, width).

        For a box target, these are the chunk's piece numbers along the axes. For other targets, it is the number of the
        chunk's group.
        """
        return self.memory[3 * self.n_chunks :].reshape(self.n_chunks, self.width)

    @property
    def piece_numbers(self) -> Column:
        """`all_piece_numbers` of the stored chunks only, shape (n_stored, width)."""
        return self.all_piece_numbers[: self.n_stored]

    @property
    def missing_piece_numbers(self) -> Column:
        """`all_piece_numbers` of the missing chunks only, shape (n_chunks - n_stored, width)."""
        return self.all_piece_numbers[self.n_stored :]

    @property
    def chunk(self) -> Column:
        """Coordinates of the stored chunks in the grid of inner chunks, shape (n_stored, ndim)."""
        return self.target.chunk_coordinates(self.piece_numbers)

    def take(self, rows: Column, missing_piece_numbers: Column) -> Self:
        """Return a plan of some stored and some missing chunks.

        `rows` are the rows of the stored ones in ascending order, int64, shape (n,). `missing_piece_numbers` are those
        rows of this plan's `missing_piece_numbers` that the new plan gets.
        """
        columns = self.object.take(rows), self.offset.take(rows), self.nbytes.take(rows)
        all_piece_numbers = np.concatenate([self.piece_numbers.take(rows, axis=0), missing_piece_numbers])
        return self.from_columns(self.spec, self.target, self.keys, columns, all_piece_numbers)

    @property
    def decoded_nbytes(self) -> int:
        """Decoded length of all stored chunks in bytes."""
        return self.n_stored * self.spec.chunk_nbytes

    def cut(self, rule: CoalesceRule) -> Column:
        """Return bounds of the parts, shape (n_parts + 1,): part `i` has the rows ``[bounds[i], bounds[i + 1])``."""
        if self.n_stored == 1:
            return _ONE_PART
        if self.spec.index is not None:
            # `rule.n_cheap_requests` is for the whole read. This plan gets a share of it, by its number of chunks.
            share = self.n_chunks / max(1, self.target.n_chunks)
            return coalesce(self.offset, self.nbytes, rule, self.object, share)
        # The encoded lengths of unsharded chunks are not known. So a part has as many as fit `rule.max_nbytes` decoded.
        n_objects = min(OBJECTS_PER_PART, max(1, rule.max_nbytes // max(1, self.spec.chunk_nbytes)))
        return np.append(np.arange(0, self.n_stored, n_objects), self.n_stored)

    def key_of(self, row: int) -> str:
        """Return the store key of the object that a chunk lies in."""
        return self.keys[int(self.object[row])]

    def requests(self, start: int, stop: int) -> list[tuple[str, ByteRange]]:
        """Return the requests for the part of rows ``[start, stop)``: one range of a shard, or one object per row."""
        if self.spec.index is None:
            whole = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
            return [(self.key_of(row), whole) for row in range(start, stop)]
        first = int(self.offset[start])
        end = int(self.offset[stop - 1] + self.nbytes[stop - 1])
        return [(self.key_of(start), ByteRange(offset=first, nbytes=end - first))]


def allocate_columns(n_chunks: int, width: int) -> tuple[Column, dict[str, int]]:
    """Return uninitialised memory for the columns of a plan, and the address of each column by name.

    The columns `object`, `offset` and `nbytes`, each of `n_chunks` numbers, follow each other. After them comes
    `all_piece_numbers` of shape (n_chunks, width).
    """
    memory = np.empty(n_chunks * (3 + width), np.int64)
    first = address(memory)
    column_nbytes = memory.itemsize * n_chunks
    addresses = {
        "object": first,
        "offset": first + column_nbytes,
        "nbytes": first + 2 * column_nbytes,
        "all_piece_numbers": first + 3 * column_nbytes,
    }
    return memory, addresses


_ONE_PART = np.array([0, 1], np.int64)


def plan_blocks(spec: ArraySpec, target: Target) -> Iterator[Block]:
    """Yield the blocks of a target.

    A block has the touched chunks of one shard, or up to `CHUNKS_PER_BLOCK` unsharded chunks.
    """
    if not isinstance(target, BoxTarget):
        yield from _group_blocks(spec, target.groups.chunk)
    elif spec.index is None:
        for ranges in runs_of_pieces(target.n_pieces, CHUNKS_PER_BLOCK):
            yield Block(key=None, n_rows=math.prod(map(len, ranges)), ranges=ranges)
    else:
        for axes in target.shards():
            ranges = tuple([pieces for _, pieces in axes])
            key = spec.keys.key(tuple([coordinate for coordinate, _ in axes]))
            yield Block(key=key, n_rows=math.prod(map(len, ranges)), ranges=ranges)


def _group_blocks(spec: ArraySpec, chunk: Column) -> Iterator[Block]:
    """Yield the blocks of a target whose groups have the chunk coordinates `chunk`, shape (n_groups, ndim)."""
    if spec.index is not None:
        for key, groups in _groups_by_shard(spec, chunk):
            yield Block(key=key, n_rows=len(groups), ranges=(range(len(groups)),), groups=groups)
        return
    groups = np.arange(len(chunk), dtype=np.int64)
    for start in range(0, len(chunk), CHUNKS_PER_BLOCK):
        positions = range(start, min(start + CHUNKS_PER_BLOCK, len(chunk)))
        yield Block(key=None, n_rows=len(positions), ranges=(positions,), groups=groups)


def _groups_by_shard(spec: ArraySpec, chunk: Column) -> Iterator[tuple[str, Column]]:
    """Yield the store key of each shard, and the numbers of the groups whose chunks it holds."""
    shard_coordinates = chunk // np.array(spec.grid.chunks_per_shard, np.int64)
    # The grid of `spec` may be older than the target: an array that was resized since may have more shards.
    n_shards = tuple((shard_coordinates.max(axis=0, initial=0) + 1).tolist())
    shard_numbers = chunk_numbers(shard_coordinates, n_shards)
    order = stable_order(shard_numbers)
    bounds = [*run_starts(shard_numbers.take(order)).tolist(), len(order)]
    for start, stop in pairwise(bounds):
        yield spec.keys.key(tuple(shard_coordinates[order[start]].tolist())), order[start:stop]


def _cells_of_box(lengths: tuple[int, ...]) -> Column:
    """Return the coordinates of all cells of a box in C order, one row for each."""
    return np.indices(lengths, np.int64).reshape(len(lengths), math.prod(lengths)).T.copy()


_cached_cells = lru_cache(maxsize=8)(_cells_of_box)
"""`_cells_of_box` of the latest boxes: most shards of a read have the same shape."""
_MAX_CACHED_CELLS = 4096
"""Largest number of cells of a box in `_cached_cells`."""
