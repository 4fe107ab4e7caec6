"""``python -m benchmarks``: run it from the root of the repository."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.arrays.published import published
from benchmarks.arrays.stores import cache_directory
from benchmarks.arrays.workloads import WORKLOADS
from benchmarks.cluster import cases as cluster
from benchmarks.cluster import graphs
from benchmarks.cold import cases as cold
from benchmarks.host import copies, many_threads
from benchmarks.host.cases import host_cases, measured
from benchmarks.machine import about, default_out
from benchmarks.remote import cases as remote
from benchmarks.remote import network, opening
from benchmarks.report import print_case, print_summary
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.results import Results
from benchmarks.runner.session import Case, Session
from benchmarks.small import cases as small
from benchmarks.training import cases as training
from benchmarks.writes import cases as writes
from benchmarks.writes import copies as written_copies

CaseBuilder = Callable[[float, Path], Sequence[Case]]
"""Returns cases at a scale, a share of the elements: 1 for results that mean something. Stores go to the folder."""

_SMOKE_SCALE = 1e-3
MORE_CASES: tuple[CaseBuilder, ...] = (
    remote.cases,
    network.cases,
    opening.cases,
    cluster.cases,
    graphs.cases,
    copies.cases,
    many_threads.cases,
    small.cases,
    writes.cases,
    written_copies.cases,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; return 1 if a reader failed or gave other values, 2 if nothing is named so, else 0."""
    options = _parser().parse_args(arguments)
    if options.smoke:
        options.scale, options.rounds, options.memory = _SMOKE_SCALE, 1, False
    crew = ReaderProcesses()
    every = _all_cases(crew, cache_directory(), options)
    cases = _chosen(every, options.only or [""])
    if options.smoke:
        cases = _one_of_each_kind(cases)
    if not cases:
        print(f"nothing is named like {options.only}; known: {', '.join(c.name for c in every)}", file=sys.stderr)
        return 2
    try:
        results = _run(cases, options)
    finally:
        crew.stop()
    return int(any(row.status == "failed" for row in results.rows))


def _chosen(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    """Return the cases whose name contains a word; of a word that is a whole name, that case alone."""
    names = {case.name for case in cases}
    return [c for c in cases if any(c.name == word if word in names else word in c.name for word in words)]


def _one_of_each_kind(cases: Sequence[Case]) -> list[Case]:
    """Return the first case of what is done with arrays, and of what is measured otherwise, numbers apart."""
    own = {workload.name for workload in (*WORKLOADS, *published(full=True), *published(full=False))}
    first: dict[str, Case] = {}
    for case in cases:
        what, _, how = case.name.partition("/")
        first.setdefault(re.sub(r"[\d.]+", "", how if what in own else case.name), case)
    return list(first.values())


def _all_cases(crew: ReaderProcesses, folder: Path, options: argparse.Namespace) -> list[Case]:
    scale = options.scale
    workloads = [w if scale == 1 else w.scaled(scale) for w in (*WORKLOADS, *published(full=options.full))]
    cases = [measured(case, crew, folder, with_memory=options.memory) for case in host_cases(workloads)]
    more = (case for build in MORE_CASES for case in build(scale, folder))
    return [*cases, *more, *training.cases(scale, folder, crew), *cold.cases(scale, folder, crew)]


def _run(cases: Sequence[Case], options: argparse.Namespace) -> Results:
    out = options.out or (None if options.smoke else default_out("host-full" if options.full else "host"))
    console = Console(width=None if sys.stdout.isatty() else 140)
    settings = {"only": options.only, "rounds": options.rounds, "scale": options.scale, "full": options.full}
    results = Results(about("benchmarks", settings), out)
    with console.status("") as status:
        session = Session(results, n_rounds=options.rounds, progress=status.update)
        for case in cases:
            print_case(session.run(case), console)
    results.finished = True
    results.save()
    print_summary(results.cases, console)
    if out is not None:
        console.print(f"written: {out}")
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare xarray_gpuzarr with its peers.")
    parser.add_argument("--only", nargs="+", metavar="PART", help="cases whose name contains one of these, or is one")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each reader, at most (default 5)")
    parser.add_argument("--full", action="store_true", help="published workloads in full: 32 GB of memory and disk")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the elements of each workload (default 1)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/host-<date>.json)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave memory out")
    parser.add_argument("--smoke", action="store_true", help="one case of each kind, tiny; writes JSON only with --out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
