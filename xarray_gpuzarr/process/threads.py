"""Numbers of threads that this process may use, from the environment, dask's workers and the cores."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from xarray_gpuzarr.errors import OptionError

_ENV = "XARRAY_GPUZARR_NUM_THREADS"
_ENDLESS = sys.maxsize


def thread_budget() -> int:
    """Return how many threads of this process may decode at once.

    ``XARRAY_GPUZARR_NUM_THREADS`` if set, else the threads of the dask worker that this process is, else the cores
    that this process may use, or fewer within `at_most`.
    """
    return thread_setting() or dask_worker_threads() or min(n_cores(), _limit.n_threads or _ENDLESS)


def thread_setting() -> int | None:
    """Return ``XARRAY_GPUZARR_NUM_THREADS``; None if it is not set."""
    setting = os.environ.get(_ENV)
    if setting is None:
        return None
    if not setting.isdecimal() or int(setting) < 1:
        raise OptionError(
            "unusable number of threads",
            tried=f"{_ENV}={setting!r}",
            found="not a whole number of at least 1",
            do=f"unset {_ENV}, or give it a number such as 4",
        )
    return int(setting)


class _Limit(threading.local):
    n_threads: int | None = None


_limit = _Limit()


def at_most[Result](n_threads: int | None, read: Callable[[], Result]) -> Result:
    """Call `read`, and let reads of the calling thread use at most `n_threads` meanwhile; None changes nothing.

    The environment, and the workers of a cluster in this process, come first: they say what this process was given.
    """
    before = _limit.n_threads
    try:
        _limit.n_threads = n_threads
        return read()
    finally:
        _limit.n_threads = before


def n_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dask_worker_threads() -> int:
    """Return the threads of the distributed workers of this process, 0 if it hosts none.

    Another thread may be importing distributed, or making a worker, just now: what is not there yet does not count.
    """
    module = sys.modules.get("distributed.worker")
    instances = getattr(getattr(module, "Worker", None), "_instances", None)  # distributed has no public list
    if not instances:
        return 0
    running = getattr(module, "WORKER_ANY_RUNNING", ())
    # `list` of a set holds its lock, see `waiting`; a WeakSet has its references in `data`.
    references = list(getattr(instances, "data", ()))
    workers = [worker for worker in (reference() for reference in references) if worker is not None]
    return sum(w.state.nthreads for w in workers if hasattr(w, "state") and w.status in running)
