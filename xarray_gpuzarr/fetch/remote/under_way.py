"""Requests of one read on zarr's own event loop, and answers that a thread waits for; `store_source` bounds how many.

Not `concurrent.futures.Future`: a signal that interrupts a thread there may leave a lock held that the event loop needs
next, which ends all reads of the process. Here threads touch one C lock of their own, see `waiting`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from threading import Lock
from typing import Any, ClassVar

from zarr import config
from zarr.core import sync

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.process import exit_threads
from xarray_gpuzarr.process.waiting import run_uninterrupted

_LOOK_S = 1.0
"""How often a thread that waits for an answer looks whether the interpreter ends."""


class Reply[Result]:
    """What a request that is under way will end in."""

    __slots__ = ("_answered", "_error", "_result", "_task", "is_answered")

    def __init__(self) -> None:
        self._answered = Lock()
        self._answered.acquire()
        self._task: asyncio.Task[Result] | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.is_answered = False

    def result(self, limit_s: float | None = None) -> Result:
        """Wait for the answer; return it, or raise what the store raised.

        Raises `TimeoutError` if there was none in time, `concurrent.futures.CancelledError` if it was given up, or the
        interpreter ends.
        """
        if not self.wait(limit_s):
            raise TimeoutError
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the cycle would keep the answers of the read alive
        return self._result  # type: ignore[return-value]  # it is answered, and without an error

    def wait(self, limit_s: float | None = None) -> bool:
        """Return whether there is an answer, as soon as there is one. Without a limit, the end of Python is one."""
        while not self.is_answered:
            if self._answered.acquire(timeout=_LOOK_S if limit_s is None else limit_s):
                self._answered.release()
            elif limit_s is not None:
                break
            elif exit_threads.exit_has_begun():  # it waits for the threads of dask and others
                raise CancelledError("the interpreter ends")
        return self.is_answered

    def cancel(self) -> None:
        """Give up; the answer is not waited for any more."""
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def begin(self, task: asyncio.Task[Result]) -> None:
        """Take the answer of a task. On the event loop, as `end` is."""
        self._task = task
        task.add_done_callback(self._take)

    def end(self, error: BaseException) -> None:
        """Let this be the answer."""
        self._error = error
        self.is_answered = True
        self._answered.release()

    def _take(self, task: asyncio.Task[Result]) -> None:
        self._error = CancelledError() if task.cancelled() else task.exception()
        if self._error is None:
            self._result = task.result()
        self._task = None
        self.is_answered = True
        self._answered.release()


class UnderWay:
    """All that one read has asked for: given up in one stroke, whichever request was interrupted while it was made."""

    n_of_process: ClassVar[int] = 0
    """Requests of all reads that have not been answered. Changed on the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        """Changed on the event loop only."""
        self._given_up = False

    def __len__(self) -> int:
        return len(self._tasks)

    def ask[Result](
        self, loop: asyncio.AbstractEventLoop, requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]]
    ) -> list[Reply[Result]]:
        """Let the event loop run requests, for which it is woken once; return at once."""
        replies: list[Reply[Result]] = [Reply() for _ in requests]
        loop.call_soon_threadsafe(self._begin, loop, requests, replies)
        return replies

    def give_up(self) -> None:
        """Cancel what has not been answered, and begin nothing any more."""
        self._given_up = True
        for task in list(self._tasks):  # `tuple` would fail while the event loop changes the set, see `waiting`
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _is_given_up(self) -> bool:
        """Look anew: mypy takes an attribute for unchanged that another thread sets."""
        return self._given_up

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        UnderWay.n_of_process -= 1

    def _begin[Result](
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]],
        replies: Sequence[Reply[Result]],
    ) -> None:
        for request, reply in zip(requests, replies, strict=True):
            if self._is_given_up():
                reply.end(CancelledError())
                continue
            try:
                task = asyncio.Task(request(), loop=loop, eager_start=True)
            except Exception as error:  # noqa: BLE001  # a store may raise anything; whoever waits names it
                reply.end(error)
                continue
            self._tasks.add(task)
            UnderWay.n_of_process += 1
            task.add_done_callback(self._end)
            reply.begin(task)
            if self._is_given_up():  # since, by a thread that did not find this task
                task.cancel()


def run_on_loop[Result](name: str, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine on zarr's event loop, to read `name`; cancel it if this thread is interrupted.

    Raises `RuntimeError` on the thread of the event loop, `TimeoutError` if zarr's ``async.timeout`` is over.
    """
    under_way = UnderWay()
    try:
        return begin_on_loop(name, under_way, [request])[0].result(config.get("async.timeout", None))
    finally:
        under_way.give_up()


def begin_on_loop[Result](
    name: str, under_way: UnderWay, requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]]
) -> list[Reply[Result]]:
    """Start coroutines on zarr's event loop to read `name`, and return at once; `under_way` can cancel them.

    Raises `RuntimeError` on the thread of the event loop.
    """
    loop = event_loop(name)
    if asyncio._get_running_loop() is loop:  # noqa: SLF001  # get_running_loop() raises where there is none
        raise RuntimeError("zarr's event loop would wait for itself")
    return under_way.ask(loop, requests)


def event_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return zarr's event loop, to read `name`; raise `StoreReadError` if the system starts no thread for it."""
    loop, thread = sync.loop[0], sync.iothread[0]
    if loop is not None and thread is not None and thread.ident is not None:
        return loop
    try:
        return run_uninterrupted(_begun)
    except RuntimeError as err:
        raise StoreReadError(
            f"cannot read {name}",
            tried="to start a thread for zarr's event loop",
            found=str(err),
            do="end other threads, or let this user have more of them (ulimit -u); then read again",
        ) from err


def _begun() -> asyncio.AbstractEventLoop:
    """Let zarr begin its event loop, which it takes for begun even if its thread could not be started."""
    with sync._get_lock():  # noqa: SLF001  # zarr has no public way to its loop
        thread = sync.iothread[0]
        if thread is not None and thread.ident is None:
            sync.loop[0] = sync.iothread[0] = None
    return sync._get_loop()  # noqa: SLF001  # likewise


def _after_fork() -> None:
    UnderWay.n_of_process = 0
    vars(sync).update(_lock=None)  # zarr lets go of its loop, but not of the lock that a thread perhaps held


os.register_at_fork(after_in_child=_after_fork)
