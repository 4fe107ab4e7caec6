"""Which neighbouring byte ranges become one request: by the limits of a kind of store, or those that were set."""

from __future__ import annotations

from functools import lru_cache

from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.process.fetch_options import FetchOptions


@lru_cache(maxsize=16)
def coalesce_rule(
    options: FetchOptions, *, max_gap_nbytes: int, max_nbytes: int, max_raw_nbytes: int, max_together: int = 1
) -> CoalesceRule:
    """Return the rule for a kind of store, whose own limits hold where `options` sets no others."""
    gap = max_gap_nbytes if options.max_gap_nbytes is None else options.max_gap_nbytes
    if options.max_request_nbytes is not None:
        max_nbytes = max_raw_nbytes = options.max_request_nbytes
    return CoalesceRule(
        max_gap_nbytes=gap, max_nbytes=max_nbytes, max_raw_nbytes=max_raw_nbytes, max_together=max_together
    )
