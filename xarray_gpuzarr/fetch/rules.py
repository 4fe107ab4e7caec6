"""Which neighbouring byte ranges become one request: the limits of a kind of store, or those of the settings."""

from __future__ import annotations

from functools import lru_cache

from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.process.fetch_options import fetch_options

_kept = lru_cache(maxsize=16)(CoalesceRule)


def coalesce_rule(*, max_gap_nbytes: int, max_nbytes: int, max_raw_nbytes: int, max_together: int = 1) -> CoalesceRule:
    """Return the rule for a kind of store, whose own limits hold where no others were set."""
    options = fetch_options()
    if options.max_gap_nbytes is not None:
        max_gap_nbytes = options.max_gap_nbytes
    if options.max_request_nbytes is not None:
        max_nbytes = max_raw_nbytes = options.max_request_nbytes
    return _kept(
        max_gap_nbytes=max_gap_nbytes,
        max_nbytes=max_nbytes,
        max_raw_nbytes=max_raw_nbytes,
        max_together=max_together,
    )
