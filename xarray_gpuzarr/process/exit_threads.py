"""Threads that the interpreter joins at exit: one inside the driver while CUDA is torn down may crash the process.

Python does not wait for daemon threads, and would wait for others without end. ``atexit`` calls first what was
registered last, so each thread that starts puts the wait in front of what libraries have registered by then, CuPy and
RMM among them. Helpers of `crew.Crew` need none: they work only while their caller does.
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
"""The process ends after this time even if threads have not."""

_threads: dict[threading.Thread, Callable[[], None]] = {}
"""Threads that may be alive, and what makes each end soon."""


def start_thread(run: Callable[[], object], name: str, stop: Callable[[], None] = lambda: None) -> None:
    """Start a daemon thread that the end of the process waits for, after calling `stop`, which lets `run` end soon.

    Raises `RuntimeError` if the system starts no more threads.
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    for other in list(_threads):
        if not other.is_alive():
            _threads.pop(other, None)
    _threads[thread] = stop
    atexit.unregister(_end)
    atexit.register(_end)


def has_begun() -> bool:
    """Return whether the interpreter ends: it waits for all threads of pools, and then pools take no more work."""
    try:
        _pool().submit(int)
    except RuntimeError as err:
        return "shutdown" in str(err)  # else the system starts no more threads
    return False


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "gpuzarr_ending")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _end() -> None:
    """Let all threads end, and wait for them: until what is local to each is gone, too."""
    last = time.monotonic() + PATIENCE_S
    for stop in list(_threads.values()):
        stop()
    for thread in list(_threads):
        thread.join(max(0.0, last - time.monotonic()))
