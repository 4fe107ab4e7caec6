"""Reads that end before they have read all: told so by another thread, they stop at their next request."""

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


class StoppableDecoder:
    """A decoder whose reads stop between two requests."""

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

    def __init__(self, source: ByteSource, stop: Stop) -> None:
        self._stop = stop
        self._start = source.start
        self.rule, self.lookahead, self.is_remote = source.rule, source.lookahead, source.is_remote
        self.storage, self.is_local, self._source = source.storage, source.is_local, source
        self.chunk_versions = source.chunk_versions
        self._local_file, self.prefetch = source.local_file, source.prefetch

    @property
    def cuts_objects(self) -> bool:
        return self._source.cuts_objects

    def local_file(self, key: str) -> LocalFile:
        self._stop.check()
        return self._local_file(key)

    def start(self, requests: Sequence[Request]) -> Pending:
        self._stop.check()
        return self._start(requests)


_REMOTE_READS = 32
"""Concurrent reads from one server, each of up to 48 requests."""


def read_threads(server: Hashable) -> ThreadPoolExecutor:
    """Return the threads for reads from a server; None for local files and memory.

    asyncio's own threads are not used: stores run requests there, for which reads wait. Reads of local files use as
    many threads as may decode at once. Other reads mostly wait for their stores, and use more.
    """
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
