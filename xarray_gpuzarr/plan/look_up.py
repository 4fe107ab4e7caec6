"""Indexes of shards -> plans: where the bytes of each chunk lie, in the order of these bytes.

Boxes are looked up by the compiled loops, where there are any, since that takes NumPy as long as to decode a
chunk of 16 KB.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import product

import numpy as np

from xarray_gpuzarr.native.library import Loops, loops
from xarray_gpuzarr.native.structs import LookupStruct
from xarray_gpuzarr.plan.axis_pieces import Span, chunks_of_span
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import Block, BoxTarget, ReadPlan, Target, empty_plan
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex


def plan_read(
    spec: ArraySpec, target: Target, blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]
) -> ReadPlan:
    """Plan some blocks, one at least: from `plan_blocks` with the same target.

    If chunks are objects of their own, there is a single block, and its index is None. Else `indexes` has that of the
    shard of each block; None for one that does not exist.
    """
    compiled = loops()
    if compiled is not None and isinstance(target, BoxTarget) and target.spans is not None:
        return _by_loops(compiled, spec, target, target.spans, blocks, indexes)
    if spec.index is not None:
        return _by_numpy(spec, target, blocks, indexes)
    (block,) = blocks
    row = block.row
    keys = tuple(spec.keys.key(tuple(c)) for c in target.chunk(row).tolist())
    n = len(row)
    columns = np.arange(n), np.zeros(n, np.int64), np.full(n, WHOLE_OBJECT, np.int64)
    return ReadPlan.of(spec, target, keys, columns, row)


def _by_loops(
    compiled: Loops,
    spec: ArraySpec,
    target: BoxTarget,
    spans: Sequence[Span],
    blocks: Sequence[Block],
    indexes: Sequence[ShardIndex | None],
) -> ReadPlan:
    ndim, n = len(spans), sum([block.n_rows for block in blocks])
    if spec.index is None:
        chunks = map(chunks_of_span, spans, blocks[0].ranges)
        keys, most_nbytes = tuple(map(spec.keys.key, product(*chunks))), WHOLE_OBJECT
        index: list[int] = []
    else:
        keys, most_nbytes = tuple([str(block.key) for block in blocks]), 0
        index = [address for of in indexes for address in ((0, 0) if of is None else of.addresses)]
    ranges = [end for block in blocks for pieces in block.ranges for end in (pieces.start, pieces.stop)]
    numbers = array("q", ranges + index)
    at = numbers.buffer_info()[0]
    index_at = at + len(ranges) * numbers.itemsize if index else 0
    memory, columns = empty_plan(n, ndim)
    struct = LookupStruct(
        ndim=ndim,
        n_shards=len(blocks),
        n_rows=n,
        axes=target.spans_address,
        ranges=at,
        index=index_at,
        table=columns["object"],
        most_nbytes=most_nbytes,
    )
    n_stored = compiled.look_up(ctypes.addressof(struct))
    if n_stored < 0:
        raise MemoryError(f"a table of {n} chunks")
    most = struct.most_nbytes
    return ReadPlan(
        spec=spec,
        target=target,
        keys=keys,
        n_chunks=n,
        n_stored=n_stored,
        memory=memory,
        addresses=columns,
        most_nbytes=most,
    )


def _by_numpy(
    spec: ArraySpec, target: Target, blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]
) -> ReadPlan:
    row, after = np.concatenate([block.row for block in blocks]), 0
    entry = entries(spec, target.chunk(row))
    offset, nbytes = np.zeros(len(row), np.int64), np.full(len(row), MISSING)
    which = np.arange(len(blocks)).repeat([block.n_rows for block in blocks])
    for block, index in zip(blocks, indexes, strict=True):
        before, after = after, after + block.n_rows
        if index is not None:
            offset[before:after] = index.offset.take(entry[before:after])
            nbytes[before:after] = index.nbytes.take(entry[before:after])
    is_stored = nbytes != MISSING
    order = np.lexsort((nbytes, offset, which))
    order = order[is_stored.take(order)]
    row = np.concatenate([row.take(order, axis=0), row[~is_stored]])
    keys = tuple(str(block.key) for block in blocks)
    return ReadPlan.of(spec, target, keys, (which.take(order), offset.take(order), nbytes.take(order)), row)


def entries(spec: ArraySpec, chunk: Column) -> Column:
    """Return the number of each chunk in the index of its shard."""
    if not spec.grid.ndim:
        return np.zeros(len(chunk), np.int64)
    entry: Column = np.ravel_multi_index(tuple(chunk.T), spec.grid.chunks_per_shard, mode="wrap")
    return entry
