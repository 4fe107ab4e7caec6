"""A clock for several threads of which one runs at a time, and a crew that costs such time: runs that repeat exactly.

A thread runs until it lets time pass; then the one whose time comes first goes on. Time stands still while one
runs, so that what the benchmark itself needs counts for nothing. Work must not hold a lock while it lets time pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from xarray_gpuzarr.process.crew import Work
from xarray_gpuzarr.process.threads import thread_budget


class VirtualClock:
    """Says what time it is, and lets time pass, for threads that take turns."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._asleep: list[tuple[float, int, threading.Lock]] = []
        """When threads go on, and what they wait for. A heap."""

    def now(self) -> float:
        """Return seconds since the clock was made."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let others go on until so much time has passed."""
        self.spin(self._now + seconds)

    def spin(self, until_s: float) -> None:
        """Let others go on until then, as a thread does that is busy inside a call of CUDA."""
        if self._asleep and self._asleep[0][0] <= until_s:
            mine = self._falls_asleep(until_s)
            self._wake_next()
            mine.acquire()
        self._now = max(self._now, until_s)

    def run(self, jobs: Sequence[Callable[[], object]]) -> float:
        """Run each job on a thread of its own; return how long all of them take, or raise what one of them did."""
        start_s = self._now

        def run(job: Callable[[], object], turn: threading.Lock) -> None:
            turn.acquire()
            try:
                job()
            finally:
                if self._asleep:
                    self._wake_next()

        with ThreadPoolExecutor(len(jobs)) as threads:
            running = [threads.submit(run, job, self._falls_asleep(start_s)) for job in jobs]
            self._wake_next()
        for each in running:
            each.result()
        return self._now - start_s

    def _falls_asleep(self, until_s: float) -> threading.Lock:
        turn = threading.Lock()
        turn.acquire()
        heappush(self._asleep, (until_s, next(self._order), turn))
        return turn

    def _wake_next(self) -> None:
        until_s, _, turn = heappop(self._asleep)
        self._now = max(self._now, until_s)
        turn.release()


@dataclass(slots=True, eq=False)
class _Run:
    """One call of `VirtualCrew.run`."""

    free: list[float]
    """When each of its threads, the caller's first, has done what it was given."""
    at: int = 0
    """The thread that takes the next task."""


class VirtualCrew:
    """Stands in for `xarray_gpuzarr.process.crew.Crew`, with its rules: one real thread does what several would."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._runs: list[_Run] = []
        self._of_thread = threading.local()

    @property
    def n_active(self) -> int:
        """Threads that work."""
        return sum(len(run.free) for run in self._runs)

    def reserve_threads(self, _max_threads: int, _budget: int | None = None) -> AbstractContextManager[int]:
        """Give 1: threads of the compiled loops are not modelled."""
        return nullcontext(1)

    def run(self, work: Work, most: int, budget: int | None = None) -> None:
        """Run `work` by up to `most` threads; see `Crew.run`."""
        budget, clock = budget or thread_budget(), self._clock
        n_helpers = max(0, min(most - 1, budget - self.n_active - 1))
        run = self._of_thread.run = _Run([clock.now()] * (1 + n_helpers))
        self._runs.append(run)

        def go_on() -> bool:
            while True:
                run.at = run.free.index(min(run.free))
                clock.spin(run.free[run.at])
                if run.at == 0 or self.n_active <= budget:
                    return True
                del run.free[run.at]

        try:
            work(go_on)
            while len(run.free) > 1:  # who has nothing left to do leaves, for others to be lent
                at = min(range(1, len(run.free)), key=run.free.__getitem__)
                clock.spin(run.free[at])
                del run.free[at]
            clock.spin(run.free[0])
        finally:
            self._runs.remove(run)
            del self._of_thread.run

    def spend(self, seconds: float) -> tuple[float, float]:
        """Let the calling task, or thread, take so long; return when it begins and ends."""
        run: _Run | None = getattr(self._of_thread, "run", None)
        start_s = self._clock.now()
        if run is None:
            self._clock.sleep(seconds)
        else:
            start_s = max(run.free[run.at], start_s)
            run.free[run.at] = start_s + seconds
        return start_s, start_s + seconds
