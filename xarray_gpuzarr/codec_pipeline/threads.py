"""Blocking reads for coroutines: on threads of their own, stopped where the coroutine is cancelled.

Not asyncio's own pool: stores run their requests there, for which reads wait. Reads of local files take as many threads
as may decode at once; others mostly wait for their stores, and take more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xarray_gpuzarr.process.store_threads import threads_for
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.read.stopping import Stop

_REMOTE_READS = 32
"""Reads from one server that may be under way at once; each has up to 48 requests."""


def read_threads(server: Hashable) -> ThreadPoolExecutor:
    """Return the threads for reads from a server; None for local files and memory."""
    return threads_for(server, thread_budget() if server is None else max(thread_budget(), _REMOTE_READS))


async def on_thread[Result](read: Callable[[Stop], Result], threads: ThreadPoolExecutor) -> Result:
    """Return what `read` does on one of some threads.

    If this is cancelled, `read` is told to stop, and has ended when the cancellation goes on: nobody writes to the
    output of a read that was given up.
    """
    stop = Stop()
    future = threads.submit(read, stop)
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        stop.set()
        future.cancel()  # which does nothing once it has begun
        while not waiting.done():
            with suppress(asyncio.CancelledError):  # once more
                await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # it is looked at: asyncio has nothing to complain of
        raise
