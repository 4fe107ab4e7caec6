"""The encoded chunks of consecutive rows of a plan, as they were read: objects of their own, or ranges of a shard."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from xarray_gpuzarr.native import address_of
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.records import Column


class Encoded:
    """Encoded chunks in host memory, valid until the next request of this thread.

    Parameters
    ----------
    plan : ReadPlan
    bounds : sequence of int
        Part ``i`` has the rows ``[bounds[i], bounds[i + 1])``.
    data : sequence of memoryview or None
        Of each part, from the first byte of its first chunk on; None for an object that does not exist.
    """

    def __init__(self, plan: ReadPlan, bounds: Sequence[int], data: Sequence[memoryview | None]) -> None:
        self.rows = range(bounds[0], bounds[-1])
        self._plan, self._bounds, self._data = plan, bounds, data

    def __getitem__(self, row: int) -> memoryview | None:
        """Return the bytes of a row; None if the chunk was never written."""
        part = bisect_right(self._bounds, row) - 1
        data, nbytes = self._data[part], int(self._plan.nbytes[row])
        if data is None or nbytes == WHOLE_OBJECT:
            return data
        first = int(self._plan.offset[row] - self._plan.offset[self._bounds[part]])
        return data[first : first + nbytes]

    def located(self) -> tuple[Column, Column]:
        """Return where the bytes of each row lie, and how many they are: -1 if the chunk was never written."""
        where, lengths = np.array([(0, -1) if d is None else (address_of(d), len(d)) for d in self._data], np.int64).T
        rows = slice(self.rows.start, self.rows.stop)
        nbytes = self._plan.nbytes[rows]
        if len(lengths) == len(nbytes):  # each row is a part
            return where, np.where(nbytes == WHOLE_OBJECT, lengths, np.minimum(nbytes, np.maximum(lengths, 0)))
        bounds = np.array(self._bounds, np.int64)
        part_of = np.arange(len(lengths)).repeat(np.diff(bounds))
        at = self._plan.offset[rows] - self._plan.offset.take(bounds[:-1]).take(part_of)
        return where.take(part_of) + at, np.minimum(nbytes, np.maximum(lengths.take(part_of) - at, 0))
