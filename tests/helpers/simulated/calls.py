"""The border of the simulated device: one caller at a time, counted, on the right device, now and then ignored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from helpers.simulated.streams import Scheduler, SimulatedEvent, SimulatedStream

MUTATIONS = ("wait", "record", "synchronize", "synchronize_event", "finish_read")
"""Calls that a device can be told to ignore: all of them, or with ``:n`` behind the name the nth, from 1."""

_thread = threading.local()


class Border:
    """Every call into a device passes here; `tidy` is run around those that are not within another."""

    def __init__(
        self, index: int, scheduler: Scheduler, mutations: Collection[str], *, tidy: Callable[[], None]
    ) -> None:
        assert {m.partition(":")[0] for m in mutations} <= set(MUTATIONS), f"unknown among {mutations}"
        self.calls: Counter[str] = Counter()
        self._index = index
        self._scheduler = scheduler
        self._tidy = tidy
        self._mutations = frozenset(mutations)
        self._lock = threading.RLock()
        self._depth = 0

    @contextmanager
    def activate(self) -> Iterator[None]:
        before = getattr(_thread, "index", 0)  # device 0 is every thread's at first
        _thread.index = self._index
        try:
            yield
        finally:
            _thread.index = before

    @contextmanager
    def call(self, name: str, *used: SimulatedStream | SimulatedEvent) -> Iterator[bool]:
        """Enter a call of `DeviceApi`; yield whether a mutation says to ignore it."""
        for thing in used:
            assert thing.scheduler is self._scheduler, f"{name}: {thing} is of another device"
        current = getattr(_thread, "index", 0)
        assert current == self._index, f"{name}: the current device is {current}, not {self._index}"
        with self.enter(name):
            yield bool({name, f"{name}:{self.calls[name]}"} & self._mutations)

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        """Enter a call that may come from any device; raise what has gone wrong in the streams until its end."""
        with self._lock:
            self.calls[name] += 1
            self._depth += 1
            try:
                self._between_calls()
                yield
                self._between_calls()
            finally:
                self._depth -= 1

    def _between_calls(self) -> None:
        if self._depth == 1:  # the garbage collector may call from within another call
            self._tidy()
            self._scheduler.drift()
            self._scheduler.raise_fault()
