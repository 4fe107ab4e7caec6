"""Shards that are requested as a whole, so that index and chunks come in one answer."""

from __future__ import annotations

import numpy as np

from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

WHOLE_SHARD_REQUESTS = 4
"""Largest uncompressed length of a shard that is requested whole, as a number of requests of
`CoalesceRule.max_raw_nbytes` bytes each. A shard that is requested whole needs no round trip for its index: raw shards
of 16 MB took 8 to 14 % less time than with requests for index and parts (decision 13)."""


def uncompressed_shard_nbytes(spec: ArraySpec, index: ShardIndexSpec) -> int:
    """Return the length in bytes of a shard whose chunks could not be compressed at all."""
    return index.n_chunks * spec.chunk_nbytes + index.nbytes


def max_whole_nbytes(spec: ArraySpec, index: ShardIndexSpec) -> int:
    """Return the length in bytes that shards usually do not exceed.

    The answer to a request for a whole shard that is longer may have its length only.
    """
    return index.n_chunks * spec.expected_nbytes + index.nbytes


def comes_whole(spec: ArraySpec, n_chunks: int, rule: CoalesceRule) -> bool:
    """Whether a shard of a remote store is requested as a whole, if a read takes `n_chunks` of its chunks.

    It is if these are at least half of the chunks, and the shard is short even without compression.
    """
    index = spec.index
    assert index is not None
    max_nbytes = WHOLE_SHARD_REQUESTS * rule.max_raw_nbytes
    return 2 * n_chunks >= index.n_chunks and uncompressed_shard_nbytes(spec, index) <= max_nbytes


class WholeShard:
    """A shard that was requested as a whole, and is kept until its chunks have been taken."""

    __slots__ = ("_end", "_offset", "data", "nbytes", "remaining_nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """Length that was expected when the shard was requested, in bytes."""
        self.data = memoryview(b"")
        """All bytes of the shard; empty until they have arrived."""
        self.remaining_nbytes = 0
        """Bytes of chunks that will be taken; 0 before `expect`."""

    def expect(self, offset: Column, nbytes: Column) -> None:
        """Record which chunks will be taken, by their offsets and lengths in the shard."""
        self.remaining_nbytes = int(nbytes.sum())
        self._offset = offset
        self._end = offset + nbytes

    def take(self, byte_range: ByteRange) -> memoryview:
        """Return a byte range of the shard, and count the chunks in it as taken, but not the gaps between them.

        `expect` must have been called before.
        """
        start = byte_range.offset
        end = start + byte_range.nbytes
        overlaps = np.minimum(self._end, end) - np.maximum(self._offset, start)
        self.remaining_nbytes -= int(overlaps.clip(0).sum())
        return self.data[start:end]
