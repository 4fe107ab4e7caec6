"""Blocking reads for coroutines: on threads of their own, stopped where the coroutine is cancelled.

Not asyncio's own pool: stores run their requests there, for which reads wait. Reads of local files take as many threads
as may decode at once; others mostly wait for their stores, and take more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from xarray_gpuzarr.decoders import Decoder
from xarray_gpuzarr.process.threads import thread_budget

_REMOTE_READS = 32
"""Reads from stores that may be under way at once; each has up to 24 requests."""

_pools: dict[tuple[bool, int], ThreadPoolExecutor] = {}


def _pool(*, is_remote: bool) -> ThreadPoolExecutor:
    n_threads = max(thread_budget(), _REMOTE_READS if is_remote else 1)
    pool = _pools.get((is_remote, n_threads))
    if pool is None:
        fresh = ThreadPoolExecutor(n_threads, thread_name_prefix="gpuzarr_read")
        pool = _pools.setdefault((is_remote, n_threads), fresh)
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


class Stop:
    """Whether a read is to end before it has read all."""

    __slots__ = ("_give_up", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._give_up: list[Callable[[], None]] = []

    def set(self) -> None:
        """Let the read end: at its next request, or now if it waits for answers."""
        self._is_set = True
        for give_up in self._give_up:
            give_up()

    def check(self, give_up: Callable[[], None] | None = None) -> None:
        """Raise if the read is to end; else, `give_up` is called once it is."""
        if give_up is not None:
            self._give_up.append(give_up)
        if self._is_set:
            raise asyncio.CancelledError  # which nothing on the way takes for an error of the store


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


class StoppableDecoder:
    """A decoder whose reads stop between two requests.

    Parameters
    ----------
    decoder : Decoder
    stop : Stop
    """

    def __init__(self, decoder: Decoder, stop: Stop) -> None:
        self._decoder = decoder
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def decode(self, plans: Iterator[Any], source: Any, **keywords: Any) -> Any:
        """Carry out plans; see `Decoder.decode`."""
        self._stop.check(source.give_up)
        return self._decoder.decode(self._stopping(plans), _StoppableSource(source, self._stop), **keywords)

    def _stopping(self, plans: Iterator[Any]) -> Iterator[Any]:
        for plan in plans:
            self._stop.check()
            yield plan


class _StoppableSource:
    """A `ByteSource` that is asked for nothing any more once a read is to stop."""

    def __init__(self, source: Any, stop: Stop) -> None:
        self._source = source
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        if name not in _REQUESTS:
            return found

        def ask(*args: Any) -> Any:
            self._stop.check()
            return found(*args)

        return ask


_REQUESTS = frozenset({"start", "start_objects", "start_stream"})
