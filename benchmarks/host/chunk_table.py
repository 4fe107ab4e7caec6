"""Where every stored chunk of a workload lies, and where it goes: the input of the plain loop.

Reads shard indexes by itself and shares no code with xarray_gpuzarr. Not timed.

References
----------
Zarr v3 sharding-indexed 1.0, "Binary shard format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from benchmarks.arrays.stores import object_file
from benchmarks.arrays.workloads import Workload

_PART_NBYTES = 2 * 1024 * 1024
"""Encoded bytes of one read: they stay in a core's L2 until they are decoded (2 MiB a core, Sapphire Rapids)."""
_ENTRY_NBYTES = 16
_CRC_NBYTES = 4
_MISSING = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One encoded chunk, or a piece of a raw one."""

    offset: int
    """In its object, bytes."""
    nbytes: int
    out_start: int
    """In an array whose chunks follow each other, bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring pieces of one object, read at once."""

    path: str
    pieces: tuple[Piece, ...]

    @property
    def offset(self) -> int:
        """First byte."""
        return self.pieces[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return self.pieces[-1].offset + self.pieces[-1].nbytes - self.offset


def read_parts(workload: Workload, path: Path, *, cut: bool) -> list[Part]:
    """Return the reads that fetch all chunks of the array at `path`; chunks longer than a read may be cut."""
    return [part for file, pieces in _objects(workload, path) for part in _parts(file, pieces, cut=cut)]


def _objects(workload: Workload, path: Path) -> Iterator[tuple[Path, list[Piece]]]:
    """Return each object with its stored chunks in file order."""
    nbytes, counts, per_shard = workload.chunk_nbytes, workload.grid, workload.chunks_per_shard
    for key in product(*(range(n // p) for n, p in zip(counts, per_shard, strict=True))):
        file = object_file(workload, path, key)
        entries = _index(file, prod(per_shard)) if workload.shards else [(0, file.stat().st_size)]
        first = np.multiply(key, per_shard)[:, None]
        inside = np.indices(per_shard).reshape(len(per_shard), -1) + first
        slots = np.ravel_multi_index(tuple(inside), counts).tolist()
        stored = sorted((*entry, slot) for entry, slot in zip(entries, slots, strict=True) if entry[0] != _MISSING)
        yield file, [Piece(offset, n, slot * nbytes) for offset, n, slot in stored]


def _index(file: Path, n_chunks: int) -> list[tuple[int, int]]:
    """Return (offset, nbytes) of every chunk of a shard whose index stands at the end."""
    data = np.fromfile(file, np.uint8)[-(_ENTRY_NBYTES * n_chunks + _CRC_NBYTES) : -_CRC_NBYTES]
    return [(offset, nbytes) for offset, nbytes in data.view("<u8").reshape(-1, 2).tolist()]


def _parts(file: Path, stored: Iterable[Piece], *, cut: bool) -> Iterator[Part]:
    """Group neighbouring pieces."""
    group: list[Piece] = []
    for piece in (piece for whole in stored for piece in (_cut(whole) if cut else [whole])):
        if group and _must_end(group, piece):
            yield Part(str(file), tuple(group))
            group = []
        group.append(piece)
    if group:
        yield Part(str(file), tuple(group))


def _must_end(group: list[Piece], piece: Piece) -> bool:
    apart = piece.offset != group[-1].offset + group[-1].nbytes
    return apart or piece.offset + piece.nbytes - group[0].offset > _PART_NBYTES


def _cut(piece: Piece) -> list[Piece]:
    starts = range(0, piece.nbytes, _PART_NBYTES)
    return [Piece(piece.offset + s, min(_PART_NBYTES, piece.nbytes - s), piece.out_start + s) for s in starts]
