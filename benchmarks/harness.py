"""Runs cases: all readers of a case take turns, round after round, each in its own process.

A case is one workload and one operation. Memory is measured apart from time, in a fresh process per reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.child import Answer, Child, Command, Failure, Fingerprint, Open, Peak, Sample
from benchmarks.readers import READERS, Reader
from benchmarks.session import Side
from benchmarks.stores import stored_nbytes, write_workload
from benchmarks.workloads import Operation, Workload

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table of the report."""

    workload: Workload
    operation: Operation

    @property
    def name(self) -> str:
        """What ``--only`` selects by."""
        return f"{self.workload.name}/{self.operation}"

    def readers(self) -> list[Reader]:
        """Return the readers that can do this, in the order of the registry."""
        return [reader for reader in READERS.values() if self.operation in reader.operations]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one reader did in one case."""

    reader: str
    side: Side
    samples: tuple[Sample, ...] = ()
    peak: Peak | None = None
    failure: str | None = None
    """Why there is no valid result."""

    @property
    def wall_s(self) -> float:
        """Median."""
        return median(s.wall_s for s in self.samples)

    @property
    def cpu_s(self) -> float:
        """Median, of all threads."""
        return median(s.cpu_s for s in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All rows of one case."""

    case: Case
    stored_nbytes: int
    rows: tuple[Row, ...]

    def best(self, side: Side) -> Row | None:
        """Return the quickest row of a side."""
        rows = [row for row in self.rows if row.side == side and not row.failure]
        return min(rows, key=lambda row: row.wall_s, default=None)


class Harness:
    """The processes of all readers, started when first needed and kept until `stop`.

    Parameters
    ----------
    directory : pathlib.Path
        Cache of stores.
    n_rounds : int
        Timed reads of each reader, after one that warms up and is checked.
    progress : callable
        Told what is going on.
    """

    def __init__(self, directory: Path, n_rounds: int, progress: Progress) -> None:
        self._directory = directory
        self._n_rounds = n_rounds
        self._progress = progress
        self._children: dict[str, Child] = {}

    def run(self, case: Case, *, with_memory: bool) -> CaseResult:
        """Write the case's store if need be, check all its readers, then time them in turns."""
        self._progress(f"{case.name}: store")
        path = write_workload(case.workload, self._directory)
        request = Open(workload=case.workload, path=path, operation=case.operation)
        failures = self._warm_up(case, request)
        sound = [reader.name for reader in case.readers() if reader.name not in failures]
        samples = self._timed(case, sound, failures)
        for name in sound:
            self._ask(name, "close")
        peaks = {name: self._peak(case, name, request) for name in sound} if with_memory else {}
        rows = (
            Row(
                reader=reader.name,
                side=reader.side,
                samples=tuple(samples.get(reader.name, ())),
                peak=peaks.get(reader.name),
                failure=failures.get(reader.name),
            )
            for reader in case.readers()
        )
        return CaseResult(case=case, stored_nbytes=stored_nbytes(path), rows=tuple(rows))

    def stop(self) -> None:
        """End all processes."""
        for child in self._children.values():
            child.stop()

    def _start(self, name: str) -> None:
        if name not in self._children:
            self._children[name] = Child(name)

    def _ask(self, name: str, command: Command) -> Answer:
        return self._children[name].ask(command)

    def _warm_up(self, case: Case, request: Open) -> dict[str, str]:
        """Open and read once with every reader; return why a reader drops out."""
        failures: dict[str, str] = {}
        reference: Fingerprint | None = None
        for reader in case.readers():
            self._start(reader.name)  # all at once: they import side by side
        for reader in case.readers():
            self._progress(f"{case.name}: check {reader.name}")
            answer = self._ask(reader.name, request) or self._ask(reader.name, "fingerprint")
            if isinstance(answer, Failure):
                failures[reader.name] = answer.message
                continue
            assert isinstance(answer, Fingerprint)
            reference = reference or answer
            if not answer.agrees_with(reference):
                failures[reader.name] = f"other values than the first reader: {answer}, expected {reference}"
        return failures

    def _timed(self, case: Case, names: Sequence[str], failures: dict[str, str]) -> dict[str, list[Sample]]:
        """Let readers take turns; each round begins with another one, so none always follows the same."""
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for n in range(self._n_rounds):
            self._progress(f"{case.name}: round {n + 1} of {self._n_rounds}")
            for name in _rotated(names, n):
                answer = None if name in failures else self._ask(name, "sample")
                if isinstance(answer, Sample):
                    samples[name].append(answer)
                elif isinstance(answer, Failure):
                    failures[name] = answer.message
        return samples

    def _peak(self, case: Case, name: str, request: Open) -> Peak | None:
        """Measure a first read: buffers that a process keeps for later reads count."""
        self._progress(f"{case.name}: memory of {name}")
        child = Child(name)
        try:
            answer = child.ask(request) or child.ask("peak")
        finally:
            child.stop()
        return answer if isinstance(answer, Peak) else None


def _rotated(names: Sequence[str], n: int) -> list[str]:
    first = n % len(names) if names else 0
    return [*names[first:], *names[:first]]


def cases_of(workloads: Iterable[Workload]) -> list[Case]:
    """Return one case for each operation of each workload."""
    return [Case(workload=w, operation=operation) for w in workloads for operation in w.operations]
