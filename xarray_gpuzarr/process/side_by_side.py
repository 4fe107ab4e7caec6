"""Calls that wait for a slow store, made on several threads; a signal that interrupts their caller ends them."""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Lock

_MOST_THREADS = 32


def side_by_side[Result](
    calls: Sequence[Callable[[], Result]],
    as_caller: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Result]:
    """Return what each of several calls returns, in their order.

    Parameters
    ----------
    calls : sequence of callable
    as_caller : callable
        Makes a thread one that reads where the calling thread would; entered once on each thread.

    Raises
    ------
    Exception
        The first that a call raises. Calls that have begun are waited for, others are not made.
    """
    waiting = deque(range(len(calls)))
    found: dict[int, Result] = {}
    errors: list[BaseException] = []
    threads: list[Lock] = []

    def work(ended: Lock) -> None:
        try:
            with as_caller():
                while (number := _next(waiting)) is not None:
                    found[number] = calls[number]()
        except BaseException as err:  # noqa: BLE001  # it is raised below
            errors.append(err)
            waiting.clear()
        finally:
            ended.release()

    try:
        for _ in range(min(len(calls), _MOST_THREADS)):
            ended = Lock()
            ended.acquire()
            _thread.start_new_thread(work, (ended,))  # see `waiting`
            threads.append(ended)
        _wait_for(threads)
    except BaseException:
        waiting.clear()
        _wait_for(threads)
        raise
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(calls))]


def _next(waiting: deque[int]) -> int | None:
    with suppress(IndexError):  # another thread has taken the last one
        return waiting.popleft()
    return None


def _wait_for(threads: Iterable[Lock]) -> None:
    for ended in threads:
        with ended:
            pass
