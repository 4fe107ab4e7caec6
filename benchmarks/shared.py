"""What contestants of one case share, and how long a call takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import numpy as np

from benchmarks.runner.session import Ready


class Shared[T]:
    """What contestants of one case share: made when first asked for, and ended once the last of them is closed.

    Parameters
    ----------
    make : callable
        Returns a context manager.
    n_users : int
    """

    def __init__(self, make: Callable[[], AbstractContextManager[T]], n_users: int) -> None:
        self._make = make
        self._n_users = n_users
        self._stack = ExitStack()

    def prepare(self, use: Callable[[T], Ready]) -> Ready:
        """Let a contestant prepare with it; it lets go when it is closed, or fails to prepare."""
        try:
            ready = use(self._value)
        except BaseException:
            self._let_go()
            raise
        return replace(ready, close=functools.partial(self._close, ready))

    @functools.cached_property
    def _value(self) -> T:
        return self._stack.enter_context(self._make())

    def _close(self, ready: Ready) -> None:
        try:
            ready.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._n_users -= 1
        if self._n_users == 0:
            self._stack.close()


def back_memory(nbytes: int) -> None:
    """Touch as much free memory as a result will need.

    A virtual machine's host takes back what is free for a while, and giving it again costs up to fifteen times a page
    fault: whoever happens to run next would pay for that.
    """
    np.empty(nbytes, np.uint8).fill(0)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
