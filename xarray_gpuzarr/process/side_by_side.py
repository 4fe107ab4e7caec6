"""Blocking calls to a slow store, run on several threads. A signal that interrupts the caller is handled at once."""

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
from xarray_gpuzarr.process.waiting import apart

_pools: WeakValueDictionary[tuple[Hashable, int], ThreadPoolExecutor] = WeakValueDictionary()
os.register_at_fork(after_in_child=_pools.clear)


def threads_for(server: Hashable, n_threads: int) -> ThreadPoolExecutor:
    """Return a pool for `n_threads` reads at once from a server, which ends once nobody holds it.

    `server` is as `xarray_gpuzarr.fetch.remote.servers.server_of` returns it; None for local files and memory.
    """
    pool = _pools.get((server, n_threads))
    return pool or _pools.setdefault((server, n_threads), ThreadPoolExecutor(n_threads, "gpuzarr_read"))


MOST_THREADS = 32
"""That wait for a store at once."""


def side_by_side[Result](
    calls: Sequence[Callable[[], Result]], as_caller: Callable[[], AbstractContextManager[object]] = nullcontext
) -> list[Result]:
    """Return what each of several calls returns, in their order.

    `as_caller` makes a thread one that reads where the calling thread would; it is entered once on each thread.

    Raises the first error that a call raises. Calls that have begun are waited for, unless a signal interrupts; others
    are not made.
    """
    waiting = deque(range(len(calls)))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    threads: list[Lock] = []

    def work(ended: Lock) -> None:
        try:
            with as_caller():
                while (number := _next(waiting)) is not None:
                    results[number] = calls[number]()
        except BaseException as err:  # noqa: BLE001  # it is raised below
            errors.append(err)
            waiting.clear()
        finally:
            ended.release()

    contexts = [copy_context() for _ in range(min(len(calls), MOST_THREADS))]  # which have NumPy's errstate

    def start() -> None:
        for context in contexts:
            ended = Lock()
            ended.acquire()
            start_thread(partial(context.run, work, ended), "gpuzarr_side_by_side", waiting.clear)
            threads.append(ended)

    try:
        try:
            apart(start)
        except RuntimeError:  # the system starts no more threads: fewer do as well
            if not threads:
                raise
        _wait_for(threads)
    except BaseException:  # reads that have begun end by themselves
        waiting.clear()
        raise
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]


def _next(waiting: deque[int]) -> int | None:
    with suppress(IndexError):  # another thread has taken the last one
        return waiting.popleft()
    return None


def _wait_for(threads: Sequence[Lock]) -> None:
    for ended in threads:
        with ended:
            pass
