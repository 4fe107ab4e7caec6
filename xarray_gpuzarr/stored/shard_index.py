"""Shard indexes: the byte range of each inner chunk of a shard.

`decode_shard_index` turns the encoded index into two columns, and raises an error for whatever cannot be true of a
shard. `fetch.shard_indexes` reads the bytes.

References
----------
Zarr v3 sharding-indexed codec 1.0, "Binary shard format"; RFC 3720 appendix B.4 for CRC-32C.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, NamedTuple

import numpy as np

from xarray_gpuzarr.errors import ShardIndexError
from xarray_gpuzarr.native.library import address, crc32c, loops, view_address
from xarray_gpuzarr.process.records import Column, record

MISSING = -1
"""`nbytes` of a chunk that a shard does not hold."""

_MISSING_ON_DISK = np.uint64(2**64 - 1)
"""Offset and length of a missing chunk in an encoded index. As int64, this is `MISSING`."""
_ENTRY_NBYTES = 16
_CRC_NBYTES = 4


class ShardIndexSpec(NamedTuple):  # part of cache keys, so it needs a quick hash
    """Encoding of the shard indexes of an array."""

    n_chunks: int
    """Number of inner chunks in a shard."""
    location: Literal["start", "end"]
    endian: Literal["little", "big"]
    checksum: bool
    """Whether a CRC-32C follows the entries."""

    @property
    def nbytes(self) -> int:
        """Length of the encoded index in bytes."""
        return self.n_chunks * _ENTRY_NBYTES + (_CRC_NBYTES if self.checksum else 0)

    def encoded_index(self, shard: memoryview) -> memoryview:
        """Return the encoded index, given all bytes of a shard. It is too short if the shard is."""
        return shard[: self.nbytes] if self.location == "start" else shard[-self.nbytes :]


@record
class ShardIndex:
    """Byte ranges of the inner chunks of one shard, in C order of their coordinates."""

    offset: Column
    """First byte of each chunk, counted from the start of the shard; 0 if it is missing. Shape (n_chunks,)."""
    nbytes: Column
    """Encoded length of each chunk in bytes; `MISSING` if it is missing. Shape (n_chunks,)."""
    addresses: tuple[int, int] = field(init=False)
    """Addresses of `offset` and `nbytes` in host memory."""

    def __post_init__(self) -> None:
        for name in ("offset", "nbytes"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.int64))
        object.__setattr__(self, "addresses", (address(self.offset), address(self.nbytes)))


def decode_shard_index(
    encoded: memoryview | bytes, spec: ShardIndexSpec, *, shard_nbytes: int | None, shard_name: str
) -> ShardIndex:
    """Decode and check a shard index.

    Parameters
    ----------
    encoded : memoryview of uint8 or bytes, host memory
        The index as it is stored.
    spec : ShardIndexSpec
        Encoding of the index.
    shard_nbytes : int or None
        Length of the whole shard in bytes; None if the store does not tell it.
    shard_name : str
        Name of the shard and the array, for errors.

    Raises
    ------
    ShardIndexError
        If the index has a wrong length or checksum, or ranges lie outside the shard, inside the index, or overlap.
    """
    index_nbytes = spec.nbytes
    if len(encoded) != index_nbytes:
        # Stores may return no bytes at all of a shard that is shorter than its index. The error then tells its length.
        found = f"{len(encoded) or shard_nbytes or 0} bytes where {index_nbytes} are needed for {spec.n_chunks} chunks"
        raise _index_error(shard_name, spec, found)
    if spec.checksum:
        stored = int.from_bytes(encoded[-_CRC_NBYTES:], "little")
        actual = crc32c(memoryview(encoded)[:-_CRC_NBYTES])
        if stored != actual:
            raise _index_error(shard_name, spec, f"checksum {actual:#010x}, stored {stored:#010x}")
    # Chunks may lie in [floor, limit): behind an index at the start of the shard, or before one at its end.
    if spec.location == "start":
        floor, limit = index_nbytes, shard_nbytes
    else:
        floor, limit = 0, None if shard_nbytes is None else shard_nbytes - index_nbytes
    if limit is None:
        limit = 2**63 - 1
    compiled = loops()
    if compiled is not None:
        ranges = np.empty((2, spec.n_chunks), np.int64)
        offset, nbytes = ranges
        encoded_address = view_address(memoryview(encoded))
        is_big = spec.endian == "big"
        if compiled.take_index(encoded_address, spec.n_chunks, is_big, floor, limit, address(ranges)):
            return ShardIndex(offset=offset, nbytes=nbytes)
    # There are no compiled loops, or they refused the index: then NumPy finds the fault, and words the error.
    return _decode_by_numpy(encoded, spec, floor, limit, shard_name)


def _decode_by_numpy(
    encoded: memoryview | bytes, spec: ShardIndexSpec, floor: int, limit: int, shard_name: str
) -> ShardIndex:
    """Decode an index whose chunks must lie in ``[floor, limit)``. Raises `ShardIndexError`."""
    dtype = "<u8" if spec.endian == "little" else ">u8"
    columns = np.ndarray((spec.n_chunks, 2), dtype, encoded).T.astype(np.uint64, order="C")
    offset, nbytes = columns.view(np.int64)
    is_missing = (columns == _MISSING_ON_DISK).all(axis=0)
    first, length = columns[:, ~is_missing]
    end = first + length  # may overflow, so `first` and `length` are compared with the limit, too
    is_outside = (first < floor) | (length > limit) | (first > limit) | (end > limit)
    if is_outside.any():
        i = int(np.flatnonzero(is_outside)[0])
        raise _index_error(shard_name, spec, f"a chunk of {length[i]} bytes at {first[i]}, outside [{floor}, {limit})")
    # Two chunks may have the same range, but may not share a part of their ranges.
    order = np.lexsort((length, first))
    start, end = first[order], end[order]
    overlaps = (start[1:] < end[:-1]) & ((start[1:] != start[:-1]) | (end[1:] != end[:-1]))
    if overlaps.any():
        i = int(np.flatnonzero(overlaps)[0])
        found = f"chunks at [{start[i]}, {end[i]}) and [{start[i + 1]}, {end[i + 1]}) overlap"
        raise _index_error(shard_name, spec, found)
    offset[is_missing] = 0  # `nbytes` is `MISSING` there already
    return ShardIndex(offset=offset, nbytes=nbytes)


def _index_error(shard_name: str, spec: ShardIndexSpec, found: str) -> ShardIndexError:
    checksum = "with" if spec.checksum else "without"
    return ShardIndexError(
        f"the index of shard {shard_name} is not usable",
        tried=f"{spec.nbytes} bytes at the {spec.location}, {spec.endian} endian, {checksum} CRC-32C",
        found=found,
        do="the shard is damaged or half-written: restore or rewrite it",
    )
