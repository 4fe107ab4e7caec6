"""Waiting for a condition, in threads that signals may interrupt at any point.

A handler of a signal that raises, as that of Ctrl-C does, runs on the main thread between two of its bytecodes: after a
call of a C function has returned, at the start of a Python function, at the end of a turn of a loop. What is taken has
to come back nevertheless. all that counts threads (`crew`, `cuda.resources`) therefore

- notes down who holds something, under a name that is known before, and never counts up and down;
- takes it inside the ``try`` whose ``finally`` begins with the one C call, or the assignment, that gives it back;
- runs what is to be done as a function: a context manager that is written in Python may be interrupted before the first
  line of its ``__exit__``, and `threading.Condition` before it has let go of its own lock;
- wakes others by a hint that may get lost: who waits looks again after a while.

Other threads may change a set or a dict while it is looked at. `list` of a set, of a dict, or of a dict's ``values()``
is one step without the global lock, too (CPython 3.13, under stress); `tuple`, `set`, `in` and loops over them are not,
and raise `RuntimeError`. A deque is looked at with a lock held.

A C lock in a ``with`` statement is safe: between taking it and entering the block, CPython looks for no signals.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident, main_thread

_PATIENCE_S = 0.05
"""After this time who waits looks again, if a signal interrupted the one that should have said so."""


class Bell:
    """Rings for threads that wait until something is so."""

    def __init__(self) -> None:
        self.waiting: deque[Lock] = deque()

    def wait_until(self, is_so: Callable[[], bool], look_s: float = _PATIENCE_S) -> None:
        """Return once `is_so` does; it is asked again whenever the bell rings, and so many seconds later."""
        while not is_so():
            rung = Lock()
            rung.acquire()
            try:
                self.waiting.append(rung)
                if is_so():  # it has become so since it was asked, and nobody knew that this thread waits
                    return
                rung.acquire(timeout=look_s)
            finally:
                with suppress(ValueError):
                    self.waiting.remove(rung)

    def ring(self) -> None:
        """Wake the thread that has waited longest; others find nothing that they could have."""
        if self.waiting:
            with suppress(IndexError):  # others ring, too
                self.waiting.popleft().release()

    def ring_for_all(self) -> None:
        """Wake all that wait."""
        for _ in range(len(self.waiting)):
            self.ring()


def run_uninterrupted[Result](call: Callable[[], Result]) -> Result:
    """Return what `call` does where no signal interrupts it: on a thread of its own if this is the main one.

    Raises `RuntimeError` if the system starts no more threads.
    """
    if get_ident() != main_thread().ident:
        return call()
    results: list[Result] = []
    errors: list[BaseException] = []
    done = Lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # raised by the caller
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())  # `Thread.start`, interrupted, would leave its own locks held
    try:
        with done:
            pass
    except BaseException:
        with done:  # what `call` works on must not be given up before it has ended
            pass
        raise
    if errors:
        raise errors.pop()
    return results[0]
