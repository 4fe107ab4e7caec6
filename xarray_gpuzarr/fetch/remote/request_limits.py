"""How many requests may be outstanding at once: those of one read, of one server, and those for metadata and writes."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from weakref import WeakKeyDictionary, WeakValueDictionary

import zarr

from xarray_gpuzarr.process.fetch_options import fetch_options

MAX_OUTSTANDING = 24
"""Number of requests of one read that may be outstanding at once (decision 13)."""
_MAX_SHORT_OUTSTANDING = 48
"""Number of short requests of one read that may be outstanding at once, if they are for at most `OUTSTANDING_NBYTES`
bytes together (decision 13)."""
OUTSTANDING_NBYTES = 96 * 1024**2
"""Bytes that the outstanding requests of one read may ask for together, if there are more than `MAX_OUTSTANDING`."""

_ServerLimits = WeakValueDictionary[tuple[Hashable, int], asyncio.Semaphore]
_server_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, _ServerLimits] = WeakKeyDictionary()
"""For each event loop, the semaphores that requests use, by server and limit. Each server has its own, so a silent one
does not delay others."""


def most_outstanding(expected_nbytes: int | None) -> int:
    """Return the number of requests of one read that may be outstanding at once.

    Parameters
    ----------
    expected_nbytes : int or None
        Length in bytes that the requests usually do not exceed; None if it is unknown.
    """
    limit = MAX_OUTSTANDING
    if expected_nbytes is not None:
        n_fitting = OUTSTANDING_NBYTES // max(1, expected_nbytes)
        limit = min(max(MAX_OUTSTANDING, n_fitting), _MAX_SHORT_OUTSTANDING)
    return max(1, min(limit, fetch_options().max_requests - 1))  # leaves a request to other reads from the server


def server_limit(loop: asyncio.AbstractEventLoop, server: Hashable) -> asyncio.Semaphore:
    """Return the semaphore that lets ``max_requests`` requests to a server run at once. Called on the event loop."""
    limit = fetch_options().max_requests
    limits = _server_limits.setdefault(loop, WeakValueDictionary())
    return limits.setdefault((server, limit), asyncio.Semaphore(limit))


def max_concurrent_requests() -> int:
    """Return the number of requests for metadata and writes that may be outstanding at once.

    That is zarr's ``async.concurrency`` if the user has changed it, and ``max_requests`` otherwise.
    """
    setting: int | None = zarr.config.get("async.concurrency")
    default: int = zarr.config.defaults[0]["async"]["concurrency"]
    return fetch_options().max_requests if setting in (None, default) else setting
