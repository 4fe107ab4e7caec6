"""Times a call: the median of some runs, after one that warms up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds_of(run: Callable[[], object], *, budget: float = 0.25, most: int = 5) -> float:
    """Return the median time of up to `most` runs, at least one, in `budget` seconds, after one that is not timed.

    What `run` returns is dropped after the clock has stopped.
    """
    run()
    times: list[float] = []
    while not times or (len(times) < most and sum(times) + times[-1] <= budget):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times)
