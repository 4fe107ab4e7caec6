"""Threads that decode: a read runs on its caller's thread and on cores that would otherwise idle.

One small pool per process, shared by all reads. The number of threads that decode at once stays within a budget,
however many dask threads call: a helper leaves as soon as callers alone fill the budget. When a read or write ends, its
cores help writes that go on.

Where chunks are short, callers take turns, as many at once as there are cores: more of them take Python's lock from
each other again and again. 32 threads on two cores needed 276 ms for the 64 shards that two threads read in 154 (32^3
uint16 chunks, November 2026). Who waits for a disk lends its turn.

The pool is no `concurrent.futures` one: a signal that interrupts ``submit`` leaves its locks held forever. Here callers
touch C locks and C queues only (see `waiting`), and no signal reaches the threads of the pool.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ctypes import c_int64
from queue import SimpleQueue
from threading import Lock, get_ident

from xarray_gpuzarr.process.counters import Stage, counters
from xarray_gpuzarr.process.threads import thread_budget, thread_setting
from xarray_gpuzarr.process.waiting import Bell, run_uninterrupted

Work = Callable[[Callable[[], bool]], None]
"""Takes tasks from a queue of its own until the queue is empty. Its argument says, between two tasks, whether this
thread should go on."""


class _Run:
    """One call of `Crew.run`, and who works on it."""

    __slots__ = ("_at_work", "_lock", "budget", "errors", "most", "n_wanted", "own", "stage", "work")

    def __init__(self, work: Work, most: int, budget: int, own: c_int64 | None) -> None:
        self._lock = Lock()
        self._at_work: dict[object, Lock] = {}
        """Helpers that have begun, each with a lock that comes free when it leaves."""
        self.work: Work | None = work
        """None once no helper is to begin or to go on."""
        self.most = most
        """Threads that could be busy at once."""
        self.budget = budget
        self.own = own
        """Threads that the caller has started by itself; None if it starts none."""
        self.n_wanted = 0
        """Helpers that were asked for and have not begun."""
        self.stage: Stage | None = counters.of_thread.account.stage
        self.errors: list[BaseException] = []

    @property
    def n_threads(self) -> int:
        """Threads that work on it, or soon will, its caller's among them."""
        return 1 + self.n_helpers + (0 if self.own is None else self.own.value)

    @property
    def n_helpers(self) -> int:
        """Threads of the pool that work on it, or soon will."""
        return self.n_wanted + len(self._at_work)

    def ask(self, n_active: int) -> int:
        """Ask for as many helpers as cores are free for, and return their number."""
        with self._lock:
            if self.work is None:
                return 0
            n = max(0, min(self.most - self.n_threads, self.budget - n_active))
            self.n_wanted += n
        return n

    def help(self, n_active: Callable[[], int]) -> None:
        """Work on a thread of the pool, unless it has been called off."""
        me, has_left = object(), Lock()
        with self._lock:
            work = self.work
            if work is None:
                return
            has_left.acquire()
            self._at_work[me] = has_left
            self.n_wanted -= 1
        try:
            with counters.stage(self.stage):
                work(lambda: self.work is not None and n_active() <= self.budget)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the caller's thread raises it
            self.errors.append(error)
        finally:
            del self._at_work[me]
            has_left.release()

    def end(self) -> None:
        """Call off helpers that have not begun, and wait until the others have left."""
        with self._lock:
            self.work = None
            self.n_wanted = 0
        for has_left in list(self._at_work.values()):
            with has_left:
                pass


_ALONE: AbstractContextManager[int] = nullcontext(1)


class Crew:
    """The decoding threads of this process, and who is at work."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with nobody at work; for a process that was forked off, where there are no other threads."""
        self._lock = Lock()
        self._runs: set[_Run] = set()
        self.alone: set[object] = set()
        """One for each thread that no helper works with."""
        self._asked: SimpleQueue[_Run] = SimpleQueue()
        self._hiring = Lock()
        self.threads: list[threading.Thread] = []
        self.turns: dict[int, Callable[[], int]] = {}
        """Callers whose turn it is, and what says how many may have one at once."""
        self.over = Bell()
        """Rings when a turn has ended."""

    @property
    def n_active(self) -> int:
        """Threads that decode, or soon will."""
        return sum([run.n_threads for run in list(self._runs)]) + len(self.alone)

    def begin_turn(self, most: Callable[[], int]) -> None:
        """Wait until fewer than ``most()`` callers, at least 1, have their turn.

        Called in the ``try`` whose ``finally`` takes the thread out of `turns` and rings `over`.
        """
        me = get_ident()
        if not self._took(me, most):
            self.over.wait_until(lambda: self._took(me, most))

    def lend[Result](self, wait: Callable[[], Result]) -> Result:
        """Return what `wait` does; another caller may have the turn of the calling thread meanwhile, if it has one."""
        me = get_ident()
        most = self.turns.get(me)
        if most is None:
            return wait()
        try:
            self.turns.pop(me, None)
            self.over.ring()
            return wait()
        finally:  # who is interrupted while it waits for the turn that it had lent has none: its end minds neither
            self.over.wait_until(lambda: self._took(me, most))

    def _took(self, me: int, most: Callable[[], int]) -> bool:
        with self._lock:
            if self.turns and len(self.turns) >= most():
                return False
            self.turns[me] = most
            return True

    def taking(self, n_wanted: int, budget: int | None = None) -> AbstractContextManager[int]:
        """Count threads that the calling one starts by itself as at work, while a block runs.

        `n_wanted` threads could be used, the calling one among them, which `run` counts; `budget` is as for `run`.
        Yields as many as cores are free for, at least 1.
        """
        return self._taking(n_wanted, budget or thread_budget()) if n_wanted > 1 else _ALONE

    @contextmanager
    def _taking(self, n_wanted: int, budget: int) -> Iterator[int]:
        more = [object() for _ in range(min(n_wanted - 1, budget - self.n_active))]
        try:
            self.alone.update(more)
            yield 1 + len(more)
        finally:
            self.alone.difference_update(more)

    def run(self, work: Work, most: int, budget: int | None = None, own: c_int64 | None = None) -> None:
        """Run `work` here and, while cores are free, on up to `most` - 1 helper threads.

        `budget` is what `thread_budget` has said lately; None asks it. `own` is set to the threads that `work` is to
        start by itself on the calling thread, and is what is left of them later. Helpers then come only when other runs
        end.

        Raises the first error that `work` raised on any thread; all threads have stopped by then.
        """
        if most == 1:
            if budget is None:
                thread_setting()  # one that is unusable fails short reads, too
            me = object()  # whom nobody could help; it counts all the same
            try:
                self.alone.add(me)
                work(lambda: True)
            finally:
                self.alone.discard(me)
            return
        run = _Run(work, most, budget or thread_budget(), own)
        try:
            self._runs.add(run)
            if own is None:
                self._ask_for_help(run)
            else:
                with self._lock:
                    own.value = max(0, min(most - 1, run.budget - self.n_active))
            work(lambda: True)
            run.end()
        except BaseException:
            run.work = None  # whatever may interrupt what follows, helpers do not go on
            run.end()
            raise
        finally:
            self._runs.discard(run)
        for other in [other for other in list(self._runs) if other.own is not None]:
            self._ask_for_help(other)
        if run.errors:
            try:
                raise run.errors.pop(0)
            finally:  # no local variable refers to an error: the cycle would keep results alive
                run.errors.clear()

    def _ask_for_help(self, run: _Run) -> None:
        with self._lock:
            n = run.ask(self.n_active)
        if not n:
            return
        n_helping = sum([other.n_helpers for other in list(self._runs)])
        if n_helping > len(self.threads):
            self._hire(n_helping)
        for _ in range(n):
            self._asked.put(run)

    def _hire(self, n_threads: int) -> None:
        """Let the pool have so many threads; fewer if the system starts no more, which do the work as well."""

        def start() -> None:
            with self._hiring:
                while len(self.threads) < n_threads:
                    name = f"gpuzarr_{len(self.threads)}"
                    thread = threading.Thread(target=self._serve, name=name, daemon=True)
                    thread.start()
                    self.threads.append(thread)

        with suppress(RuntimeError):
            run_uninterrupted(start)

    def _serve(self) -> None:
        while True:
            self._asked.get().help(lambda: self.n_active)


crew = Crew()

os.register_at_fork(after_in_child=crew.restart)
