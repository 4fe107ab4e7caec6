"""`Ahead`: reads that threads carry out before their results are asked for, in order, and a limited number at once.

A signal may interrupt the consumer of the results at any point (see `process.waiting`), so it holds no lock. It only
publishes the number of the first read that it has not finished with, which never decreases, and the threads compare
with that. They refer to the state in `_Shared` and not to `Ahead` itself. So an `Ahead` that nobody refers to any more
is collected, and that ends its threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any
from weakref import finalize

from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.process.exit_threads import start_thread
from xarray_gpuzarr.process.waiting import Bell, run_uninterrupted
from xarray_gpuzarr.read.stopping import Stop

Read = Callable[[int, Stop], Any]
"""Carries out the read with the given number. Raises, and so ends early, once the `Stop` is set."""
AsCaller = Callable[[], AbstractContextManager[object]]
"""Returns a context manager in which a thread reads to the same GPU and stream as the consumer."""


class _Shared:
    """State that the consumer and the reading threads share."""

    def __init__(self, first: int, end: int, n_ahead: int) -> None:
        self.bell = Bell()
        self.numbers = count(first)
        """Numbers of the reads that no thread has taken yet."""
        self.end = end
        """Number after that of the last read."""
        self.n_ahead = n_ahead
        self.oldest_wanted = first
        """Number of the first read that the consumer has not finished with."""
        self.results: dict[int, Any] = {}
        """Read number -> result, until the consumer has finished with it."""
        self.errors: dict[int, BaseException] = {}
        """Read number -> the error that it raised."""
        self.stopped = False
        self.under_way: dict[int, Stop] = {}
        """Read number -> what ends the read early."""
        self.running: list[Lock] = []
        """One lock for each thread. It is released when the thread ends."""
        self.process = os.getpid()
        """Id of the process that has the threads."""

    def stop(self) -> None:
        """Let all threads end. Reads that are under way stop at their next request."""
        if self.process != os.getpid():  # a forked process has no threads to end
            return
        self.stopped = True
        for stop in list(self.under_way.values()):
            stop.set()
        self.bell.ring_for_all()

    def serve(self, read: Read, as_caller: AsCaller, running: Lock) -> None:
        """Carry out reads on this thread until there are none left, then release `running`."""
        try:
            with as_caller():
                while (number := self._next_number()) is not None:
                    self._carry_out(number, read)
        except BaseException as error:  # noqa: BLE001  # an error of `as_caller`, which belongs to no read
            # The consumer raises it when it asks for the first read that it has not finished with.
            self.errors[self.oldest_wanted] = error
        finally:
            running.release()
            self.bell.ring_for_all()

    def _next_number(self) -> int | None:
        """Take the next read and wait until it may begin. Return None if there is none, or all have been stopped."""
        number = next(self.numbers)
        self.bell.wait_until(lambda: self.stopped or number >= self.end or number < self.oldest_wanted + self.n_ahead)
        return None if self.stopped or number >= self.end else number

    def _carry_out(self, number: int, read: Read) -> None:
        stop = Stop()
        self.under_way[number] = stop
        if self.stopped:  # `stop` may have looked at `under_way` before this read was in it
            stop.set()
        try:
            self.results[number] = read(number, stop)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            self.errors[number] = error
        finally:
            del self.under_way[number]
            self.bell.ring_for_all()


class Ahead:
    """Results of numbered reads, in order. Threads carry out the next reads while the consumer uses a result.

    Parameters
    ----------
    read : callable
        Called with the number of a read and a `Stop`.
    first : int
        Number of the first read.
    end : int
        Number after that of the last read.
    n_ahead : int
        Largest number of reads that are under way or have results that the consumer has not finished with.
    as_caller : callable
        Called once on each thread. Returns the context manager that the thread reads in.

    Raises
    ------
    RuntimeError
        The system cannot start a single thread.
    """

    def __init__(self, read: Read, first: int, end: int, n_ahead: int, as_caller: AsCaller) -> None:
        shared = _Shared(first, end, n_ahead)
        self._shared = shared
        n_threads = min(n_ahead, end - first)

        def start() -> None:
            for number in range(n_threads):
                running = Lock()
                running.acquire()
                start_thread(partial(shared.serve, read, as_caller, running), f"gpuzarr_ahead_{number}", shared.stop)
                shared.running.append(running)

        finalize(self, shared.stop)
        with suppress(RuntimeError):  # fewer threads carry out all reads, too
            run_uninterrupted(start)
        if n_threads and not shared.running:
            raise RuntimeError("the system starts no more threads")

    @property
    def closed(self) -> bool:
        """Whether the reads have been stopped. The end of the last read does not make it true."""
        return self._shared.stopped

    def result(self, number: int) -> Any:
        """Wait for a read and return its result, or None if the reads are stopped meanwhile.

        Raises
        ------
        GpuZarrError
            This process is not the one that started the reads.
        BaseException
            Whatever the read raised.
        """
        shared = self._shared
        if shared.process != os.getpid():
            raise GpuZarrError(
                "these batches are read in another process",
                tried=f"the next batch in process {os.getpid()}, of an iterator of process {shared.process}",
                found="threads do not survive a fork, so nothing reads ahead in this process",
                do="call iter() in the process that wants batches",
            )
        shared.bell.wait_until(lambda: number in shared.results or number in shared.errors or shared.stopped)
        if shared.stopped:
            return None
        if number in shared.errors:
            raise shared.errors.pop(number)
        return shared.results[number]

    def finish_with(self, number: int) -> None:
        """Drop the result of read `number` and record that no earlier one is wanted, so that another may begin."""
        self._shared.oldest_wanted = number + 1
        self._shared.results.pop(number, None)
        self._shared.bell.ring_for_all()

    def close(self) -> None:
        """Stop all reads and wait until all threads have ended."""
        shared = self._shared
        shared.stop()
        shared.results.clear()  # their memory is free while the last reads end, which may add results again
        if shared.process == os.getpid():
            for running in tuple(shared.running):
                with running:
                    pass
            shared.results.clear()
            shared.errors.clear()
