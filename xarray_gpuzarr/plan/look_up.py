"""Plans from shard indexes: the byte range of each requested chunk, sorted by object and offset.

The compiled loops, if they are available, look up the chunks of evenly spaced box targets, since NumPy takes as long
for a plan of a few chunks as decoding a chunk of 16 KB does.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import product

import numpy as np

from xarray_gpuzarr.native.library import Loops, loops
from xarray_gpuzarr.native.structs import LookupStruct
from xarray_gpuzarr.plan.axis_pieces import chunks_of_span
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, allocate_columns
from xarray_gpuzarr.plan.targets import BoxTarget, Target
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex


def plan_read(
    spec: ArraySpec, target: Target, blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]
) -> ReadPlan:
    """Return the plan of some blocks.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    target : Target
        Requested elements.
    blocks : sequence of Block
        At least one of the blocks that `plan_blocks` yields for this target. Exactly one if chunks are unsharded.
    indexes : sequence of ShardIndex or None
        Index of the shard of each block; None for a shard that does not exist, and for unsharded chunks.

    Raises
    ------
    MemoryError
        If there is not enough memory for the table.
    """
    compiled = loops()
    if compiled is not None and isinstance(target, BoxTarget) and target.spans is not None:
        return _by_loops(compiled, spec, target, blocks, indexes)
    if spec.index is not None:
        return _by_numpy(spec, target, blocks, indexes)
    # Each unsharded chunk is an object of its own, which is read as a whole.
    (block,) = blocks
    piece_numbers = block.piece_numbers
    n = len(piece_numbers)
    keys = tuple(spec.keys.key(tuple(coordinates)) for coordinates in target.chunk_coordinates(piece_numbers).tolist())
    columns = np.arange(n), np.zeros(n, np.int64), np.full(n, WHOLE_OBJECT, np.int64)
    return ReadPlan.from_columns(spec, target, keys, columns, piece_numbers)


def _by_loops(
    compiled: Loops, spec: ArraySpec, target: BoxTarget, blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]
) -> ReadPlan:
    """Return the plan of a box of evenly spaced elements, looked up by the loops."""
    assert target.spans is not None
    ndim = len(target.spans)
    n_rows = sum([block.n_rows for block in blocks])
    if spec.index is None:
        chunks = map(chunks_of_span, target.spans, blocks[0].ranges)
        keys = tuple(map(spec.keys.key, product(*chunks)))
    else:
        keys = tuple([str(block.key) for block in blocks])  # these are text, since the blocks are shards
    numbers = _ranges_and_indexes(blocks, indexes)  # must live until the call ends: the struct has only its address
    ranges_address = numbers.buffer_info()[0]
    index_address = ranges_address + 2 * ndim * len(blocks) * numbers.itemsize
    memory, addresses = allocate_columns(n_rows, ndim)
    struct = LookupStruct(
        ndim=ndim,
        n_shards=len(blocks),
        n_rows=n_rows,
        axes=target.spans_address,
        ranges=ranges_address,
        index=0 if spec.index is None else index_address,
        table=addresses["object"],  # the first column, which the others follow
        # The loops raise it to the longest stored length. All lengths of unsharded chunks are `WHOLE_OBJECT`.
        most_nbytes=WHOLE_OBJECT if spec.index is None else 0,
    )
    n_stored = compiled.look_up(ctypes.addressof(struct))
    if n_stored < 0:
        raise MemoryError(f"a table of {n_rows} chunks")
    return ReadPlan(
        spec=spec,
        target=target,
        keys=keys,
        n_chunks=n_rows,
        n_stored=n_stored,
        memory=memory,
        addresses=addresses,
        longest_nbytes=struct.most_nbytes,
        width=ndim,
    )


def _ranges_and_indexes(blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]) -> array[int]:
    """Return start and stop of each block's pieces along each axis, then the addresses of each index's columns.

    The addresses are 0 for a shard that does not exist, and for unsharded chunks.
    """
    numbers: list[int] = []
    for block in blocks:
        for pieces in block.ranges:
            numbers += (pieces.start, pieces.stop)
    for index in indexes:
        numbers += (0, 0) if index is None else index.addresses
    return array("q", numbers)


def _by_numpy(
    spec: ArraySpec, target: Target, blocks: Sequence[Block], indexes: Sequence[ShardIndex | None]
) -> ReadPlan:
    """Return the plan of chunks of any target, looked up by NumPy."""
    piece_numbers = np.concatenate([block.piece_numbers for block in blocks])
    position = _index_positions(spec, target.chunk_coordinates(piece_numbers))
    offset = np.zeros(len(position), np.int64)
    nbytes = np.full(len(position), MISSING)
    object_number = np.arange(len(blocks)).repeat([block.n_rows for block in blocks])
    stop = 0
    for block, index in zip(blocks, indexes, strict=True):
        start, stop = stop, stop + block.n_rows
        if index is not None:
            offset[start:stop] = index.offset.take(position[start:stop])
            nbytes[start:stop] = index.nbytes.take(position[start:stop])
    is_stored = nbytes != MISSING
    # By object, then by offset. An empty chunk comes before the one that begins at the same offset.
    order = np.lexsort((nbytes, offset, object_number))
    order = order[is_stored.take(order)]
    piece_numbers = np.concatenate([piece_numbers.take(order, axis=0), piece_numbers[~is_stored]])
    keys = tuple(str(block.key) for block in blocks)
    columns = object_number.take(order), offset.take(order), nbytes.take(order)
    return ReadPlan.from_columns(spec, target, keys, columns, piece_numbers)


def _index_positions(spec: ArraySpec, chunk: Column) -> Column:
    """Return the position of each chunk in the index of its shard, given coordinates of shape (n, ndim)."""
    if not spec.grid.ndim:
        return np.zeros(len(chunk), np.int64)
    # "wrap" takes coordinates modulo the shape of a shard, which makes them coordinates in the shard.
    position: Column = np.ravel_multi_index(tuple(chunk.T), spec.grid.chunks_per_shard, mode="wrap")
    return position
