"""``python -m benchmarks.host_cost``: microseconds a shard, by stage; run it from the root of the repository."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.host_cost import cases as host_cost
from benchmarks.host_cost.cases import N_SHARDS, Layout, NullReads, cases
from benchmarks.machine import about
from benchmarks.measure import Session
from benchmarks.results import CaseRows, Results


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if it failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host_cost", description="What a shard costs the host of a GPU."
    )
    parser.add_argument("--rounds", type=int, default=50, help="reads of each kind (default 50)")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most of the time instead")
    options = parser.parse_args(arguments)
    if options.profile:
        for layout in host_cost.LAYOUTS:
            _profile(layout, options.rounds)
        return 0
    results = Results(about("benchmarks.host_cost", {"rounds": options.rounds}), options.out)
    session = Session(results, n_rounds=options.rounds)
    for case in cases(1, Path()):
        _print(session.run(case))
    results.finished = True
    results.save()
    return int(any(row.status == "failed" for row in results.rows))


def _print(case: CaseRows) -> None:
    table = Table("us a shard", "median", "min", title=f"{case.name}: {case.summary}")
    for row in case.rows:
        if row.samples:
            table.add_row(row.name, f"{row.wall_s * 1e6:.0f}", f"{row.spread_s[0] * 1e6:.0f}")
        else:
            table.add_row(f"{row.name}: {row.status} {row.note}", "", "")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _profile(layout: Layout, rounds: int) -> None:
    reads = NullReads(layout, N_SHARDS)
    profile = cProfile.Profile()
    with profile:
        for _ in range(rounds):
            reads.run(N_SHARDS)
    print(f"{layout.name}: {rounds} reads of {N_SHARDS} shards")
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    sys.exit(main())
