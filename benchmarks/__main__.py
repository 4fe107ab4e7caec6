"""``python -m benchmarks``: run it from the root of the repository."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.harness import Case, CaseResult, Harness, cases_of
from benchmarks.report import print_case, print_summary, write_json
from benchmarks.stores import cache_directory
from benchmarks.workloads import WORKLOADS

_SMOKE_SCALE = 1e-3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; return 1 if a reader failed or gave other values, else 0."""
    options = _parser().parse_args(arguments)
    if options.smoke:
        options.scale, options.rounds = _SMOKE_SCALE, 1
    cases = [case for case in _cases(options.scale) if any(word in case.name for word in options.only or [""])]
    if not cases:
        known = ", ".join(case.name for case in _cases(1))
        print(f"nothing is named like {options.only}; known: {known}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 140)
    results = _run(cases, options, console)
    print_summary(results, console)
    if not options.smoke or options.out:
        out = options.out or _default_out()
        write_json(results, out, {"rounds": options.rounds, "scale": options.scale})
        console.print(f"written: {out}")
    return int(any(row.failure for result in results for row in result.rows))


def _run(cases: Sequence[Case], options: argparse.Namespace, console: Console) -> list[CaseResult]:
    results: list[CaseResult] = []
    with console.status("") as status:
        harness = Harness(cache_directory(), options.rounds, status.update)
        try:
            for case in cases:
                # A smoke run tries the memory measurement once; it costs a process per reader.
                with_memory = options.memory and not (options.smoke and results)
                results.append(harness.run(case, with_memory=with_memory))
                print_case(results[-1], console)
        finally:
            harness.stop()
    return results


def _cases(scale: float) -> list[Case]:
    return cases_of(w if scale == 1 else w.scaled(scale) for w in WORKLOADS)


def _default_out() -> Path:
    return Path(__file__).parent / "results" / f"host-{datetime.now(UTC).date()}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare xarray_gpuzarr with its peers.")
    parser.add_argument("--only", nargs="+", metavar="PART", help="cases whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=5, help="timed reads of each reader (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the elements of each workload (default 1)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/host-<date>.json)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave memory out")
    parser.add_argument("--smoke", action="store_true", help="every case, tiny, one round; writes JSON only with --out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
