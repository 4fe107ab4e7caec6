"""`WholeShard`: a shard whose index and chunks come in one answer."""

from __future__ import annotations

import numpy as np

from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.process.records import Column


class WholeShard:
    """A shard that is requested together with its index."""

    __slots__ = ("_end", "_offset", "data", "left_nbytes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """Expected when it was asked for."""
        self.data = memoryview(b"")
        self.left_nbytes = 0
        """Bytes of chunks that have not been asked for."""

    def wait_for(self, offset: Column, nbytes: Column) -> None:
        """Hold the shard until all of some chunks have been taken."""
        self.left_nbytes = int(nbytes.sum())
        self._offset, self._end = offset, offset + nbytes

    def take(self, byte_range: ByteRange) -> memoryview:
        """Return a range of bytes, and count those of it that are chunks' and not between two."""
        first, end = byte_range.offset, byte_range.offset + byte_range.nbytes
        parts = np.minimum(self._end, end) - np.maximum(self._offset, first)
        self.left_nbytes -= int(parts.clip(0).sum())
        return self.data[first:end]
