"""`side_by_side`: makes several blocking calls to slow stores at the same time, each on a thread.

A signal that interrupts the caller is handled at once, without waiting for the calls. `threads_for` returns pools of
threads, on which asynchronous programs read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from weakref import WeakValueDictionary

from xarray_gpuzarr.process.exit_threads import start_thread
from xarray_gpuzarr.process.waiting import run_uninterrupted

_pools: WeakValueDictionary[tuple[Hashable, int], ThreadPoolExecutor] = WeakValueDictionary()
os.register_at_fork(after_in_child=_pools.clear)


def threads_for(server: Hashable, n_threads: int) -> ThreadPoolExecutor:
    """Return the pool of `n_threads` threads that read from a server.

    Calls with the same arguments return the same pool. Its threads end once nothing refers to it any more.

    Parameters
    ----------
    server : hashable
        What `xarray_gpuzarr.fetch.remote.servers.server_of` returns; None for local files and memory.
    n_threads : int
        Number of reads at once.
    """
    pool = _pools.get((server, n_threads))
    return pool or _pools.setdefault((server, n_threads), ThreadPoolExecutor(n_threads, "gpuzarr_read"))


MOST_THREADS = 32
"""Largest number of threads of one call of `side_by_side`, and of a pool for asynchronous reads. They wait for a store
most of the time, so they may be more than the cores."""


def side_by_side[Result](
    calls: Sequence[Callable[[], Result]], as_caller: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Result]:
    """Make several calls at the same time, at most `MOST_THREADS` at once, and return their results in order.

    Parameters
    ----------
    calls : sequence of callables
        Called without arguments, on other threads, with copies of the calling thread's context variables.
    as_caller : callable
        Called once on each thread. Returns the context manager inside which the thread makes calls.

    Raises
    ------
    BaseException
        The first error that a call raised. Calls that had begun by then have ended, and others are not made. If a
        signal interrupts, those that have begun end later.
    """
    untaken = deque(range(len(calls)))
    """Numbers of the calls that no thread has taken yet."""
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    end_locks: list[Lock] = []
    """For each thread that was started, a lock that it releases when it ends."""

    def work(ended: Lock) -> None:
        try:
            with as_caller():
                while (number := _take(untaken)) is not None:
                    results[number] = calls[number]()
        except BaseException as err:  # noqa: BLE001  # raised below, on the calling thread
            errors.append(err)
            untaken.clear()
        finally:
            ended.release()

    # Each thread gets a copy of its own, since a context can be entered only once at a time. It includes NumPy's
    # errstate.
    contexts = [copy_context() for _ in range(min(len(calls), MOST_THREADS))]

    def start() -> None:
        for context in contexts:
            ended = Lock()
            ended.acquire()
            # At exit, `untaken.clear` keeps calls that have not begun from being made.
            start_thread(partial(context.run, work, ended), "gpuzarr_side_by_side", stop=untaken.clear)
            end_locks.append(ended)

    try:
        try:
            run_uninterrupted(start)
        except RuntimeError:  # the system starts no more threads; those that it has started make all calls
            if not end_locks:
                raise
        _wait_for(end_locks)
    except BaseException:  # calls that have begun end by themselves
        untaken.clear()
        raise
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]


def _take(untaken: deque[int]) -> int | None:
    """Take the number of the next call, or return None if no calls are left."""
    with suppress(IndexError):
        return untaken.popleft()
    return None


def _wait_for(locks: Sequence[Lock]) -> None:
    for lock in locks:
        with lock:
            pass
