"""Waiting for a condition in code that a signal may interrupt at any point: `Bell` and `run_uninterrupted`.

A signal handler that raises, such as that of Ctrl-C, runs on the main thread between two bytecodes: after a C function
has returned, at the start of a Python function, or at the end of an iteration of a loop. Whatever a thread has acquired
must be released nevertheless. So all code that counts threads (`crew`, `turns`, `cuda.resources`) follows these rules:

- It records who holds something, under a key that is known beforehand. It never increments and decrements a number.
- It acquires inside the ``try`` whose ``finally`` begins with the one C call, or assignment, that releases.
- It takes the work to do as a function and is no context manager. A context manager written in Python may be
  interrupted before the first line of its ``__exit__``, and `threading.Condition` before it has released its own lock.
  `Crew.reserve_threads` is a generator, whose ``finally`` runs even so.
- It wakes other threads by a hint that may get lost. A thread that waits checks its condition again after a while.

Other threads may change a set or a dict while it is read. `list` of a set, of a dict, or of the ``values()`` of a dict
is atomic, also without the GIL (CPython 3.13, under stress). `tuple`, `set`, `in` and loops over them are not, and
raise `RuntimeError`. Single methods of a deque are atomic, but a loop over it needs a lock.

A C lock in a ``with`` statement is safe, because CPython checks for no signals between acquiring it and entering the
block.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident, main_thread

_RECHECK_S = 0.05
"""A thread that waits checks its condition again after this time, because a signal may have prevented the wake-up."""


class Bell:
    """Wakes threads that wait until a condition holds, as `threading.Condition` does. A signal leaves no lock held."""

    def __init__(self) -> None:
        self.waiting: deque[Lock] = deque()
        """A lock for each waiting thread, longest wait first. Releasing it wakes the thread."""

    def wait_until(self, condition: Callable[[], bool], recheck_s: float = _RECHECK_S) -> None:
        """Return once `condition` returns True. It is called again whenever the bell rings and after `recheck_s`."""
        while not condition():
            rung = Lock()
            rung.acquire()
            try:
                self.waiting.append(rung)
                if condition():  # it may have changed before other threads could see that this one waits
                    return
                rung.acquire(timeout=recheck_s)
            finally:
                with suppress(ValueError):
                    self.waiting.remove(rung)

    def ring(self) -> None:
        """Wake the thread that has waited longest. This suffices where only one thread can go on."""
        if self.waiting:
            with suppress(IndexError):  # another thread may have rung for the last one
                self.waiting.popleft().release()

    def ring_for_all(self) -> None:
        """Wake all threads that wait."""
        for _ in range(len(self.waiting)):
            self.ring()


def run_uninterrupted[Result](call: Callable[[], Result]) -> Result:
    """Return the result of `call`, which no signal interrupts.

    If this is the main thread, `call` runs on a thread of its own, because signal handlers run on the main thread.

    Raises
    ------
    RuntimeError
        The system starts no more threads.
    BaseException
        Whatever `call` raised.
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
        except BaseException as error:  # noqa: BLE001  # raised below, on the calling thread
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())  # `Thread.start` leaves its own locks held if a signal interrupts it
    try:
        with done:
            pass
    except BaseException:
        with done:  # the caller may then release what `call` works on, so wait for it also after a signal
            pass
        raise
    if errors:
        raise errors.pop()
    return results[0]
