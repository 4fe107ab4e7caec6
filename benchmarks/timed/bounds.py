"""What no schedule can beat, resource by resource, and how long resources stand still. Arithmetic, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.timed.simulation import Group, Interval

Span = tuple[float, float]
"""Start and end in seconds."""


def call_s(groups: Sequence[Group], n_slots: int) -> float:
    """Return how long one call takes that decodes chunks in waves, the longest first, each as long as its longest."""
    total_s, n_free = 0.0, 0
    for n, seconds in sorted(groups, key=lambda group: -group[1]):
        n_waves = max(0, math.ceil((n - n_free) / n_slots))
        total_s += n_waves * seconds
        n_free += n_waves * n_slots - n
    return total_s


def decoding_bound(groups: Sequence[Group], n_slots: int) -> float:
    """Return the shortest time in which slots decode chunks, all there from the beginning, if calls overlap.

    Exact if all chunks take equally long; else it is no more than the best schedule takes.
    """
    each = {seconds for _, seconds in groups}
    if len(each) < 2:
        return call_s(groups, n_slots)
    return max(*each, sum(n * seconds for n, seconds in groups) / n_slots)


def covered(spans: Iterable[Span], start_s: float, end_s: float) -> float:
    """Return how many seconds from `start_s` to `end_s` lie in at least one span."""
    total, until = 0.0, start_s
    for first, last in sorted(spans):
        begin, end = max(first, until), min(last, end_s)
        if end > begin:
            total += end - begin
            until = end
    return total


def occupied(intervals: Iterable[Interval], start_s: float, end_s: float) -> float:
    """Return slot-seconds between `start_s` and `end_s`."""
    return sum(i.n_slots * max(0.0, min(i.end_s, end_s) - max(i.start_s, start_s)) for i in intervals)


def idle_shares(
    intervals: Sequence[Interval], reads: Iterable[Span], span: Span, slots: Mapping[str, int]
) -> dict[str, float]:
    """Return the share of a span in which each resource stands still; `reads` are those of files, on any thread."""
    start_s, end_s = span
    wall_s = end_s - start_s

    def idle(resource: str) -> float:
        used = occupied([i for i in intervals if i.resource == resource], start_s, end_s)
        return 1 - used / (slots[resource] * wall_s)

    return {
        "decoder": idle("decode"),
        "copy engine": idle("upload"),
        "kernels": idle("kernel"),
        "fetch": 1 - covered(reads, start_s, end_s) / wall_s,
    }
