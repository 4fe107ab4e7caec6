"""`start_thread`: threads that the process waits for when it exits, but not forever.

A thread that is inside the CUDA driver while CUDA is torn down may crash the process, so such threads have to end
first. Python does not wait for daemon threads, and waits for other threads without a limit. Here an ``atexit`` function
waits for daemon threads, for a limited time. ``atexit`` calls first what was registered last. So each new thread
registers that function again, to have it called before those that libraries such as CuPy and RMM have registered so
far. The threads of `crew.Crew` need no wait, because they work only while their caller does.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

PATIENCE_S = 10.0
"""Longest time that the process waits at exit, for all threads together."""

_threads: dict[threading.Thread, Callable[[], None]] = {}
"""Thread that may be alive -> function that lets it end soon."""


def start_thread(run: Callable[[], object], name: str, stop: Callable[[], None] = lambda: None) -> None:
    """Start a daemon thread that the exit of the process waits for.

    Parameters
    ----------
    run : callable
        Called on the thread.
    name : str
        Name of the thread.
    stop : callable
        Called at exit, on the main thread. Lets `run` end soon.

    Raises
    ------
    RuntimeError
        The system starts no more threads.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    for other in list(_threads):
        if not other.is_alive():
            _threads.pop(other, None)
    _threads[thread] = stop
    atexit.unregister(_end)
    atexit.register(_end)


def exit_has_begun() -> bool:
    """Whether the interpreter is exiting. A thread pool shows it, since pools refuse work from then on."""
    try:
        _pool().submit(int)  # a call that does nothing
    except RuntimeError as err:
        return "shutdown" in str(err)  # the other reason is that the system starts no more threads
    return False


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "gpuzarr_ending")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _end() -> None:
    """Let all threads end, and wait for them, at most `PATIENCE_S` seconds.

    `Thread.join` also waits until the thread-local data of a thread are released, such as the current streams that CuPy
    keeps for it.
    """
    deadline = time.monotonic() + PATIENCE_S
    for stop in list(_threads.values()):
        stop()
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
