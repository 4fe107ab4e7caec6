"""`WritesBehind`: objects are sent to a server in the background, while the next ones are encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, Self

from zarr import config

from xarray_gpuzarr.fetch.remote.request_limits import max_concurrent_requests
from xarray_gpuzarr.fetch.remote.under_way import Reply, RequestsUnderWay, begin_on_loop
from xarray_gpuzarr.process.records import record

MAX_NBYTES = 32 * 1024 * 1024
"""While at least so many encoded bytes are being sent, no other write begins. A connection of 400 MB/s sends them in
80 ms."""


class EncodingProgress:
    """How far a write has got with encoding. Only the event loop may use it."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Encoded bytes so far."""
        self._is_done = asyncio.Event()

    def add(self, nbytes: int) -> None:
        """Count encoded bytes, which are about to be sent."""
        self.nbytes += nbytes

    def end(self) -> None:
        """Wake up the coroutines that wait, since everything is encoded."""
        self._is_done.set()

    async def wait(self) -> None:
        """Wait until everything is encoded."""
        await self._is_done.wait()


@record
class _BackgroundWrite:
    """A write whose objects are being sent."""

    reply: Reply[Any]
    """Result of the write."""
    nbytes: int
    """Encoded bytes."""


class WritesBehind:
    """Writes that continue in the background once their objects are encoded, so that the calling thread can go on.

    A context manager, safe to use from several threads. Call `finish` at the end of the ``with`` block: leaving the
    block cancels all writes that still run.
    """

    def __init__(self) -> None:
        self._requests = RequestsUnderWay()
        self._writes: list[_BackgroundWrite] = []
        self._lock = Lock()

    def write[Result](
        self, name: str, request: Callable[[EncodingProgress], Coroutine[Any, Any, Result]]
    ) -> Result | None:
        """Begin a write, and return once its objects are encoded.

        Parameters
        ----------
        name : str
            Name of the store, as errors show it.
        request : callable
            Returns the coroutine of the write, given the `EncodingProgress` to which the coroutine reports.

        Returns
        -------
        Result or None
            The result of the write if it has ended, None if its objects are being sent.

        Raises
        ------
        Exception
            The error of this write, or of an earlier one that has failed in the background.
        """
        self._wait_for_room()
        progress = EncodingProgress()
        requests = [lambda: _run_write(request, progress), progress.wait]
        write_reply, encoded_reply = begin_on_loop(name, self._requests, requests)
        encoded_reply.result(_timeout_s())
        if write_reply.is_answered:
            return write_reply.result()
        with self._lock:
            self._writes.append(_BackgroundWrite(reply=write_reply, nbytes=progress.nbytes))
        return None

    def finish(self) -> None:
        """Wait for all writes, in the order in which they were encoded, or until one fails; raise its error."""
        with self._lock:
            writes = self._writes
            self._writes = []
        for write in writes:
            write.reply.result(_timeout_s())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.give_up()

    def _wait_for_room(self) -> None:
        """Wait until another write may begin; raise the error of a write that has failed meanwhile."""
        while True:
            with self._lock:
                running: list[_BackgroundWrite] = []
                ended: list[_BackgroundWrite] = []
                for write in self._writes:
                    if write.reply.is_answered:  # asked only once, since the write may end at any time
                        ended.append(write)
                    else:
                        running.append(write)
                self._writes = running
                nbytes = sum(write.nbytes for write in self._writes)
                has_room = nbytes < MAX_NBYTES and len(self._writes) < max_concurrent_requests()
                oldest = None if has_room else self._writes[0]
            for write in ended:
                write.reply.result()
            if oldest is None:
                return
            oldest.reply.wait(_timeout_s())


async def _run_write[Result](
    request: Callable[[EncodingProgress], Coroutine[Any, Any, Result]], progress: EncodingProgress
) -> Result:
    """Carry out a write. However it ends, wake up those who wait for its encoding."""
    try:
        return await request(progress)
    finally:
        progress.end()


def _timeout_s() -> float | None:
    """Return for how many seconds zarr-python waits for a store; None for no limit."""
    timeout_s: float | None = config.get("async.timeout", None)
    return timeout_s
