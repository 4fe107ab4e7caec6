"""Byte ranges of stored objects and the one rule by which neighbours become a single request.

Pure integer arithmetic over NumPy columns; no I/O. `read_plan` calls it to cut the chunks of a shard into parts.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xarray_gpuzarr.process.fetch_options import FetchOptions
from xarray_gpuzarr.process.records import Column

WHOLE_OBJECT = -1
"""`nbytes` of a range that means "from `offset` to the end of the object"."""


class ByteRange(NamedTuple):
    """A half-open range of bytes inside one stored object."""

    offset: int
    """First byte, counted from the start of the object."""
    nbytes: int
    """Length in bytes, or `WHOLE_OBJECT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalesceRule:
    """When neighbouring chunks are fetched by one request.

    Chunks of one object are joined while the unwanted bytes between two of them are at most `max_gap_nbytes`
    and the joined range is at most `max_nbytes` long. What is read to where it stays, raw chunks into the result or
    bytes into the memory that a GPU copies from, comes by requests of at most `max_raw_nbytes` instead, wherever a
    chunk ends. Other chunks are never cut.
    """

    max_gap_nbytes: int
    """Unwanted bytes between two chunks that are cheaper to read than to skip."""
    max_nbytes: int
    """Longest joined range in bytes."""
    max_raw_nbytes: int
    """Longest request for bytes that are read to where they stay: no core's cache need hold it."""
    max_together: int = 1
    """Joined ranges of one object that a thread reads one after another, up to `max_nbytes` in all: as many as one
    where they are under way beside each other."""


def coalesce(offset: Column, nbytes: Column, rule: CoalesceRule, which: Column | None = None) -> Column:
    """Cut rows, sorted by object and offset, into runs that one request each can fetch.

    `offset` and `nbytes`, int64 of shape (n,), are the byte range of each row; ranges are equal or disjoint. `which`,
    of the same kind, is the number of the object of each row; without it, all are of one.

    Returns bounds, int64 of shape (n_runs + 1,): run `i` covers rows ``[bounds[i], bounds[i + 1])``; empty input gives
    ``[0]``.
    """
    n_rows = len(offset)
    if n_rows == 0:
        return np.zeros(1, np.int64)
    end = offset + nbytes
    forced = offset[1:] - end[:-1] > rule.max_gap_nbytes
    if which is not None:
        forced |= which[1:] != which[:-1]
    starts, ends = memoryview(offset), memoryview(end)  # whose elements are Python's numbers, one by one
    bounds = [0]
    for segment_end in [*(forced.nonzero()[0] + 1).tolist(), n_rows]:
        while (first := bounds[-1]) < segment_end:
            bounds.append(bisect_right(ends, starts[first] + rule.max_nbytes, first + 1, segment_end))
    return np.array(bounds, np.int64)


@lru_cache(maxsize=16)
def coalesce_rule(
    options: FetchOptions, *, max_gap_nbytes: int, max_nbytes: int, max_raw_nbytes: int, max_together: int = 1
) -> CoalesceRule:
    """Return the rule for a kind of store, whose own limits hold where `options` set no others."""
    if options.max_gap_nbytes is not None:
        max_gap_nbytes = options.max_gap_nbytes
    if options.max_request_nbytes is not None:
        max_nbytes = max_raw_nbytes = options.max_request_nbytes
    return CoalesceRule(
        max_gap_nbytes=max_gap_nbytes, max_nbytes=max_nbytes, max_raw_nbytes=max_raw_nbytes, max_together=max_together
    )
