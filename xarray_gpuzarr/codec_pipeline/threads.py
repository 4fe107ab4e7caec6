"""Run blocking reads for coroutines on separate threads, and stop them when the coroutine is cancelled.

asyncio's own threads are not used: stores run requests there, for which reads wait. Reads of local files use as many
threads as may decode at once. Other reads mostly wait for their stores, and use more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xarray_gpuzarr.process.side_by_side import threads_for
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.read.stopping import Stop

_REMOTE_READS = 32
"""Concurrent reads from one server, each of up to 48 requests."""


def read_threads(server: Hashable) -> ThreadPoolExecutor:
    """Return the threads for reads from a server; None for local files and memory."""
    return threads_for(server, thread_budget() if server is None else max(thread_budget(), _REMOTE_READS))


async def on_thread[Result](read: Callable[[Stop], Result], threads: ThreadPoolExecutor) -> Result:
    """Return the result of `read` on one of the threads.

    On cancellation, `read` is stopped, and has ended before the cancellation continues, so that it no longer writes to
    its output.
    """
    stop = Stop()
    future = threads.submit(read, stop)
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        stop.set()
        future.cancel()  # has no effect once it has begun
        while not waiting.done():
            with suppress(asyncio.CancelledError):  # once more
                await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # else asyncio logs it
        raise
