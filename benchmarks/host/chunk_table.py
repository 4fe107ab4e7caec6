"""Where every stored chunk of a workload lies, and where it goes: the input of the plain loop.

Reads shard indexes by itself and shares no code with xarray_gpuzarr. Not timed.

References
----------
Zarr v3 sharding-indexed 1.0, "Binary shard format".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.arrays.stores import object_file
from benchmarks.arrays.workloads import Workload

_PART_NBYTES = 2 * 1024 * 1024
"""Encoded bytes of one read: they stay in a core's L2 until they are decoded (2 MiB a core, Sapphire Rapids)."""
_CRC_NBYTES = 4
_MISSING = 2**64 - 1

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Encoded chunks, or pieces of raw ones, in the order in which they are read: a column for each number."""

    file: Column
    """Number of the object."""
    offset: Column
    """In its object, bytes."""
    nbytes: Column
    out_start: Column
    """In an array whose chunks follow each other, bytes."""
    part_first: Column
    """First row of each part, and the number of rows. A part is read at once: its rows are neighbours in one object."""
    files: list[Path]


def chunk_table(workload: Workload, path: Path, *, cut: bool) -> ChunkTable:
    """Return all chunks of the array at `path`; those that are longer than a read may be cut."""
    per_shard = workload.chunks_per_shard
    keys = list(product(*(range(n // p) for n, p in zip(workload.grid, per_shard, strict=True))))
    files = [object_file(workload, path, key) for key in keys]
    rows = np.concatenate([_stored(workload, i, *each) for i, each in enumerate(zip(files, keys, strict=True))])
    file, offset, nbytes, out_start = (_cut(rows) if cut else rows).T.copy()
    end = offset + nbytes
    neighbours = (file[1:] == file[:-1]) & (offset[1:] == end[:-1])
    within = (end[1:] - 1) // _PART_NBYTES == (end[:-1] - 1) // _PART_NBYTES
    first = np.flatnonzero(~(neighbours & within)) + 1
    part_first = np.concatenate([[0], first, [len(file)]])
    return ChunkTable(file=file, offset=offset, nbytes=nbytes, out_start=out_start, part_first=part_first, files=files)


def _stored(workload: Workload, number: int, file: Path, key: tuple[int, ...]) -> Column:
    """Return a row for each stored chunk of one object, in file order."""
    per_shard = workload.chunks_per_shard
    inside = np.indices(per_shard).reshape(len(per_shard), -1) + np.multiply(key, per_shard)[:, None]
    slots = np.ravel_multi_index(tuple(inside), workload.grid)
    index = np.array([[0, file.stat().st_size]], np.uint64)
    if workload.shards:
        n = prod(per_shard)
        index = np.fromfile(file, np.uint8)[-(16 * n + _CRC_NBYTES) : -_CRC_NBYTES].view("<u8").reshape(n, 2)
    is_there = index[:, 0] != _MISSING
    offset, nbytes = index[is_there].astype(np.int64).T
    rows = np.stack([np.full(len(offset), number), offset, nbytes, slots[is_there] * workload.chunk_nbytes], axis=1)
    return rows[np.argsort(offset, kind="stable")]


def _cut(rows: Column) -> Column:
    """Cut rows into pieces that are no longer than a part."""
    n_pieces = -(-rows[:, 2] // _PART_NBYTES)
    cut = np.repeat(rows, n_pieces, axis=0)
    start = _PART_NBYTES * (np.arange(len(cut)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces))
    cut[:, 1] += start
    cut[:, 3] += start
    cut[:, 2] = np.minimum(_PART_NBYTES, cut[:, 2] - start)
    return cut
