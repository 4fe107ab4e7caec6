"""Blocking reads for coroutines: on threads of their own, stopped where the coroutine is cancelled.

Not asyncio's own pool: stores run their requests there, for which reads wait. Reads of local files take as many threads
as may decode at once; others mostly wait for their stores, and take more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.read.stopping import Stop

_REMOTE_READS = 32
"""Reads from stores that may be under way at once; each has up to 48 requests."""

_pools: dict[tuple[bool, int], ThreadPoolExecutor] = {}


def _pool(*, is_remote: bool) -> ThreadPoolExecutor:
    n_threads = max(thread_budget(), _REMOTE_READS if is_remote else 1)
    pool = _pools.get((is_remote, n_threads))
    if pool is None:
        fresh = ThreadPoolExecutor(n_threads, thread_name_prefix="gpuzarr_read")
        pool = _pools.setdefault((is_remote, n_threads), fresh)
    return pool


os.register_at_fork(after_in_child=_pools.clear)


async def on_thread[Result](read: Callable[[Stop], Result], *, is_remote: bool) -> Result:
    """Return what `read` does on another thread.

    If this is cancelled, `read` is told to stop, and has ended when the cancellation goes on: nobody writes to the
    output of a read that was given up.
    """
    stop = Stop()
    future = _pool(is_remote=is_remote).submit(read, stop)
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
