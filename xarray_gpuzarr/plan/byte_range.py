"""Byte ranges of stored objects and the one rule by which neighbours become a single request.

Pure integer arithmetic over NumPy columns; no I/O. `read_plan` calls it to cut the chunks of a shard into parts.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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

    Where requests are under way beside each other (`spared_gap_nbytes`), another one costs nothing while there are few:
    the shortest gaps are read until requests are no more than `n_requests`, and no more bytes
    of gaps than of chunks, or than of one spared gap.
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
    spared_gap_nbytes: int | None = None
    """Gap from which on one is skipped while requests are few; None: gaps up to `max_gap_nbytes` are always read."""
    n_requests: int = 1
    """Requests that may be under way at once."""


def coalesce(
    offset: Column, nbytes: Column, rule: CoalesceRule, which: Column | None = None, share: float = 1.0
) -> Column:
    """Cut rows, sorted by object and offset, into runs that one request each can fetch.

    `offset` and `nbytes`, int64 of shape (n,), are the byte range of each row; ranges are equal or disjoint. `which`,
    of the same kind, is the number of the object of each row; without it, all are of one. The rows are a `share` of
    those that a read wants.

    Returns bounds, int64 of shape (n_runs + 1,): run `i` covers rows ``[bounds[i], bounds[i + 1])``; empty input gives
    ``[0]``.
    """
    n_rows = len(offset)
    if n_rows == 0:
        return np.zeros(1, np.int64)
    end = offset + nbytes
    gaps = offset[1:] - end[:-1]
    forced = gaps > rule.max_gap_nbytes
    if which is not None:
        forced |= which[1:] != which[:-1]
    if rule.spared_gap_nbytes is not None:
        forced |= _skipped(gaps, forced, int(nbytes.sum()), rule, share)
    starts, ends = memoryview(offset), memoryview(end)  # whose elements are Python's numbers, one by one
    bounds = [0]
    for segment_end in [*(forced.nonzero()[0] + 1).tolist(), n_rows]:
        while (first := bounds[-1]) < segment_end:
            bounds.append(bisect_right(ends, starts[first] + rule.max_nbytes, first + 1, segment_end))
    return np.array(bounds, np.int64)


def _skipped(
    gaps: Column, forced: npt.NDArray[np.bool_], wanted_nbytes: int, rule: CoalesceRule, share: float
) -> npt.NDArray[np.bool_]:
    """Return which gaps are skipped though they are short enough to be read; `forced` ones are in any case."""
    assert rule.spared_gap_nbytes is not None
    at = np.flatnonzero(~forced & (gaps > 0))
    at = at[np.argsort(gaps[at], kind="stable")]
    n_runs = 1 + int(forced.sum()) + len(at)
    n_short = int(np.searchsorted(gaps[at], rule.spared_gap_nbytes, "left"))
    n_read = max(n_short, n_runs - max(1, int(rule.n_requests * share)))
    most_nbytes = max(wanted_nbytes, rule.spared_gap_nbytes)
    n_affordable = int(np.searchsorted(gaps[at].cumsum(), most_nbytes, "right"))
    skipped = np.zeros(len(gaps), np.bool_)
    skipped[at[min(n_read, n_affordable) :]] = True
    return skipped


@lru_cache(maxsize=128)
def coalesce_rule(options: FetchOptions, rule: CoalesceRule) -> CoalesceRule:
    """Return the rule of a kind of store, with the limits that `options` set instead of its own."""
    if options.max_gap_nbytes is not None:
        rule = replace(rule, max_gap_nbytes=options.max_gap_nbytes, spared_gap_nbytes=None)
    if options.max_request_nbytes is not None:
        rule = replace(rule, max_nbytes=options.max_request_nbytes, max_raw_nbytes=options.max_request_nbytes)
    return rule
