"""Threads that lend a hand: a read runs on its caller's thread and on cores that would otherwise idle.

One small pool per process, shared by all reads. The number of threads that decode at once stays within a budget,
however many dask threads call: a helper leaves as soon as callers alone fill the budget.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from xarray_gpuzarr.counters import Stage, counters
from xarray_gpuzarr.errors import OptionError

_ENV = "XARRAY_GPUZARR_NUM_THREADS"
_ENDLESS = sys.maxsize


def thread_budget() -> int:
    """Return how many threads of this process may decode at once.

    ``XARRAY_GPUZARR_NUM_THREADS`` if set, else the threads of the dask worker that this process is, else the cores
    that this process may use, or fewer within `at_most`.
    """
    setting = os.environ.get(_ENV)
    if setting is not None:
        if not setting.isdecimal() or int(setting) < 1:
            raise OptionError(
                "unusable number of threads",
                tried=f"{_ENV}={setting!r}",
                found="not a whole number of at least 1",
                do=f"unset {_ENV}, or give it a number such as 4",
            )
        return int(setting)
    return _dask_worker_threads() or min(n_cores(), _limit.n_threads or _ENDLESS)


class _Limit(threading.local):
    n_threads: int | None = None


_limit = _Limit()


@contextmanager
def at_most(n_threads: int | None) -> Iterator[None]:
    """Let reads of the calling thread use fewer threads inside a ``with`` block.

    Parameters
    ----------
    n_threads : int or None
        None: no fewer.

    Notes
    -----
    The environment, and the workers of a cluster in this process, say better what this process was given.
    """
    before, _limit.n_threads = _limit.n_threads, n_threads
    try:
        yield
    finally:
        _limit.n_threads = before


def n_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _dask_worker_threads() -> int:
    """Return the threads of the distributed workers of this process, 0 if it hosts none."""
    worker_module = sys.modules.get("distributed.worker")
    if worker_module is None:
        return 0
    workers = worker_module.Worker._instances  # noqa: SLF001  # distributed has no public list
    if not workers:
        return 0
    return sum(w.state.nthreads for w in list(workers) if w.status in worker_module.WORKER_ANY_RUNNING)


class Crew:
    """The decoding threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._active = 0

    def run(self, work: Callable[[Callable[[], bool]], None], most: int, budget: int | None = None) -> None:
        """Run `work` here and, while cores are free, on up to `most` - 1 helper threads.

        Parameters
        ----------
        work : callable
            Takes tasks from a queue of its own until the queue is empty. Its argument says, between two tasks,
            whether this thread should go on.
        most : int
            Threads that could be busy at once.
        budget : int or None
            What `thread_budget` has said lately; None asks it.

        Raises
        ------
        Exception
            The first one that `work` raised on any thread; all threads have stopped by then.
        """
        budget = budget or thread_budget()
        with self._lock:
            self._active += 1
            n_helpers = max(0, min(most - 1, budget - self._active))
            self._active += n_helpers
            pool = self._pool_of(budget) if n_helpers else None
        stage = counters.current
        helpers = [pool.submit(self._help, work, budget, stage) for _ in range(n_helpers)] if pool else []
        try:
            work(lambda: True)
        finally:
            self._leave(1)
            # A helper that never started has nothing to finish.
            self._leave(sum(h.cancel() for h in helpers))
            _wait(helpers)
        for helper in helpers:
            if not helper.cancelled():
                helper.result()

    def _help(self, work: Callable[[Callable[[], bool]], None], budget: int, stage: Stage | None) -> None:
        try:
            with counters.stage(stage):
                work(lambda: self._active <= budget)
        finally:
            self._leave(1)

    def _leave(self, n: int) -> None:
        with self._lock:
            self._active -= n

    def _pool_of(self, budget: int) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(budget, n_cores()), thread_name_prefix="gpuzarr")
        return self._pool


def _wait(helpers: list[Future[None]]) -> None:
    for helper in helpers:
        if not helper.cancelled():
            helper.exception()


crew = Crew()


def _after_fork() -> None:
    global crew  # noqa: PLW0603  # threads and held locks do not survive a fork
    crew = Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
