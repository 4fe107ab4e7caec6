"""What the commands of this folder have in common: options, a GPU, a folder for arrays, a time box, tables and JSON."""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.device import Gpu
from benchmarks.machine import GPU_PACKAGES, HOST_PACKAGES, about, default_out
from benchmarks.report import print_case
from benchmarks.runner.readers import AbsentError
from benchmarks.runner.results import COPY_ROW, CaseRows, Results
from benchmarks.runner.session import Case, Session
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.device_options import in_force, resource_options

MakeGpu = Callable[[], Gpu]
BuildCases = Callable[[Gpu, Path, float], Iterable[Case]]
"""Returns the cases of a GPU; arrays go to the folder; the number is the share of their usual size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of this folder."""

    module: str
    kind: str
    """First part of the name of its file of results."""
    description: str
    seconds: float
    """Time for all of it, unless told otherwise."""
    cases: BuildCases
    rounds: int = 5
    tables: bool = True
    """Whether each case is printed as soon as it is done."""

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser of the options that all commands have."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        parser.add_argument("--only", nargs="+", metavar="PART", help="cases whose name contains one of these")
        parser.add_argument("--rounds", type=int, default=self.rounds, help=f"runs, at most ({self.rounds})")
        parser.add_argument("--scale", type=float, default=1.0, help="below 1: tiny arrays, to see that it runs")
        parser.add_argument(
            "--seconds", type=float, default=self.seconds, help=f"time for the chosen cases ({self.seconds:g})"
        )
        parser.add_argument(
            "--out", type=Path, help=f"JSON file (benchmarks/results/{self.kind}-<date>.json)", default=None
        )
        return parser

    def run(self, options: argparse.Namespace, make_gpu: MakeGpu = Gpu) -> Results | None:
        """Run the chosen cases and write results; None if there is no GPU, or nothing is named so, which is said."""
        try:
            gpu = make_gpu()
        except AbsentError as error:
            print(error, file=sys.stderr)
            return None
        with tempfile.TemporaryDirectory(prefix="gpuzarr-bench-") as folder:
            every = list(self.cases(gpu, Path(folder), options.scale))
            cases = [case for case in every if any(word in case.name for word in options.only or [""])]
            if not cases:
                known = ", ".join(case.name for case in every)
                print(f"nothing is named like {options.only}; known: {known}", file=sys.stderr)
                return None
            settings = {key: getattr(options, key) for key in ("only", "rounds", "scale", "seconds")}
            description = about(self.module, settings, (*HOST_PACKAGES, *GPU_PACKAGES)) | {"gpu": gpu.about()}
            results = Results(description, options.out or default_out(self.kind))
            before = in_force.options
            in_force.options = replace(resource_options(), little="device", verify="off")
            try:
                self._run_all(cases, options, results, gpu)
            finally:
                in_force.options = before
        return results

    def _run_all(self, cases: Sequence[Case], options: argparse.Namespace, results: Results, gpu: Gpu) -> None:
        console = Console(width=None if sys.stdout.isatty() else 150)
        session = Session(results, n_rounds=options.rounds, seconds=options.seconds)
        share = options.seconds / sum(case.seconds for case in cases)
        for case in cases:
            n_before = counters.snapshot().n_by_host
            found = session.run(case, case.seconds * share)
            if n_by_host := counters.snapshot().n_by_host - n_before:
                found = _refused(results, found, f"the host decoded {n_by_host} chunks of reads to the GPU")
            if self.tables or any(row.status == "failed" for row in found.rows):
                print_case(found, console, copy_rate=copy_rate(results))
            gc.collect()
            gpu.tidy()
        results.finished = True
        results.save()


def _refused(results: Results, found: CaseRows, why: str) -> CaseRows:
    """Let all rows of a case have failed, without what was measured."""
    for row in found.rows:
        results.add(replace(row, samples=()).ended("failed", why))
    return results.case(found.name)


def exit_status(results: Results | None) -> int:
    """Return 2 if nothing ran, 1 if something failed, else 0."""
    return 2 if results is None else int(any(row.status == "failed" for row in results.rows))


def copy_rate(results: Results) -> float | None:
    """Return the bytes a second that a copy within the device reads and writes, once it was measured."""
    return next((r.moved_rate for r in results.rows if (r.case, r.name) == COPY_ROW and r.samples), None)
