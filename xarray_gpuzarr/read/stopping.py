"""Reads that another thread can stop: they end at their next request.

`on_thread` runs a read on a thread for a coroutine, and stops it if the coroutine is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.fetch.source import ByteSource, LocalFile, Pending, Request
from xarray_gpuzarr.process.side_by_side import threads_for
from xarray_gpuzarr.process.threads import thread_budget


class Stop:
    """A flag that another thread sets to stop a read."""

    __slots__ = ("_give_up_functions", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._give_up_functions: list[Callable[[], None]] = []
        """Functions that cancel the read's outstanding requests: one for each attempt of the read."""

    def set(self) -> None:
        """Stop the read: at its next request, or now if it waits for answers."""
        self._is_set = True
        for give_up in self._give_up_functions:
            give_up()

    def check(self) -> None:
        """Raise `CancelledError` if the read is to stop."""
        if self._is_set:
            raise asyncio.CancelledError  # no `except Exception` catches it

    def register(self, give_up: Callable[[], None]) -> None:
        """Let `set` call `give_up`, which cancels requests. Raises `CancelledError` if the read is to stop already."""
        # In this order, because the check notices a `set` between the two steps.
        self._give_up_functions.append(give_up)
        self.check()


class StoppableDecoder:
    """A decoder whose reads end once `stop` is set. Reads without a plan are not stopped, since they are short."""

    def __init__(self, decoder: Decoder, stop: Stop) -> None:
        self._decoder = decoder
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def decode(self, plans: Iterator[Any], source: Any, **keywords: Any) -> Any:
        """Carry out plans; see `Decoder.decode`."""
        self._stop.register(source.give_up)
        return self._decoder.decode(self._stopping(plans), _StoppableSource(source, self._stop), **keywords)

    def _stopping(self, plans: Iterator[Any]) -> Iterator[Any]:
        """Yield `plans`. Raises `CancelledError` instead of yielding the next one if the read is to stop."""
        for plan in plans:
            self._stop.check()
            yield plan


class _StoppableSource:
    """A `ByteSource` that raises `CancelledError` once the read is to stop."""

    def __init__(self, source: ByteSource, stop: Stop) -> None:
        self._stop = stop
        self._start = source.start
        self._source = source
        self._local_file = source.local_file
        self.rule = source.rule
        self.lookahead = source.lookahead
        self.is_remote = source.is_remote
        self.is_local = source.is_local
        self.storage = source.storage
        self.chunk_versions = source.chunk_versions
        self.prefetch = source.prefetch

    @property
    def cuts_objects(self) -> bool:
        return self._source.cuts_objects  # may change during the read, so it is not copied

    def local_file(self, key: str) -> LocalFile:
        self._stop.check()
        return self._local_file(key)

    def start(self, requests: Sequence[Request]) -> Pending:
        self._stop.check()
        return self._start(requests)


_REMOTE_READS = 32
"""Largest number of concurrent reads from one server, each of up to 48 requests, unless more threads may decode."""


def read_threads(server: Hashable) -> ThreadPoolExecutor:
    """Return the pool of threads for reads from a server; `server` is None for local files and memory.

    There are as many threads as may decode at once, and more for servers, whose reads mostly wait. The threads of
    asyncio are not used: stores run their requests on those, so reads that occupied all of them would wait forever.
    """
    return threads_for(server, thread_budget() if server is None else max(thread_budget(), _REMOTE_READS))


async def on_thread[Result](read: Callable[[Stop], Result], threads: ThreadPoolExecutor) -> Result:
    """Call `read` on one of the threads, and return its result.

    If the caller is cancelled, the read is stopped. The cancellation continues once the read has ended, so that it no
    longer writes to its output.
    """
    stop = Stop()
    future = threads.submit(read, stop)
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        stop.set()
        future.cancel()  # takes effect only if the read has not begun
        while not waiting.done():
            with suppress(asyncio.CancelledError):  # another cancellation must not end the wait
                await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # retrieved, so that asyncio does not log it
        raise
