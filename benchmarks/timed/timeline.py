"""What happened when in one run, small enough to stand in a file of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.timed.fetches import Fetch
from benchmarks.timed.simulation import Interval

Bar = tuple[float, float]
"""Start and length in milliseconds since the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run, in milliseconds since it began."""

    wall_ms: float
    fetches: Sequence[Sequence[Bar]]
    """Of each thread that read files; those that waited for the device first."""
    waits: Sequence[Sequence[Bar]]
    """Of the same threads: for the device."""
    uploads: Sequence[Bar]
    kernels: Sequence[Bar]
    decoding: Sequence[tuple[float, int]]
    """Slots that are occupied from a time on."""

    @classmethod
    def of(
        cls,
        intervals: Sequence[Interval],
        fetches: Sequence[Fetch],
        waits: Sequence[tuple[int, float, float]],
        span: tuple[float, float],
    ) -> Self:
        """Return the timeline of a run; waits are (thread, start, end)."""
        start_s, end_s = span
        waited: dict[int, list[tuple[float, float]]] = {}
        for thread, first, last in waits:
            waited.setdefault(thread, []).append((first, last))
        threads: dict[int, list[tuple[float, float]]] = {}
        for fetch in sorted(fetches, key=lambda fetch: fetch.start_s):
            threads.setdefault(fetch.thread, []).append((fetch.start_s, fetch.end_s))

        order = sorted(threads, key=lambda thread: thread not in waited)

        def bars(resource: str) -> list[Bar]:
            return _joined([(i.start_s, i.end_s) for i in intervals if i.resource == resource], start_s)

        return cls(
            wall_ms=_ms(end_s - start_s),
            fetches=[_joined(threads[thread], start_s) for thread in order],
            waits=[_joined(waited.get(thread, []), start_s) for thread in order],
            uploads=bars("upload"),
            kernels=bars("kernel"),
            decoding=_steps([i for i in intervals if i.resource == "decode"], start_s),
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain lists."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, timeline: Mapping[str, Any]) -> Self:
        """Return a timeline of a file."""
        return cls(**timeline)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _joined(spans: Sequence[tuple[float, float]], start_s: float) -> list[Bar]:
    """Return bars, those that touch made one."""
    bars: list[list[float]] = []
    for first, last in sorted(spans):
        if bars and first <= bars[-1][1] + 20e-6:
            bars[-1][1] = max(bars[-1][1], last)
        else:
            bars.append([first, last])
    return [(_ms(first - start_s), _ms(last - first)) for first, last in bars]


def _steps(intervals: Sequence[Interval], start_s: float) -> list[tuple[float, int]]:
    """Return how many slots are occupied from when on."""
    changes: dict[float, int] = {}
    for i in intervals:
        changes[_ms(i.start_s - start_s)] = changes.get(_ms(i.start_s - start_s), 0) + i.n_slots
        changes[_ms(i.end_s - start_s)] = changes.get(_ms(i.end_s - start_s), 0) - i.n_slots
    steps, n = [(0.0, 0)], 0
    for at in sorted(changes):
        n += changes[at]
        if changes[at]:
            steps.append((at, n))
    return steps
