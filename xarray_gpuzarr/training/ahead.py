"""Carries out reads ahead of their consumer: on threads, in order, within a bound.

The consumer may be interrupted by a signal at any point (see `process.waiting`). So it holds no lock: all it says is
how many reads it has done with, a number that only grows; threads look at that. Threads know nothing of the consumer
but a `_Shared`, so that one that is forgotten ends them.
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
from xarray_gpuzarr.process.waiting import Bell, apart
from xarray_gpuzarr.read.stopping import Stop

Read = Callable[[int, Stop], Any]
"""Carries out the read of a number; ends early, by raising, once told to stop."""
AsCaller = Callable[[], AbstractContextManager[object]]
"""Makes a thread one that reads where the consumer would."""


class _Shared:
    """State that the consumer and the reading threads share."""

    def __init__(self, first: int, n_reads: int, n_ahead: int) -> None:
        self.bell = Bell()
        self.numbers = count(first)
        self.n_reads = n_reads
        self.n_ahead = n_ahead
        self.n_done = first
        """Reads before this number are done with."""
        self.found: dict[int, Any] = {}
        self.failed: dict[int, BaseException] = {}
        self.stopped = False
        self.under_way: dict[int, Stop] = {}
        self.left: list[Lock] = []
        """One for each thread, free once it has ended."""
        self.process = os.getpid()

    def stop(self) -> None:
        """Let threads end: reads that are under way stop at their next request."""
        if self.process != os.getpid():
            return
        self.stopped = True
        for stop in list(self.under_way.values()):
            stop.set()
        self.bell.ring_for_all()

    def serve(self, read: Read, as_caller: AsCaller, has_ended: Lock) -> None:
        """Carry out reads until there are none left."""
        try:
            with as_caller():
                while (number := self._next()) is not None:
                    self._carry_out(number, read)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
            self.failed[self.n_done] = error
        finally:
            has_ended.release()
            self.bell.ring_for_all()

    def _next(self) -> int | None:
        number = next(self.numbers)
        self.bell.wait_until(lambda: self.stopped or number >= self.n_reads or number < self.n_done + self.n_ahead)
        return None if self.stopped or number >= self.n_reads else number

    def _carry_out(self, number: int, read: Read) -> None:
        stop = self.under_way[number] = Stop()
        if self.stopped:
            stop.set()
        try:
            self.found[number] = read(number, stop)
        except BaseException as error:  # noqa: BLE001  # likewise
            self.failed[number] = error
        finally:
            del self.under_way[number]
            self.bell.ring_for_all()


class Ahead:
    """Results of reads in order; those of the next ones are read meanwhile.

    `first` and `n_reads` are the numbers of the first read and of the one after the last. At most `n_ahead` reads are
    under way, or have results that wait or are being consumed. `as_caller` is called once on each thread.
    """

    def __init__(self, read: Read, first: int, n_reads: int, n_ahead: int, as_caller: AsCaller) -> None:
        self._shared = shared = _Shared(first, n_reads, n_ahead)
        n_threads = min(n_ahead, n_reads - first)

        def start() -> None:
            for number in range(n_threads):
                has_ended = Lock()
                has_ended.acquire()
                start_thread(partial(shared.serve, read, as_caller, has_ended), f"gpuzarr_ahead_{number}", shared.stop)
                shared.left.append(has_ended)

        self._finalizer = finalize(self, shared.stop)
        with suppress(RuntimeError):  # fewer do as well
            apart(start)
        if n_threads and not shared.left:
            raise RuntimeError("the system starts no more threads")

    @property
    def closed(self) -> bool:
        """Whether there are no more results."""
        return self._shared.stopped

    def result(self, number: int) -> Any:
        """Wait for the result of a read, or raise what it raised; None if it is closed meanwhile.

        In another process than the one that has begun, raises a `GpuZarrError`.
        """
        shared = self._shared
        if shared.process != os.getpid():
            raise GpuZarrError(
                "these batches are read in another process",
                tried=f"the next batch in process {os.getpid()}, of an iterator of process {shared.process}",
                found="threads do not survive a fork, so nothing reads ahead in this process",
                do="call iter() in the process that wants batches",
            )
        shared.bell.wait_until(lambda: number in shared.found or number in shared.failed or shared.stopped)
        if shared.stopped:
            return None
        if number in shared.failed:
            raise shared.failed.pop(number)
        return shared.found[number]

    def done_with(self, number: int) -> None:
        """Forget the result of a read, and let another begin."""
        self._shared.n_done = number + 1
        self._shared.found.pop(number, None)
        self._shared.bell.ring_for_all()

    def close(self) -> None:
        """Stop, and wait until all threads have ended."""
        shared = self._shared
        shared.stop()
        shared.found.clear()
        if shared.process == os.getpid():
            for has_ended in tuple(shared.left):
                with has_ended:
                    pass
            shared.found.clear()
            shared.failed.clear()
