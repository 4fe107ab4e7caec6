"""The grid of a stored array: a grid of shards, each of which is a grid of chunks."""

from __future__ import annotations

import operator
from dataclasses import dataclass

_MAX_LENGTH = 2**62
"""Largest number of elements along an axis of an array, a shard or a chunk. The sum of two lengths then fits int64."""


class TooLargeError(ValueError):
    """A length that int64 cannot hold safely. zarr-python reads such arrays, with Python's integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGrid:
    """A regular grid of shards, each a regular grid of chunks.

    An array that is not sharded has shards of one chunk.

    Raises
    ------
    TooLargeError
        If an axis is longer than `_MAX_LENGTH`.
    ValueError
        If the shapes have different numbers of axes, a length is negative, a shard has no chunks, or an axis has
        elements but its chunks have none.
    """

    shape: tuple[int, ...]
    """Shape of the array, in elements."""
    chunk_shape: tuple[int, ...]
    """Shape of one (inner) chunk, in elements."""
    chunks_per_shard: tuple[int, ...]
    """Number of chunks of a shard along each axis."""

    def __post_init__(self) -> None:
        axes = zip(self.shape, self.chunk_shape, self.chunks_per_shard, strict=True)
        for axis, (length, chunk_length, per_shard) in enumerate(axes):
            longest = max(length, chunk_length * per_shard)
            if per_shard < 1 or min(length, chunk_length) < 0 or (length and not chunk_length):
                lengths = f"{length} elements in shards of {per_shard} chunks of {chunk_length}"
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
        return tuple(map(_ceil_divide, self.shape, self.shard_shape))

    @property
    def n_chunks(self) -> tuple[int, ...]:
        """Number of chunks along each axis that hold elements of the array."""
        return tuple(map(_ceil_divide, self.shape, self.chunk_shape))


def _ceil_divide(length: int, part_length: int) -> int:
    """Return the number of parts that an axis is cut into; 0 if the parts have no elements."""
    return -(-length // part_length) if part_length else 0
