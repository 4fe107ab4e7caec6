"""Byte ranges of stored objects, and the rule by which neighbouring ranges are read by a single request.

This is integer arithmetic on NumPy columns, without I/O. `read_plan` uses it to cut the chunks of a shard into parts.
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
    """Rule that decides which neighbouring chunks are fetched by one request.

    Chunks of one object are joined while the gap between two of them, bytes that nobody requested, is at most
    `max_gap_nbytes`, and the joined range is at most `max_nbytes` long. A chunk is never cut, except for bytes that are
    read straight to their final place (raw chunks into the result, or encoded chunks into the memory that a GPU copies
    from): these are read by requests of at most `max_raw_nbytes`, which may end inside a chunk.

    Stores that answer many requests at the same time have a `min_skipped_gap_nbytes`, because another request costs
    nothing while there are few. Gaps of at least this length are skipped. But if there would be more than
    `n_cheap_requests` requests, the shortest of these gaps are read, too. All gaps that are read have together no more
    bytes than the chunks, or no more than `min_skipped_gap_nbytes` if that is more.
    """

    max_gap_nbytes: int
    """Longest gap between two chunks, in bytes, that is cheaper to read than to skip."""
    max_nbytes: int
    """Longest joined range in bytes."""
    max_raw_nbytes: int
    """Longest request, in bytes, for bytes that are read to their final place. It need not fit a core's cache."""
    max_together: int = 1
    """Largest number of joined ranges of one object that one thread reads, one after another. Together they have at
    most `max_nbytes` bytes, unless there is only one. It is 1 for stores that answer many requests at the same time."""
    min_skipped_gap_nbytes: int | None = None
    """Shortest gap in bytes that is skipped while there are few requests. If None, all gaps up to `max_gap_nbytes` are
    read."""
    n_cheap_requests: int = 1
    """Number of requests of one read up to which another request costs nothing. Only used with
    `min_skipped_gap_nbytes`."""


def coalesce(
    offset: Column, nbytes: Column, rule: CoalesceRule, object_number: Column | None = None, share: float = 1.0
) -> Column:
    """Cut rows, sorted by object and offset, into runs that are each fetched by one request.

    Parameters
    ----------
    offset, nbytes : numpy.ndarray
        Byte range of each row, int64, shape (n,). Ranges are equal or disjoint.
    rule : CoalesceRule
        Limits of the requests.
    object_number : numpy.ndarray, optional
        Number of the object of each row, int64, shape (n,). Without it, all rows belong to one object.
    share : float
        Share of these rows among all rows of the read. They get this share of `rule.n_cheap_requests`.

    Returns
    -------
    numpy.ndarray
        Bounds, int64, shape (n_runs + 1,): run `i` has the rows ``[bounds[i], bounds[i + 1])``. ``[0]`` without rows.
    """
    n_rows = len(offset)
    if n_rows == 0:
        return np.zeros(1, np.int64)
    end = offset + nbytes
    gaps = offset[1:] - end[:-1]
    must_cut = gaps > rule.max_gap_nbytes
    if object_number is not None:
        must_cut |= object_number[1:] != object_number[:-1]
    if rule.min_skipped_gap_nbytes is not None:
        must_cut |= _skipped_gaps(gaps, must_cut, int(nbytes.sum()), rule, share)
    # Single elements of a memoryview are Python's integers, and quicker to get than those of an array.
    starts, ends = memoryview(offset), memoryview(end)
    bounds = [0]
    run_start = 0
    for cut in [*(must_cut.nonzero()[0] + 1).tolist(), n_rows]:
        while run_start < cut:
            max_end = starts[run_start] + rule.max_nbytes
            # The next run starts with the first row that ends behind `max_end`. But a run has at least one row, however
            # long its chunk is.
            run_start = bisect_right(ends, max_end, run_start + 1, cut)
            bounds.append(run_start)
    return np.array(bounds, np.int64)


def _skipped_gaps(
    gaps: Column, must_cut: npt.NDArray[np.bool_], chunks_nbytes: int, rule: CoalesceRule, share: float
) -> npt.NDArray[np.bool_]:
    """Return whether each gap is skipped because of `rule.min_skipped_gap_nbytes`. False for gaps in `must_cut`."""
    assert rule.min_skipped_gap_nbytes is not None
    shortest_first = np.flatnonzero(~must_cut & (gaps > 0))
    shortest_first = shortest_first[np.argsort(gaps[shortest_first], kind="stable")]
    lengths = gaps[shortest_first]
    # Number of gaps that are read however few requests there are.
    n_short = int(np.searchsorted(lengths, rule.min_skipped_gap_nbytes, "left"))
    # Number of requests that cost something if all gaps are skipped. Each gap that is read saves one request.
    n_too_many = 1 + int(must_cut.sum()) + len(lengths) - max(1, int(rule.n_cheap_requests * share))
    # Largest number of gaps that may be read, so that they have no more bytes than the chunks.
    max_gaps_nbytes = max(chunks_nbytes, rule.min_skipped_gap_nbytes)
    n_affordable = int(np.searchsorted(lengths.cumsum(), max_gaps_nbytes, "right"))
    n_read = min(max(n_short, n_too_many), n_affordable)
    skipped = np.zeros(len(gaps), np.bool_)
    skipped[shortest_first[n_read:]] = True
    return skipped


@lru_cache(maxsize=128)
def coalesce_rule(options: FetchOptions, rule: CoalesceRule) -> CoalesceRule:
    """Return the rule of a store with those limits replaced that `options` set."""
    if options.max_gap_nbytes is not None:  # the option is the longest gap to read, however few requests there are
        rule = replace(rule, max_gap_nbytes=options.max_gap_nbytes, min_skipped_gap_nbytes=None)
    if options.max_request_nbytes is not None:
        rule = replace(rule, max_nbytes=options.max_request_nbytes, max_raw_nbytes=options.max_request_nbytes)
    return rule
