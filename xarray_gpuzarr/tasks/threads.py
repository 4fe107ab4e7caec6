"""How many threads a task of dask's own schedulers may use: what dask was given, no more.

Workers of a cluster are asked by `process.threads`. Called by `backend.chunking`.
"""

from __future__ import annotations

import multiprocessing

import dask

_SYNCHRONOUS = ("sync", "synchronous", "single-threaded")


def threads_given() -> int | None:
    """Return the threads that dask's configuration gives to this process; None if it says nothing.

    A process of dask's pool has one; so has the synchronous scheduler. A number that was given to ``compute`` alone
    cannot be seen here.
    """
    if multiprocessing.parent_process() is not None or dask.config.get("scheduler", None) in _SYNCHRONOUS:
        return 1
    pool, n_workers = dask.config.get("pool", None), dask.config.get("num_workers", None)
    n_threads = getattr(pool, "_max_workers", None) or n_workers
    return int(n_threads) if n_threads else None
