"""Runs cases, of ``gpuzarr bench`` and of the project's benchmarks: contestants take turns, round after round.

A case ends when all rounds are done or its time is over.

Knows no Zarr and no CUDA. Whatever a contestant raises becomes a row of the result; nothing is left out silently.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.runner.readers import AbsentError
from benchmarks.runner.results import CaseRows, Facts, Peak, Results, Row, Sample, Side

Measure = Callable[[], float | Sample | Mapping[str, float]]
"""Carry out what is measured once; return seconds, or seconds by label, each of which becomes a row: none of them
where there are only facts."""
Progress = Callable[[str], None]


class WrongValuesError(Exception):
    """A reader returned other values than were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A contestant that has been warmed up and checked."""

    measure: Measure
    facts: Facts = field(default_factory=dict)
    close: Callable[[], object] = lambda: None
    """Give back what it holds."""
    peak: Callable[[], Peak | None] = lambda: None
    """Measure memory, once all contestants are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One row of a case, or several."""

    name: str
    side: Side = "ours"
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
    summary: str = ""
    seconds: float = math.inf
    """Time that it should take, preparation included."""
    each_seconds: float = math.inf
    """Time for the runs of one contestant, after which it has no further ones."""
    most_rounds: int | None = None
    """Where a round costs much."""
    contestants: Callable[[], Sequence[Contestant]]
    about: Callable[[], Mapping[str, Any]] = dict
    """What was read, for the report; asked for once contestants are prepared."""


class Session:
    """Runs cases within a time box.

    Parameters
    ----------
    results : Results
    n_rounds : int
        Timed runs of each contestant, at most.
    seconds : float
        Time for everything, from now on.
    progress : callable
        Told what is going on.
    """

    def __init__(
        self, results: Results, *, n_rounds: int, seconds: float = math.inf, progress: Progress = lambda _: None
    ) -> None:
        self._results = results
        self._n_rounds = n_rounds
        self._progress = progress
        self._end = time.monotonic() + seconds

    def run(self, case: Case, seconds: float = math.inf) -> CaseRows:
        """Prepare all contestants of a case, then let them take turns for at most so many seconds; return its rows."""
        until = min(self._end, time.monotonic() + seconds)
        self._results.begin(case.name, case.summary, {})
        contestants = self._contestants_of(case)
        for contestant in contestants:
            self._results.add(_row(case, contestant))
        ready = []
        for n, contestant in enumerate(contestants, 1):
            self._progress(f"{case.name}: first run, {n} of {len(contestants)}: {contestant.name}")
            if (prepared := self._prepare(case, contestant)) is not None:
                ready.append((contestant, prepared))
        if ready:
            self._results.begin(case.name, case.summary, case.about())
        self._take_turns(case, ready, until)
        for contestant, prepared in ready:
            self._close(case, contestant, prepared)
        for contestant, prepared in ready:
            self._peak(case, contestant, prepared)
        self._results.save()
        return self._results.case(case.name)

    def _take_turns(self, case: Case, ready: Sequence[tuple[Contestant, Ready]], until: float) -> None:
        """Let each contestant run once a round, while it has time left; each round begins with another one."""
        each = min(case.each_seconds, (until - time.monotonic()) / max(1, len(ready)))
        left = {c.name: each for c, _ in ready}
        n_rounds = min(self._n_rounds, case.most_rounds or self._n_rounds)
        n_done, start = 0, time.monotonic()
        for n in range(n_rounds if ready else 0):
            first = n % len(ready)
            for contestant, prepared in [*ready[first:], *ready[:first]]:
                if left[contestant.name] > 0 or n == 0:
                    n_left = (n_rounds - n) * sum(seconds > 0 for seconds in left.values()) - n_done % len(ready)
                    how_long = _how_long((time.monotonic() - start) / n_done * n_left) if n_done else ""
                    self._progress(f"{case.name}: round {n + 1} of {n_rounds}{how_long}: {contestant.name}")
                    left[contestant.name] -= self._sample(case, contestant, prepared)
                    n_done += 1
            self._results.save()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._end

    def _contestants_of(self, case: Case) -> Sequence[Contestant]:
        if self._is_over:
            self._results.add(Row(case=case.name, name="(all)", status="out of time"))
            return []
        self._progress(f"{case.name}: getting ready")
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
        row = replace(_row(case, contestant), facts=ready.facts)
        if self._is_over:
            self._results.end(row, "out of time")
            return math.inf
        start = time.monotonic()
        try:
            took = ready.measure()
        except Exception as error:  # noqa: BLE001 - as above
            self._results.end(row, "failed", _said(error))
            return math.inf
        if isinstance(took, Mapping):
            self._labelled(row, took)
        else:
            self._results.sample(row, took if isinstance(took, Sample) else Sample(wall_s=took))
        return time.monotonic() - start

    def _labelled(self, row: Row, took: Mapping[str, float]) -> None:
        if not took:
            self._results.sample(row, None)
        elif "" not in took:
            self._results.drop(row.case, row.name)
        for label, seconds in took.items():
            labelled = replace(row, name=f"{row.name}: {label}", facts={}) if label else row
            self._results.sample(labelled, Sample(wall_s=seconds))

    def _close(self, case: Case, contestant: Contestant, ready: Ready) -> None:
        try:
            ready.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._results.end(_row(case, contestant), "failed", _said(error))

    def _peak(self, case: Case, contestant: Contestant, ready: Ready) -> None:
        peak = ready.peak()
        if peak is not None:
            self._results.peak(case.name, contestant.name, peak)


def _row(case: Case, contestant: Contestant) -> Row:
    """Return the row of a contestant that has not run yet."""
    return Row(
        case=case.name,
        name=contestant.name,
        side=contestant.side,
        nbytes=contestant.nbytes,
        moved_nbytes=contestant.moved_nbytes,
    )


def _how_long(seconds: float) -> str:
    return f", {f'{seconds / 60:.0f} min' if seconds >= 90 else f'{max(1, seconds):.0f} s'} left"


def _said(error: Exception) -> str:
    """Return what a row says of an error; of other values, no name of a class."""
    if isinstance(error, WrongValuesError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
