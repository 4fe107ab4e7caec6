"""Cases: one a workload, of real reads through xarray on the modelled device, and of each resource alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask

from benchmarks.arrays.stores import object_files, stored_nbytes, write_workload
from benchmarks.arrays.workloads import Workload
from benchmarks.measure import Case, Contestant, Ready
from benchmarks.timed.bounds import RESOURCES, call_s, decoding_bound, idle_shares
from benchmarks.timed.device import TimedDevice
from benchmarks.timed.engine import prepared_pool
from benchmarks.timed.fetches import Fetch, ModelledFiles, read_plainly, watched
from benchmarks.timed.simulation import Group, Interval
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.machine.bench.readers import Location, open_variable
from xarray_gpuzarr.process.threads import n_cores

NO_DASK = "no dask"
MODEL = "model"
"""What takes the data, where there is such a thing."""


def dask_name(n_threads: int) -> str:
    """Return the name of the row of reads by so many threads of dask."""
    return f"{n_threads} thread{'s'[: n_threads > 1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all cases share."""

    device: TimedDevice
    decoder: CudaDecoder
    folder: Path
    n_threads: Sequence[int]
    """Threads of dask."""
    modelled_fetch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One read: when it began and ended, and all that happened meanwhile."""

    start_s: float
    end_s: float
    intervals: Sequence[Interval]
    decoded: Sequence[Group]
    fetches: Sequence[Fetch]
    peak_nbytes: int
    overrun_s: float

    @property
    def spans(self) -> list[tuple[float, float]]:
        """When files were read."""
        return [(fetch.start_s, fetch.end_s) for fetch in self.fetches]


Reads = tuple[Callable[[], Any], Callable[[], object]]
"""What reads once, and what ends it."""
OpenReads = Callable[[], Reads]


class TimedReads:
    """Reads of one workload.

    Parameters
    ----------
    setup : Setup
    workload : Workload
    """

    resources: Sequence[str] = RESOURCES
    """What bounds it."""

    def __init__(self, setup: Setup, workload: Workload) -> None:
        self._setup = setup
        self._device = setup.device
        self.workload = workload
        self.nbytes = workload.nbytes
        """Decoded bytes that one run delivers."""
        self._runs: dict[str, list[Run]] = {}
        """Those that count, by contestant."""
        self._about: dict[str, Any] = {}

    @property
    def case(self) -> Case:
        """The case of this workload."""
        workload = self.workload
        return Case(
            name=f"timed/{workload.name}, {self._device.rates.hardware}",
            summary=workload.summary,
            contestants=self._contestants,
            about=lambda: self._about,
        )

    def _contestants(self) -> list[Contestant]:
        path = write_workload(self.workload, self._setup.folder)
        self._path = path
        for file in object_files(self.workload, path):
            file.read_bytes()  # into the page cache
        self._files = self._modelled_files() if self._setup.modelled_fetch else None
        stored = stored_nbytes(path)
        self._device.ratio = self.workload.nbytes / stored
        self._about |= {
            "workload": asdict(self.workload),
            "operation": "timed",
            "modelled": True,
            "hardware": self._device.rates.hardware,
            "nbytes": self.workload.nbytes,
            "stored_nbytes": stored,
        }
        make = partial(Contestant, nbytes=self.nbytes)
        ours = [
            make(name=name, prepare=partial(self._prepare, name, open_reads))
            for name, open_reads in self._readers().items()
        ]
        bounds = [make(name=name, side="bare", prepare=partial(self._prepare_bound, name)) for name in self.resources]
        return [*ours, *bounds]

    def _readers(self) -> dict[str, OpenReads]:
        """Return what is measured, by name."""
        by_dask = {dask_name(n): partial(self._by_dask, n) for n in self._setup.n_threads}
        return {NO_DASK: self._lazy, **by_dask}

    def _modelled_files(self) -> ModelledFiles:
        rates = self._device.rates
        files = ModelledFiles(self.workload, self._device.simulation, rates.lane_s)
        for file in object_files(self.workload, self._path):
            files.learn(str(file))
        return files

    # ---- what is measured

    def _variable(self, chunking: Any) -> Any:
        location = Location(store=str(self._path), variable=self.workload.variable)
        return open_variable(location, "gpuzarr", chunking, device="cuda", consolidated=False)

    def _lazy(self) -> Reads:
        """Return what reads without dask, and what ends it."""
        variable = self._variable("no dask")
        return lambda: variable[...].compute().data, lambda: None

    def _by_dask(self, n_threads: int) -> Reads:
        """Return what reads with so many threads of dask, blocks kept apart, and what ends them."""
        blocks, pool = self._variable("chunks={}").data, prepared_pool(self._setup.decoder, n_threads)

        def run() -> Any:
            with dask.config.set(scheduler="threads", pool=pool):
                return blocks.persist()

        return run, pool.shutdown

    def _prepare(self, name: str, open_reads: OpenReads) -> Ready:
        run, close = open_reads()
        facts: dict[str, float | str] = {}
        self._first = self._once(run)
        self._runs[name] = []

        def measure() -> float:
            done = self._once(run)
            self._runs[name].append(done)
            facts.update(self._facts(name))
            return done.end_s - done.start_s

        return Ready(measure=measure, facts=facts, close=close)

    def _once(self, run: Callable[[], Any]) -> Run:
        """Read once, from closed files and unknown indexes; what was read is dropped."""
        device = self._device
        gc.collect()
        index_cache.cache.clear()
        device.simulation.intervals.clear()
        device.decoded.clear()
        device.memory.restart()
        overrun_s, now = device.overrun_s, device.clock.now
        with watched(now, self._files.serve if self._files else None) as fetches:
            start_s = now()
            result = run()
            end_s = now()
        del result
        return Run(
            start_s=start_s,
            end_s=end_s,
            intervals=[i for i in device.simulation.intervals if i.start_s < end_s],
            decoded=tuple(device.decoded),
            fetches=fetches,
            peak_nbytes=device.memory.peak_nbytes,
            overrun_s=device.overrun_s - overrun_s,
        )

    # ---- what comes of it

    def _facts(self, name: str) -> dict[str, float | str]:
        """Return medians over the rounds so far."""
        runs = self._runs[name]
        each: list[dict[str, float]] = []
        for run in runs:
            idle = idle_shares(run.intervals, run.spans, (run.start_s, run.end_s), self._device.rates.slots)
            row = {f"{resource} idle": share for resource, share in idle.items()}
            each.append(row | {"peak GB": run.peak_nbytes / 1e9, "overrun ms": run.overrun_s * 1e3})
        return {key: round(median(row[key] for row in each), 4) for key in each[0]}

    def _prepare_bound(self, name: str) -> Ready:
        measure: Callable[[], float]
        if name == "fetch" and not self._setup.modelled_fetch:
            measure = lambda: read_plainly(self._first.fetches, n_cores())  # noqa: E731
        else:
            seconds = self._bounds()[name]
            measure = lambda: seconds  # noqa: E731
        return Ready(measure=measure)

    def _bounds(self) -> Mapping[str, float]:
        """Return the seconds that each resource needs at least, by what was asked of it."""
        rates, first = self._device.rates, self._first
        # Those that follow the blocks of zstd frames only wait.
        kernels = [i for i in first.intervals if i.resource == "kernel" and i.what not in ("zstd_blocks", MODEL)]
        nbytes = sum(fetch.nbytes for fetch in first.fetches)
        decoding = call_s if rates.in_turn else decoding_bound
        return {
            "decoder": decoding(first.decoded, rates.n_decoding),
            "copy engine": nbytes / rates.copy_rate,
            "kernels": sum(i.end_s - i.start_s - rates.kernel_latency_s for i in kernels),
            "fetch": nbytes / rates.lane_rate / rates.n_lanes,
        }
