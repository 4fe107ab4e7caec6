"""A case in which a model takes the batches of `xarray_gpuzarr.batches`, each for as long as it takes to read one.

The model is kernels on the modelled device, in turn with those of the reads; the loop waits for each step, as one does
that looks at its loss. Its bound is that the model never waits for data: what is missing to 100 % of that is the share
of the time in which the device stands still, as far as the model can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from statistics import median

import xarray as xr

from benchmarks.timed.bounds import RESOURCES
from benchmarks.timed.cases import MODEL, OpenReads, Reads, Setup, TimedReads
from benchmarks.training.feeds import BATCH, PREFETCH, Feed
from xarray_gpuzarr import Batches, batches

_LAYERS = 20
"""Kernels of a step."""
_N_ALONE = 3
"""Runs without a model, the first of which warms up."""


class TimedTraining(TimedReads):
    """A training loop over one array.

    Parameters
    ----------
    setup : Setup
    feed : Feed
    """

    resources = (*RESOURCES, MODEL)

    def __init__(self, setup: Setup, feed: Feed) -> None:
        super().__init__(setup, feed.workload)
        self._feed = feed
        self.nbytes = feed.nbytes

    def _readers(self) -> dict[str, OpenReads]:
        return {f"batches, {n} ahead": partial(self._trained, n) for n in (0, PREFETCH)}

    def _loader(self, prefetch: int) -> Batches:
        dims = self.workload.dims
        ds = xr.open_dataset(self._path, engine="gpuzarr", device="cuda", consolidated=False)
        positions = dict(zip(dims, self._feed.start.reshape(-1, len(dims)).T, strict=True))
        sizes = dict(zip(dims, self._feed.crop, strict=True))
        return batches(ds, sizes=sizes, batch=BATCH, positions=positions, prefetch=prefetch)

    def _trained(self, prefetch: int) -> Reads:
        loader, simulation, stream = self._loader(prefetch), self._device.simulation, self._device.stream()
        each = [(1, self._step_s / _LAYERS)]

        def run() -> None:
            for _ in loader:
                for _ in range(_LAYERS):
                    simulation.enqueue(stream, "kernel", each, MODEL)
                simulation.wait_for(stream.last)

        return run, lambda: None

    @cached_property
    def _step_s(self) -> float:
        """Seconds of a step: what it takes to read a batch if nothing else is done."""
        loader = self._loader(0)
        runs = [self._once(lambda: [None for _ in loader]) for _ in range(_N_ALONE)]
        return median(run.end_s - run.start_s for run in runs[1:]) / self._feed.n_batches

    def _bounds(self) -> Mapping[str, float]:
        return {**super()._bounds(), MODEL: self._feed.n_batches * self._step_s}
