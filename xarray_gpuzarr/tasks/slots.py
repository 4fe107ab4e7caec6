"""Tasks on a worker of a cluster give their slot away while they wait for the network.

A worker runs as many tasks as it has threads, and a task would do nothing but wait until the first bytes are there. So
it asks for them, leaves the worker's threads (`distributed.secede`), and comes back to decode (`rejoin`): meanwhile
other tasks do the same. As many wait as the budget of `fetch.ahead` has room for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from xarray_gpuzarr.fetch.ahead import ObjectsAhead, using
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, Box

_MOST_WAITING = 24
"""Tasks of a process that wait without a slot, each on a thread of its own: as many as a read has requests."""

_waiting = threading.BoundedSemaphore(_MOST_WAITING)


def read_beside_others[Result](reader: AheadReader, box: Box, read: Callable[[], Result]) -> Result:
    """Return what `read` reads, a box of an array; on a worker, others may use its slot while it waits for bytes."""
    worker = sys.modules.get("distributed")
    if worker is None or not fetch_options().ahead_nbytes or not _is_task(worker):
        return read()
    objects = reader.objects_ahead()
    if objects is None:
        return read()
    try:
        wanted = reader.first_requests(box)
        if wanted and objects.ask(wanted):
            _wait_without_slot(worker, objects)
        return using(objects, read)
    finally:
        objects.end()


def _is_task(distributed: Any) -> bool:
    """Say whether this thread runs a task of a worker."""
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def _wait_without_slot(distributed: Any, objects: ObjectsAhead) -> None:
    if not _waiting.acquire(blocking=False):
        return
    try:
        try:
            distributed.secede()
        except (AttributeError, KeyError):  # a thread that a task has started, or one that has left its slot already
            return
        try:
            objects.wait()
        finally:
            distributed.rejoin()
    finally:
        _waiting.release()
