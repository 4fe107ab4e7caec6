"""Cases of the host: one for each operation of each workload, every reader in a process of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.arrays.published import CONCURRENCIES
from benchmarks.arrays.stores import stored_nbytes, write_workload
from benchmarks.arrays.workloads import READ_ON, REGIMES, SELECTED, SELECTIONS, Operation, Regime, Workload
from benchmarks.host import child
from benchmarks.host.boxes import boxes_of
from benchmarks.host.readers import READERS, Reader
from benchmarks.host.task import Task
from benchmarks.runner import crew as processes
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.fingerprint import Reference
from benchmarks.runner.readers import AbsentError
from benchmarks.runner.results import Peak, Sample
from benchmarks.runner.session import Case, Contestant, Ready

_EACH_SECONDS = 15.0
"""Time for the runs of one reader in one case: the slowest ones have fewer rounds."""
_FIRST_ROUNDS = 3
"""Of first reads, each of which takes a process."""
_READING_ON = ("zarr Fused", "zarrs", "TensorStore", "zarrista", "gpuzarr")
"""Readers that are compared in every regime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCase:
    """One operation on one workload."""

    workload: Workload
    operation: Operation
    concurrency: int = 1
    regime: Regime | None = None

    @property
    def name(self) -> str:
        """What ``--only`` selects by."""
        at_once = f" x{self.concurrency}" if self.operation == "chunks" else ""
        regime = f" {self.regime}" if self.regime else ""
        return f"{self.workload.name}/{self.operation}{at_once}{regime}"

    def readers(self) -> list[Reader]:
        """Return the readers that can do this, in the order of the registry; in a regime, some of them."""
        able = [reader for reader in READERS.values() if self.operation in reader.operations]
        return [reader for reader in able if self.regime is None or reader.name in _READING_ON]


def host_cases(workloads: Iterable[Workload]) -> Iterator[HostCase]:
    """Return one case for each operation of each workload, each selection and regime of some, and each concurrency."""
    for workload in workloads:
        selections = SELECTIONS if workload.name in SELECTED else ()
        for operation in (*workload.operations, *selections):
            for n in CONCURRENCIES if operation == "chunks" else (1,):
                yield HostCase(workload=workload, operation=operation, concurrency=n)
        for regime in REGIMES if workload.name in READ_ON else ():
            yield HostCase(workload=workload, operation="read", regime=regime)


class SharedStore:
    """What the contestants of one case share: the store, the processes, and the values of the first reader.

    Parameters
    ----------
    case : HostCase
    crew : ReaderProcesses
    folder : pathlib.Path
        Cache of stores.
    with_memory : bool
        Whether memory is measured too, which takes a fresh process for each reader.
    """

    def __init__(self, case: HostCase, crew: ReaderProcesses, folder: Path, *, with_memory: bool) -> None:
        self._case = case
        self._crew = crew
        self._folder = folder
        self._with_memory = with_memory
        self._reference = Reference()

    @functools.cached_property
    def task(self) -> Task:
        """What readers are asked to open; writes the store if need be."""
        path = write_workload(self._case.workload, self._folder)
        return Task(
            workload=self._case.workload,
            path=path,
            operation=self._case.operation,
            concurrency=self._case.concurrency,
            regime=self._case.regime,
            boxes=boxes_of(self._case.operation, self._case.workload),
        )

    def contestants(self) -> list[Contestant]:
        """Return the readers; their processes start."""
        readers = self._case.readers()
        self._crew.start(r.name for r in readers if not (r.shipped and r.shipped.why_absent()))
        return [
            Contestant(
                name=reader.name,
                side=reader.side,
                nbytes=self.task.nbytes,
                prepare=functools.partial(self._prepare, reader),
            )
            for reader in readers
        ]

    def about(self) -> Mapping[str, Any]:
        """Return what was read."""
        return {
            "operation": self._case.operation,
            "concurrency": self._case.concurrency,
            "regime": self._case.regime,
            "workload": asdict(self._case.workload),
            "nbytes": self.task.nbytes,
            "stored_nbytes": stored_nbytes(self.task.path),
        }

    def _prepare(self, reader: Reader) -> Ready:
        absent = reader.shipped.why_absent() if reader.shipped else None
        if absent:
            raise AbsentError(absent)
        found = self._crew.ask(child.open_task, reader.name, self.task)
        self._reference.check(reader.name, found)
        return Ready(
            measure=functools.partial(self._measure, reader.name),
            close=functools.partial(self._crew.ask, child.close, reader.name),
            peak=functools.partial(self._peak, reader.name) if self._with_memory else lambda: None,
        )

    def _measure(self, name: str) -> Sample:
        if self._case.regime != "first":
            return self._crew.ask(child.sample, name)
        with processes.process() as process:
            return process.submit(child.first_sample, name, self.task).result()

    def _peak(self, name: str) -> Peak | None:
        with processes.process() as process:
            try:
                return process.submit(child.first_peak, name, self.task).result()
            except Exception:  # noqa: BLE001 - peers raise anything; the row keeps its times
                return None


def measured(case: HostCase, crew: ReaderProcesses, folder: Path, *, with_memory: bool) -> Case:
    """Return a case as the runner takes it."""
    shared = SharedStore(case, crew, folder, with_memory=with_memory)
    return Case(
        name=case.name,
        summary=case.workload.summary,
        each_seconds=_EACH_SECONDS,
        most_rounds=_FIRST_ROUNDS if case.regime == "first" else None,
        contestants=shared.contestants,
        about=shared.about,
    )
