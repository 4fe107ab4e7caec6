"""The encoded chunks of consecutive rows of a plan, as they were read: objects of their own, or ranges of a shard."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from xarray_gpuzarr.native import address_of
from xarray_gpuzarr.plan.selection import Column


class Encoded(Protocol):
    """Encoded chunks in host memory, valid until the next request of this thread."""

    @property
    def rows(self) -> range:
        """Rows of the plan."""

    def __getitem__(self, row: int) -> memoryview | None:
        """Return the bytes of a row; None if the chunk was never written."""

    def located(self) -> tuple[Column, Column]:
        """Return where the bytes of each row lie, and how many they are: -1 if the chunk was never written."""


class Objects:
    """Chunks that are objects of their own.

    Parameters
    ----------
    first : int
        The first row.
    data : sequence of memoryview or None
    """

    def __init__(self, first: int, data: Sequence[memoryview | None]) -> None:
        self.rows = range(first, first + len(data))
        self._data = data

    def __getitem__(self, row: int) -> memoryview | None:
        """Return the bytes of a row; None if the chunk was never written."""
        return self._data[row - self.rows.start]

    def located(self) -> tuple[Column, Column]:
        """Return where the bytes of each row lie, and how many they are: -1 if the chunk was never written."""
        address = [0 if data is None else address_of(data) for data in self._data]
        nbytes = [-1 if data is None else len(data) for data in self._data]
        return np.array(address, np.int64), np.array(nbytes, np.int64)


class Ranges:
    """Chunks of a shard.

    Parameters
    ----------
    data : sequence of memoryview
        Each from the first byte of its first chunk on.
    bounds : sequence of int
        Range ``i`` has the rows ``[bounds[i], bounds[i + 1])``.
    offset, nbytes : int64, shape (n,)
        Of the plan.
    """

    def __init__(self, data: Sequence[memoryview], bounds: Sequence[int], offset: Column, nbytes: Column) -> None:
        self.rows = range(bounds[0], bounds[-1])
        self._data, self._bounds = data, bounds
        self._offset, self._nbytes = offset, nbytes

    def __getitem__(self, row: int) -> memoryview:
        """Return the bytes of a row."""
        part = bisect_right(self._bounds, row) - 1
        first = int(self._offset[row] - self._offset[self._bounds[part]])
        return self._data[part][first : first + int(self._nbytes[row])]

    def located(self) -> tuple[Column, Column]:
        """Return where the bytes of each row lie, and how many there are."""
        rows = slice(self.rows.start, self.rows.stop)
        bounds = np.array(self._bounds, np.int64)
        first = self._offset.take(bounds[:-1])
        where = np.array([(address_of(data), len(data)) for data in self._data], np.int64)
        range_of = np.arange(len(first)).repeat(np.diff(bounds))
        at = self._offset[rows] - first.take(range_of)
        found = np.minimum(self._nbytes[rows], np.maximum(where[:, 1].take(range_of) - at, 0))
        return where[:, 0].take(range_of) + at, found
