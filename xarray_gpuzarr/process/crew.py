"""`Crew`: the threads of this process that decode. A read uses the thread that calls it, and idle cores as helpers.

All reads and writes share one pool of helpers. The number of threads that decode at once stays within a budget, unless
the callers alone are more: a helper leaves a read when other callers have come and the budget is exceeded. When a read
or write ends, its helpers go to writes that are still under way.

The pool is not one of `concurrent.futures`, because a signal that interrupts ``submit`` leaves the locks of such a pool
held forever. Callers use only C locks and C queues here (see `waiting`), and signals do not reach the pool's threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ctypes import c_int64
from queue import SimpleQueue
from threading import Lock

from xarray_gpuzarr.process.counters import Stage, counters
from xarray_gpuzarr.process.threads import thread_budget, thread_setting
from xarray_gpuzarr.process.waiting import run_uninterrupted

Work = Callable[[Callable[[], bool]], None]
"""Carries out tasks from a queue of its own until the queue is empty. The argument is called between two tasks, and
returns whether this thread should continue."""


class _Run:
    """One call of `Crew.run` that may use several threads, and the threads that work on it."""

    __slots__ = (
        "_at_work",
        "_lock",
        "budget",
        "errors",
        "max_threads",
        "n_own_threads",
        "n_requested",
        "stage",
        "work",
    )

    def __init__(self, work: Work, max_threads: int, budget: int, n_own_threads: c_int64 | None) -> None:
        self._lock = Lock()
        self._at_work: dict[object, Lock] = {}
        """Helper that has begun -> lock that it releases when it leaves."""
        self.work: Work | None = work
        """None once no helper may begin or continue."""
        self.max_threads = max_threads
        """Largest number of threads that have something to do at once."""
        self.budget = budget
        """Largest number of threads of this process that decode at once."""
        self.n_own_threads = n_own_threads
        """Number of threads that `work` itself has started and that have not ended; None if it starts none."""
        self.n_requested = 0
        """Number of helpers that were asked for and have not begun."""
        self.stage: Stage | None = counters.local.account.stage
        """Stage that the seconds of helpers count for."""
        self.errors: list[BaseException] = []
        """Errors that helpers raised."""

    @property
    def n_threads(self) -> int:
        """Number of threads that work on this run or soon will, including the caller's."""
        n_own_threads = 0 if self.n_own_threads is None else self.n_own_threads.value
        return 1 + self.n_requested + len(self._at_work) + n_own_threads

    @property
    def n_helpers(self) -> int:
        """Number of threads of the pool that work on this run or soon will."""
        return self.n_requested + len(self._at_work)

    def reserve_helpers(self, n_active: int) -> int:
        """Reserve one helper for each free core, up to what the run can use, and return their number.

        `n_active` is the number of threads of this process that decode.
        """
        with self._lock:
            if self.work is None:
                return 0
            n = max(0, min(self.max_threads - self.n_threads, self.budget - n_active))
            self.n_requested += n
        return n

    def help(self, n_active: Callable[[], int]) -> None:
        """Work on this thread of the pool, unless `end` was called. `n_active` is `Crew.n_active`."""
        helper = object()
        has_left = Lock()
        with self._lock:
            work = self.work
            if work is None:
                return
            has_left.acquire()
            self._at_work[helper] = has_left
            self.n_requested -= 1
        try:
            with counters.stage(self.stage):
                work(lambda: self.work is not None and n_active() <= self.budget)
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            self.errors.append(error)
        finally:
            del self._at_work[helper]
            has_left.release()

    def end(self) -> None:
        """Let no more helpers begin, and wait until those that have begun have left."""
        with self._lock:
            self.work = None
            self.n_requested = 0
        for has_left in list(self._at_work.values()):
            with has_left:
                pass


_ONE_THREAD: AbstractContextManager[int] = nullcontext(1)
"""The context manager of `Crew.reserve_threads` for the calling thread alone."""


class Crew:
    """The pool of helpers of this process, and a record of all threads that decode."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all threads. Called in a process that was forked off, which has only one."""
        self._lock = Lock()
        self._runs: set[_Run] = set()
        """Calls of `run` that may have helpers."""
        self.lone_threads: set[object] = set()
        """A token for each decoding thread that no run in `_runs` counts: callers that use one thread, and threads that
        C code starts."""
        self._requests: SimpleQueue[_Run] = SimpleQueue()
        """A run for each helper that is wanted."""
        self._starting = Lock()
        """Held while threads are added to the pool."""
        self.threads: list[threading.Thread] = []
        """Threads of the pool."""

    @property
    def n_active(self) -> int:
        """Number of threads that decode or soon will."""
        return sum([run.n_threads for run in list(self._runs)]) + len(self.lone_threads)

    def reserve_threads(self, max_threads: int, budget: int | None = None) -> AbstractContextManager[int]:
        """Return a context manager that counts threads which the caller starts by other means, such as in C.

        The calling thread must be counted already, by `run` or by a token in `lone_threads`.

        Parameters
        ----------
        max_threads : int
            Largest number of threads that have something to do at once, including the calling one.
        budget : int, optional
            As for `run`.

        Returns
        -------
        context manager
            Yields the number of threads, including the calling one, for which cores are free; at least 1.
        """
        return self._reserve(max_threads, budget or thread_budget()) if max_threads > 1 else _ONE_THREAD

    @contextmanager
    def _reserve(self, max_threads: int, budget: int) -> Iterator[int]:
        # No lock is held: two callers may count the same free core, so that there is one thread too many until one of
        # them has done a few milliseconds of work. `n_free` may be negative, which `range` treats as 0.
        n_free = min(max_threads - 1, budget - self.n_active)
        tokens = [object() for _ in range(n_free)]
        try:
            self.lone_threads.update(tokens)
            yield 1 + len(tokens)
        finally:  # runs also if a signal prevents `__exit__`, once nothing refers to this generator
            self.lone_threads.difference_update(tokens)

    def run(
        self, work: Work, max_threads: int, budget: int | None = None, n_own_threads: c_int64 | None = None
    ) -> None:
        """Run `work` on this thread and, while cores are free, on helpers. All of them have ended when this returns.

        Parameters
        ----------
        work : callable
            Called once on each thread; see `Work`.
        max_threads : int
            Largest number of threads that have something to do at once, including this one.
        budget : int, optional
            A recent result of `thread_budget`, which is called if this is left out.
        n_own_threads : ctypes.c_int64, optional
            Number of threads that `work` itself starts, such as in C. `run` sets it to the number for which cores are
            free, and `work` decreases it as they end. Such work gets helpers only when other runs end.

        Raises
        ------
        BaseException
            What `work` raised on this thread, or else the first error that it raised on a helper.
        """
        if max_threads == 1:
            if budget is None:
                thread_setting()  # raises for an unusable setting, as `thread_budget` does for longer reads
            lone_thread = object()
            try:
                self.lone_threads.add(lone_thread)
                work(lambda: True)
            finally:
                self.lone_threads.discard(lone_thread)
            return
        run = _Run(work, max_threads, budget or thread_budget(), n_own_threads)
        try:
            self._runs.add(run)
            if n_own_threads is None:
                self._ask_for_help(run)
            else:
                with self._lock:
                    n_own_threads.value = max(0, min(max_threads - 1, run.budget - self.n_active))
            work(lambda: True)
            run.end()
        except BaseException:
            run.work = None  # stops helpers even if a signal interrupts `end`
            run.end()
            raise
        finally:
            self._runs.discard(run)
        # Writes began with threads of their own instead of helpers, so they get the helpers of runs that end.
        for other in list(self._runs):
            if other.n_own_threads is not None:
                self._ask_for_help(other)
        if run.errors:
            try:
                raise run.errors.pop(0)
            finally:  # a reference from here to an error and its traceback is a cycle, which keeps results alive
                run.errors.clear()

    def _ask_for_help(self, run: _Run) -> None:
        """Let helpers of the pool join a run: one for each free core, up to what the run can use."""
        with self._lock:
            n = run.reserve_helpers(self.n_active)
        if not n:
            return
        n_helpers_of_all = sum([other.n_helpers for other in list(self._runs)])
        if n_helpers_of_all > len(self.threads):
            self._start_threads(n_helpers_of_all)
        for _ in range(n):
            self._requests.put(run)

    def _start_threads(self, n_threads: int) -> None:
        """Add threads to the pool until it has `n_threads`, or until the system starts no more."""

        def start() -> None:
            with self._starting:
                while len(self.threads) < n_threads:
                    name = f"gpuzarr_{len(self.threads)}"
                    thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    thread.start()
                    self.threads.append(thread)

        with suppress(RuntimeError):  # raised if the system starts no more
            run_uninterrupted(start)

    def _serve(self) -> None:
        while True:
            self._requests.get().help(lambda: self.n_active)


crew = Crew()
"""The crew of this process."""

os.register_at_fork(after_in_child=crew.restart)
