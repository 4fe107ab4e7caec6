"""A clock that splits time between labels."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any


class Stopwatch:
    """Seconds by label. For one thread.

    Parameters
    ----------
    label : str
        What begins.
    clock : callable
        Returns seconds.
    """

    def __init__(self, label: str, clock: Callable[[], float] = perf_counter) -> None:
        self._first = label
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Forget everything and begin anew."""
        self._seconds: Counter[str] = Counter()
        self.label, self._since = self._first, self._clock()

    def enter(self, label: str) -> str:
        """Let another label's time run; return the one before."""
        now = self._clock()
        self._seconds[self.label] += now - self._since  # type: ignore[assignment]  # seconds, not counts
        before, self.label, self._since = self.label, label, now
        return before

    def stop(self) -> dict[str, float]:
        """Return seconds by label."""
        self.enter(self._first)
        return {label: float(seconds) for label, seconds in self._seconds.items()}

    @contextmanager
    def within(self, label: str) -> Iterator[None]:
        """Let a label's time run inside a ``with`` block."""
        before = self.enter(label)
        try:
            yield
        finally:
            self.enter(before)

    def listen(self, owner: Any, name: str, label: str) -> Callable[[], None]:
        """Count a function of a module or class under a label; return what takes that back."""
        plain = vars(owner)[name]
        function = plain.__func__ if isinstance(plain, (classmethod, staticmethod)) else plain

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self.enter(label)
            try:
                return function(*args, **kwargs)
            finally:
                self.enter(before)

        setattr(owner, name, type(plain)(timed) if function is not plain else timed)
        return functools.partial(setattr, owner, name, plain)
