"""Runs cases: contestants take turns, round after round, until all rounds are done or the case's time is over.

Knows no Zarr and no CUDA. Whatever a contestant raises becomes a row of the result; nothing is left out silently.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.device import AbsentError, Gpu
from benchmarks.gpu.results import Facts, Results, Row
from xarray_gpuzarr.cuda.api import Stream

Measure = Callable[[], float | Mapping[str, float]]
"""Carry out what is measured once; return seconds, or seconds by label, each of which becomes a row."""


class WrongValuesError(Exception):
    """A reader returned other values than were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A contestant that has been warmed up and checked."""

    measure: Measure
    facts: Facts = field(default_factory=dict)
    close: Callable[[], object] = lambda: None
    """Give back what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One row of a case, or several."""

    name: str
    nbytes: int
    """Decoded bytes that one run delivers."""
    prepare: Callable[[], Ready]
    """Open, run once, compare values. May raise anything; `AbsentError` if it cannot take part here."""
    moved_nbytes: int | None = None
    """Bytes that one run reads and writes, where that says more than `nbytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Contestants that are measured interleaved."""

    name: str
    summary: str
    seconds: float
    """Time that it should take, preparation included."""
    contestants: Callable[[], Sequence[Contestant]]


class Session:
    """Runs cases within a time box.

    Parameters
    ----------
    results : Results
    n_rounds : int
        Timed runs of each contestant, at most.
    seconds : float
        Time for everything, from now on.
    """

    def __init__(self, results: Results, *, n_rounds: int, seconds: float) -> None:
        self._results = results
        self._n_rounds = n_rounds
        self._end = time.monotonic() + seconds

    def run(self, case: Case, seconds: float) -> None:
        """Prepare all contestants of a case, then let them take turns for at most so many seconds."""
        until = min(self._end, time.monotonic() + seconds)
        contestants = self._contestants_of(case)
        for contestant in contestants:
            self._results.add(_row(case, contestant))
        ready = [(c, r) for c in contestants if (r := self._prepare(case, c)) is not None]
        each = (until - time.monotonic()) / max(1, len(ready))
        left = {c.name: each for c, _ in ready}
        for n in range(self._n_rounds if ready else 0):
            first = n % len(ready)
            for contestant, prepared in [*ready[first:], *ready[:first]]:
                if left[contestant.name] > 0 or n == 0:
                    left[contestant.name] -= self._sample(case, contestant, prepared)
            self._results.save()
        for contestant, prepared in ready:
            self._close(case, contestant, prepared)
        self._results.save()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._end

    def _contestants_of(self, case: Case) -> Sequence[Contestant]:
        if self._is_over:
            self._results.add(Row(case=case.name, name="(all)", status="out of time"))
            return []
        try:
            return case.contestants()
        except Exception as error:  # noqa: BLE001 - the other cases go on
            self._results.add(Row(case=case.name, name="(all)", status="failed", note=_said(error)))
            return []

    def _prepare(self, case: Case, contestant: Contestant) -> Ready | None:
        row = _row(case, contestant)
        if self._is_over:
            self._results.add(row.ended("out of time"))
            return None
        try:
            return contestant.prepare()
        except AbsentError as error:
            self._results.add(row.ended("absent", str(error)))
        except Exception as error:  # noqa: BLE001 - peers raise anything; the report names it
            self._results.add(row.ended("failed", _said(error)))
        self._results.save()
        return None

    def _sample(self, case: Case, contestant: Contestant, ready: Ready) -> float:
        """Run once and note how long it took; return what that cost, infinity if there is to be no other run."""
        if self._is_over:
            self._results.end(_row(case, contestant), "out of time")
            return math.inf
        start = time.monotonic()
        try:
            took = ready.measure()
        except Exception as error:  # noqa: BLE001 - as above
            self._results.end(_row(case, contestant), "failed", _said(error))
            return math.inf
        for label, seconds in took.items() if isinstance(took, Mapping) else [("", took)]:
            row = replace(_row(case, contestant), facts={} if label else ready.facts)
            self._results.sample(replace(row, name=f"{row.name}: {label}") if label else row, seconds)
        return time.monotonic() - start

    def _close(self, case: Case, contestant: Contestant, ready: Ready) -> None:
        try:
            ready.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._results.end(_row(case, contestant), "failed", _said(error))


def _row(case: Case, contestant: Contestant) -> Row:
    """Return the row of a contestant that has not run yet."""
    return Row(case=case.name, name=contestant.name, nbytes=contestant.nbytes, moved_nbytes=contestant.moved_nbytes)


def wall_seconds(gpu: Gpu, run: Callable[[], Any]) -> float:
    """Return how long a call takes until the device is idle; what it returns is dropped after the clock has stopped."""
    gc.collect()
    gpu.synchronize()
    start = time.perf_counter()
    result = run()
    gpu.synchronize()
    took = time.perf_counter() - start
    del result
    return took


def device_seconds(gpu: Gpu, stream: Stream, launch: Callable[[], object]) -> float:
    """Return how long a stream works on what `launch` gives it."""
    first = gpu.mark(stream)
    launch()
    return gpu.seconds(first, gpu.mark(stream))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
