"""The index of a shard: where each inner chunk lies.

Turns index bytes into two columns and refuses everything that cannot be true of a shard. Reads nothing itself;
`read` fetches the bytes.

References
----------
Zarr v3 sharding-indexed codec 1.0, "Binary shard format"; RFC 3720 appendix B.4 for CRC-32C.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, NamedTuple

import numpy as np

from xarray_gpuzarr.errors import ShardIndexError
from xarray_gpuzarr.native.library import address, address_of, crc32c, loops
from xarray_gpuzarr.process.records import Column, record

MISSING = -1
"""`nbytes` of a chunk that a shard does not hold."""

_MISSING_ON_DISK = np.uint64(2**64 - 1)
_ENTRY_NBYTES = 16
_CRC_NBYTES = 4


class ShardIndexSpec(NamedTuple):  # a key of caches, whose hash had better be quick
    """How the index of every shard of an array is stored."""

    n_chunks: int
    """Inner chunks of one shard."""
    location: Literal["start", "end"]
    endian: Literal["little", "big"]
    checksum: bool
    """Whether a CRC-32C follows the entries."""

    @property
    def nbytes(self) -> int:
        """Length of the encoded index in bytes."""
        return self.n_chunks * _ENTRY_NBYTES + _CRC_NBYTES * self.checksum

    def within(self, shard: memoryview) -> memoryview:
        """Return the index as it is stored, given all bytes of a shard; shorter if they are fewer."""
        return shard[: self.nbytes] if self.location == "start" else shard[-self.nbytes :]


@record
class ShardIndex:
    """Byte ranges of the inner chunks of one shard, in C order of their coordinates."""

    offset: Column
    """shape (n_chunks,): first byte, counted from the start of the shard; 0 where missing."""
    nbytes: Column
    """shape (n_chunks,): encoded length in bytes; `MISSING` where missing."""
    addresses: tuple[int, int] = field(init=False)
    """Where `offset` and `nbytes` lie."""

    def __post_init__(self) -> None:
        for name in ("offset", "nbytes"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.int64))
        object.__setattr__(self, "addresses", (address(self.offset), address(self.nbytes)))


def decode_shard_index(
    encoded: memoryview | bytes, spec: ShardIndexSpec, *, shard_nbytes: int | None, where: str
) -> ShardIndex:
    """Decode and check a shard index, which lies in host memory as it is stored.

    `shard_nbytes` is the length of the whole shard in bytes, where the store tells it, and `where` names array and
    shard in errors.

    Raises
    ------
    ShardIndexError
        Wrong length, wrong checksum, ranges outside the shard, inside the index or overlapping.
    """
    index_nbytes = spec.nbytes
    if len(encoded) != index_nbytes:
        found = f"{len(encoded) or shard_nbytes or 0} bytes where {index_nbytes} are needed for {spec.n_chunks} chunks"
        raise _error(where, spec, found)
    if spec.checksum:
        stored, actual = int.from_bytes(encoded[-_CRC_NBYTES:], "little"), crc32c(memoryview(encoded)[:-_CRC_NBYTES])
        if stored != actual:
            raise _error(where, spec, f"checksum {actual:#010x}, stored {stored:#010x}")
    # The first byte that chunks may have, and the end of the last.
    floor = index_nbytes if spec.location == "start" else 0
    limit = 2**63 - 1 if shard_nbytes is None else shard_nbytes - index_nbytes + floor
    compiled = loops()
    if compiled is not None:
        offset, nbytes = ranges = np.empty((2, spec.n_chunks), np.int64)
        at, is_big = address_of(memoryview(encoded)), spec.endian == "big"
        if compiled.take_index(at, spec.n_chunks, is_big, floor, limit, address(ranges)):
            return ShardIndex(offset=offset, nbytes=nbytes)
    dtype = "<u8" if spec.endian == "little" else ">u8"
    columns = np.ndarray((spec.n_chunks, 2), dtype, encoded).T.astype(np.uint64, order="C")
    offset, nbytes = columns.view(np.int64)
    is_missing = (columns == _MISSING_ON_DISK).all(axis=0)
    first, length = columns[:, ~is_missing]
    end = first + length
    outside = (first < floor) | (length > limit) | (first > limit) | (end > limit)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        found = f"a chunk of {length[at]} bytes at {first[at]}, outside [{floor}, {limit})"
        raise _error(where, spec, found)
    # Chunks may be the same bytes, but not share some.
    order = np.lexsort((length, first))
    start, end = first[order], end[order]
    overlap = (start[1:] < end[:-1]) & ((start[1:] != start[:-1]) | (end[1:] != end[:-1]))
    if overlap.any():
        at = int(np.flatnonzero(overlap)[0])
        found = f"chunks at [{start[at]}, {end[at]}) and [{start[at + 1]}, {end[at + 1]}) overlap"
        raise _error(where, spec, found)
    offset[is_missing] = 0
    return ShardIndex(offset=offset, nbytes=nbytes)


def _error(where: str, spec: ShardIndexSpec, found: str) -> ShardIndexError:
    return ShardIndexError(
        f"the index of shard {where} is not usable",
        tried=f"{spec.nbytes} bytes at the {spec.location}, {spec.endian} endian, "
        f"{'with' if spec.checksum else 'without'} CRC-32C",
        found=found,
        do="the shard is damaged or half-written: restore or rewrite it",
    )
