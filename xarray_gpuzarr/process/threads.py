"""`thread_budget`: the number of threads that may decode at once in this process.

It follows from the environment, the dask workers of the process, and the cores that it may use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from xarray_gpuzarr.errors import OptionError

_ENV = "XARRAY_GPUZARR_NUM_THREADS"
_NO_LIMIT = sys.maxsize


def thread_budget() -> int:
    """Return the number of threads of this process that may decode at once.

    This is ``XARRAY_GPUZARR_NUM_THREADS`` if it is set, otherwise the number of threads of the dask workers in this
    process, if there are any, otherwise the number of cores that the process may use, or fewer within `limit_threads`.
    Raises `OptionError` if the variable has another value than a number.
    """
    setting = os.environ.get(_ENV)
    if setting is not None:
        return _parse_setting(setting)
    return dask_worker_threads() or min(n_cores(), _limit.n_threads or _NO_LIMIT)


def thread_setting() -> int | None:
    """Return the value of ``XARRAY_GPUZARR_NUM_THREADS``, or None if it is not set.

    Raises `OptionError` if the value is not a whole number of at least 1.
    """
    setting = os.environ.get(_ENV)
    return None if setting is None else _parse_setting(setting)


def _parse_setting(setting: str) -> int:
    """Return the number in a value of ``XARRAY_GPUZARR_NUM_THREADS``; see `thread_setting`."""
    if not setting.isdecimal() or int(setting) < 1:
        raise OptionError(
            "unusable number of threads",
            tried=f"{_ENV}={setting!r}",
            found="not a whole number of at least 1",
            do=f"unset {_ENV}, or give it a number such as 4",
        )
    return int(setting)


class _Limit(threading.local):
    """Largest number of threads that reads of the calling thread use; None if there is no limit."""

    n_threads: int | None = None


_limit = _Limit()


def limit_threads[Result](n_threads: int | None, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, for which `thread_budget` is at most `n_threads`; None for no limit.

    The environment and dask workers in this process take precedence, because they say what the process was given.
    """
    previous = _limit.n_threads
    try:
        _limit.n_threads = n_threads
        return read()
    finally:
        _limit.n_threads = previous


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dask_worker_threads() -> int:
    """Return the number of threads of the distributed workers in this process; 0 if there are none.

    Another thread may be importing distributed or starting a worker at this moment. Such a worker does not count yet.
    """
    module = sys.modules.get("distributed.worker")
    instances = getattr(getattr(module, "Worker", None), "_instances", None)  # there is no public list
    if not instances:
        return 0
    running = getattr(module, "WORKER_ANY_RUNNING", ())
    # `data` of a WeakSet is a set of weak references, and `list` of a set is atomic (see `waiting`).
    references = list(getattr(instances, "data", ()))
    n_threads = 0
    for reference in references:
        worker = reference()
        if worker is not None and hasattr(worker, "state") and worker.status in running:
            n_threads += worker.state.nthreads
    return n_threads
