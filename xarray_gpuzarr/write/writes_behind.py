"""`WritesBehind`: objects that are on their way to a server while the next ones are encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, Self

from zarr import config

from xarray_gpuzarr.fetch.remote.store_source import requests_at_once
from xarray_gpuzarr.fetch.remote.under_way import Reply, UnderWay, begin_on_loop
from xarray_gpuzarr.process.records import record

MOST_NBYTES = 32 * 1024 * 1024
"""Encoded bytes under way from which on nothing else is encoded: what 400 MB/s take in 80 ms."""


class Encoding:
    """A write that is under way, as the event loop sees it."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Encoded bytes, once they are known."""
        self._is_done = asyncio.Event()

    def add(self, nbytes: int) -> None:
        """Count encoded bytes that will be sent."""
        self.nbytes += nbytes

    def end(self) -> None:
        """Say that nothing is left to encode."""
        self._is_done.set()

    async def wait(self) -> None:
        """Wait until nothing is left to encode."""
        await self._is_done.wait()


@record
class _Write:
    """A write whose objects are under way."""

    reply: Reply[Any]
    nbytes: int
    """Encoded bytes."""


class WritesBehind:
    """Writes that go on after the thread that began them has left them, as soon as their objects are encoded.

    `finish` has to be called at the end of the ``with`` block; what is under way when the block ends is cancelled.
    """

    def __init__(self) -> None:
        self._under_way = UnderWay()
        self._writes: list[_Write] = []
        self._lock = Lock()

    def write[Result](self, name: str, request: Callable[[Encoding], Coroutine[Any, Any, Result]]) -> Result | None:
        """Begin a write to the store `name`, and return once its objects are encoded.

        Returns
        -------
        Result or None
            The result of the write if it has ended, None if its objects are under way.

        Raises
        ------
        Exception
            What this write, or an earlier one, ended in.
        """
        self._make_room()
        encoding = Encoding()
        write, encoded = begin_on_loop(name, self._under_way, [lambda: _ending(request, encoding), encoding.wait])
        try:
            encoded.result(_limit_s())
        except BaseException:
            write.cancel()
            raise
        if write.is_answered:
            return write.result()
        with self._lock:
            self._writes.append(_Write(reply=write, nbytes=encoding.nbytes))
        return None

    def finish(self) -> None:
        """Wait for all writes; raise what one of them ended in."""
        with self._lock:
            writes, self._writes = self._writes, []
        for each in writes:
            each.reply.result(_limit_s())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._under_way.give_up()

    def _make_room(self) -> None:
        """Wait until fewer bytes and requests are under way; raise what a write ended in."""
        while True:
            with self._lock:
                ended = [each for each in self._writes if each.reply.is_answered]
                self._writes = [each for each in self._writes if not each.reply.is_answered]
                nbytes = sum(each.nbytes for each in self._writes)
                has_room = nbytes < MOST_NBYTES and len(self._writes) < requests_at_once()
                oldest = None if has_room else self._writes[0]
            for each in ended:
                each.reply.result()
            if oldest is None:
                return
            oldest.reply.wait(_limit_s())


async def _ending[Result](request: Callable[[Encoding], Coroutine[Any, Any, Result]], encoding: Encoding) -> Result:
    """Carry out a write, after which nothing is left to encode, whatever it ends in."""
    try:
        return await request(encoding)
    finally:
        encoding.end()


def _limit_s() -> float | None:
    """Return the seconds that zarr-python waits for a store; None for no limit."""
    limit: float | None = config.get("async.timeout", None)
    return limit
