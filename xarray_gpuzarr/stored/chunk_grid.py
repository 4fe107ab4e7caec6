"""The grid of a stored array: shards, each a grid of chunks, in integers only."""

from __future__ import annotations

import operator
from dataclasses import dataclass

_MAX_LENGTH = 2**62
"""Most elements along an axis, of an array, a shard or a chunk: sums of two are counted in int64."""


class TooLargeError(ValueError):
    """Sizes beyond what is counted here; zarr-python counts in Python's integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGrid:
    """A regular grid of shards, each a regular grid of chunks.

    An array that is not sharded has shards of one chunk. An axis that is longer than `_MAX_LENGTH` is a
    `TooLargeError`; shapes of other numbers of axes, and an axis that has elements and no chunks, are a `ValueError`.
    """

    shape: tuple[int, ...]
    """Shape of the array, in elements."""
    chunk_shape: tuple[int, ...]
    """Shape of one (inner) chunk, in elements."""
    chunks_per_shard: tuple[int, ...]
    """Chunks of one shard along each axis."""

    def __post_init__(self) -> None:
        axes = zip(self.shape, self.chunk_shape, self.chunks_per_shard, strict=True)
        for axis, (length, chunk_length, n_chunks) in enumerate(axes):
            longest = max(length, chunk_length * n_chunks)
            if min(length, chunk_length, n_chunks - 1) < 0 or (length and not chunk_length):
                lengths = f"{length} elements in shards of {n_chunks} chunks of {chunk_length}"
                raise ValueError(f"axis {axis}: {lengths}")
            if longest > _MAX_LENGTH:
                raise TooLargeError(f"{longest} elements along axis {axis}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of one shard, in elements."""
        return tuple(map(operator.mul, self.chunk_shape, self.chunks_per_shard))

    @property
    def n_shards(self) -> tuple[int, ...]:
        """Number of shards along each axis."""
        return tuple(-(-n // m) if m else 0 for n, m in zip(self.shape, self.shard_shape, strict=True))

    @property
    def n_chunks(self) -> tuple[int, ...]:
        """Number of chunks along each axis that hold elements of the array."""
        return tuple(-(-n // m) if m else 0 for n, m in zip(self.shape, self.chunk_shape, strict=True))
