"""Requests on zarr's own event loop, and replies that a thread waits for.

`concurrent.futures.Future` is not used, because a signal that interrupts a thread waiting for one may leave a lock held
that the event loop needs next. That would stop all reads of the process. Here a waiting thread touches only one C lock,
which no other reply shares; see `process.waiting`. `store_source` limits the number of requests.
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

_POLL_INTERVAL_S = 1.0
"""Interval at which a waiting thread checks whether the interpreter is ending."""


class Reply[Result]:
    """The future result of a request."""

    __slots__ = ("_answered", "_error", "_result", "_task", "is_answered")

    def __init__(self) -> None:
        self._answered = Lock()
        """Held until the request has ended."""
        self._answered.acquire()
        self._task: asyncio.Task[Result] | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.is_answered = False
        """Whether the request has ended, with a result or an error."""

    def result(self, limit_s: float | None = None) -> Result:
        """Wait for the result and return it, or raise what the store raised. The caller asks for it once.

        Parameters
        ----------
        limit_s : float, optional
            Longest time to wait, in seconds. Without it, there is no limit.

        Raises
        ------
        TimeoutError
            If there is no result in time.
        concurrent.futures.CancelledError
            If the request was cancelled, or the interpreter is ending.
        """
        if not self.wait(limit_s):
            raise TimeoutError
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # otherwise a reference cycle keeps alive the answers of the read
        return self._result  # type: ignore[return-value]  # there is a result if there is no error

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait until the request has ended; return False if it has not within `limit_s` seconds.

        Raises `concurrent.futures.CancelledError` if there is no limit and the interpreter is ending.
        """
        while not self.is_answered:
            if self._answered.acquire(timeout=_POLL_INTERVAL_S if limit_s is None else limit_s):
                self._answered.release()
            elif limit_s is not None:
                break
            elif exit_threads.exit_has_begun():  # the exit waits for threads like this one, such as those of dask
                raise CancelledError("the interpreter ends")
        return self.is_answered

    def cancel(self) -> None:
        """Cancel the request, if it has begun."""
        task = self._task
        if task is not None:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def begin(self, task: asyncio.Task[Result]) -> None:
        """Let the result of a task be the result of the request. Called on the event loop."""
        self._task = task
        task.add_done_callback(self._take)

    def end(self, error: BaseException) -> None:
        """End a request that has no task, with an error. Called on the event loop."""
        self._error = error
        self.is_answered = True
        self._answered.release()

    def _take(self, task: asyncio.Task[Result]) -> None:
        """Take the result or the error of the task, which has ended. Called on the event loop."""
        self._error = CancelledError() if task.cancelled() else task.exception()
        if self._error is None:
            self._result = task.result()
        self._task = None
        self.is_answered = True
        self._answered.release()


class RequestsUnderWay:
    """The requests of one read, which are cancelled together.

    They are cancelled even if a signal has interrupted `start`, so that no thread has their replies.
    """

    n_in_process: ClassVar[int] = 0
    """Number of unanswered requests of all reads. Changed on the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        """Tasks of unanswered requests. Changed on the event loop only."""
        self._is_given_up = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start[Result](
        self, loop: asyncio.AbstractEventLoop, requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]]
    ) -> list[Reply[Result]]:
        """Start requests on the event loop, which is woken once for all of them. Returns at once."""
        replies: list[Reply[Result]] = [Reply() for _ in requests]
        loop.call_soon_threadsafe(self._begin, loop, requests, replies)
        return replies

    def give_up(self) -> None:
        """Cancel all requests that have not been answered, and those that have not begun."""
        self._is_given_up = True
        # The event loop may change the set meanwhile. `list` of a set is atomic, `tuple` is not; see `waiting`.
        for task in list(self._tasks):
            task.get_loop().call_soon_threadsafe(task.cancel)

    def _was_given_up(self) -> bool:
        """Return `_is_given_up`. mypy would assume that the attribute has not changed since it was last read."""
        return self._is_given_up

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        RequestsUnderWay.n_in_process -= 1

    def _begin[Result](
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]],
        replies: Sequence[Reply[Result]],
    ) -> None:
        """Start requests, each for one reply. Called on the event loop."""
        for request, reply in zip(requests, replies, strict=True):
            if self._was_given_up():
                reply.end(CancelledError())
                continue
            try:
                task = asyncio.Task(request(), loop=loop, eager_start=True)
            except Exception as error:  # noqa: BLE001  # a store may raise anything; the waiting thread raises it
                reply.end(error)
                continue
            self._tasks.add(task)
            RequestsUnderWay.n_in_process += 1
            task.add_done_callback(self._end)
            reply.begin(task)
            if self._was_given_up():  # since the check above, by a thread that did not see this task
                task.cancel()


def run_on_loop[Result](name: str, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine on zarr's event loop and return its result. It is cancelled if this thread is interrupted.

    Parameters
    ----------
    name : str
        What is read or written, as errors show it.
    request : callable
        Returns the coroutine.

    Raises
    ------
    RuntimeError
        On the thread of the event loop, which would wait for itself.
    TimeoutError
        If zarr's ``async.timeout`` is over.
    """
    under_way = RequestsUnderWay()
    try:
        return begin_on_loop(name, under_way, [request])[0].result(config.get("async.timeout", None))
    finally:
        under_way.give_up()


def begin_on_loop[Result](
    name: str, under_way: RequestsUnderWay, requests: Sequence[Callable[[], Coroutine[Any, Any, Result]]]
) -> list[Reply[Result]]:
    """Start coroutines on zarr's event loop and return at once; `under_way` can cancel them.

    The other parameters and the `RuntimeError` are those of `run_on_loop`.
    """
    loop = event_loop(name)
    if asyncio._get_running_loop() is loop:  # noqa: SLF001  # get_running_loop() raises where there is none
        raise RuntimeError("zarr's event loop would wait for itself")
    return under_way.start(loop, requests)


def event_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return zarr's event loop, which is started if necessary.

    Raises `StoreReadError`, which says that `name` cannot be read, if the system starts no thread for it.
    """
    loop, thread = sync.loop[0], sync.iothread[0]
    if loop is not None and thread is not None and thread.ident is not None:
        return loop
    try:
        return run_uninterrupted(_start_loop)
    except RuntimeError as err:
        raise StoreReadError(
            f"cannot read {name}",
            tried="to start a thread for zarr's event loop",
            found=str(err),
            do="end other threads, or let this user have more of them (ulimit -u); then read again",
        ) from err


def _start_loop() -> asyncio.AbstractEventLoop:
    """Start zarr's event loop and return it."""
    # If the thread of a loop could not be started, zarr believes that the loop runs. Such a loop is dropped first.
    with sync._get_lock():  # noqa: SLF001  # zarr has no public access to its loop
        thread = sync.iothread[0]
        if thread is not None and thread.ident is None:
            sync.loop[0] = sync.iothread[0] = None
    return sync._get_loop()  # noqa: SLF001  # as above


def _after_fork() -> None:
    RequestsUnderWay.n_in_process = 0
    # zarr drops its loop after a fork, but not the lock, which may be held. `vars`, because the name is private.
    vars(sync).update(_lock=None)


os.register_at_fork(after_in_child=_after_fork)
