"""One read, counted: its requests and its plans, wrapped so that `counters` hears what passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from xarray_gpuzarr.fetch import Allocate, Pending
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters


def counted(pending: Pending) -> Pending:
    """Return requests that count their bytes, and the seconds until they are there."""

    def finish(allocate: Allocate) -> list[memoryview | None]:
        with counters.stage("fetch"):
            parts = pending(allocate)
        counters.add(read_nbytes=sum(len(data) for data in parts if data is not None))
        return parts

    return finish


class CountedPlans:
    """The plans of one read, which count once it has ended well.

    Parameters
    ----------
    plans : iterable of ReadPlan
        Drawn lazily; the seconds that it takes to draw them count as ``index``.
    """

    def __init__(self, plans: Iterable[ReadPlan]) -> None:
        self._plans = iter(plans)
        self._n_shards = self._decoded_nbytes = 0

    def __iter__(self) -> Iterator[ReadPlan]:
        draw = partial(next, self._plans, None)
        while (plan := counters.during("index", draw)) is not None:
            self._n_shards += len(plan.keys)
            self._decoded_nbytes += plan.decoded_nbytes
            yield plan

    def done(self) -> None:
        """Count the read."""
        counters.add(n_reads=1, n_shards=self._n_shards, decoded_nbytes=self._decoded_nbytes)
