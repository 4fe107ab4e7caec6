"""Tasks on a worker of a cluster give their slot away while they wait for the network.

A slot is one of the threads on which a worker runs its tasks. A task that reads from a server does nothing until the
first bytes arrive. So the task sends its requests, leaves the worker's thread pool (`distributed.secede`), waits, and
comes back to decode (`distributed.rejoin`). Other tasks do the same meanwhile, as many as the budget of `fetch.ahead`
allows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from xarray_gpuzarr.fetch.ahead import RequestsAhead, read_with
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, Box

_MAX_WAITING = 24
"""Number of tasks of a process that may wait without a slot, each on a thread. A read of a server has as many requests
under way at once (`fetch.remote.request_limits`)."""

_waiting = threading.BoundedSemaphore(_MAX_WAITING)


def read_without_slot[Result](reader: AheadReader, box: Box, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, which reads a box of an array.

    On a worker of a cluster, other tasks may use the slot of the calling task while it waits for bytes.
    """
    distributed = sys.modules.get("distributed")
    if distributed is None or not fetch_options().ahead_nbytes or not _is_in_task(distributed):
        return read()
    ahead = reader.requests_ahead()
    if ahead is None:
        return read()
    try:
        requests = reader.first_requests(box)
        if requests and ahead.start(requests):
            _wait_without_slot(distributed, ahead)
        return read_with(ahead, read)
    finally:
        ahead.end()


def _is_in_task(distributed: Any) -> bool:
    """Whether this thread runs a task of a worker."""
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _wait_without_slot(distributed: Any, ahead: RequestsAhead) -> None:
    """Wait for requests while another task has the slot, unless too many tasks do so already."""
    if not _waiting.acquire(blocking=False):
        return
    try:
        try:
            distributed.secede()
        except (AttributeError, KeyError):  # the thread was started by a task, or has left its slot already
            return
        try:
            ahead.wait()
        finally:
            distributed.rejoin()
    finally:
        _waiting.release()
