"""``python -m benchmarks.timed``: run it from the root of the repository."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from benchmarks.arrays.stores import cache_directory
from benchmarks.arrays.workloads import Workload
from benchmarks.machine import about
from benchmarks.measure import Session
from benchmarks.results import Results, default_out
from benchmarks.timed.cases import Setup, TimedReads
from benchmarks.timed.device import TimedDevice
from benchmarks.timed.engine import installed
from benchmarks.timed.rates import rates_of
from benchmarks.timed.report import print_hardware, print_timed
from benchmarks.timed.training import TimedTraining
from benchmarks.timed.workloads import FEED, WORKLOADS
from benchmarks.training.feeds import Feed

_SMOKE_SCALE = 1e-4
_MODELLED_CORES = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases; return 1 if something failed, 2 if nothing is named so, else 0."""
    options = _parser().parse_args(arguments)
    known = {w.name: w for w in WORKLOADS} | {FEED.workload.name: FEED}
    chosen = [each for name, each in known.items() if any(word in name for word in options.case or [""])]
    if not chosen:
        print(f"nothing is named like {options.case}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    if options.smoke:
        options.rounds, chosen = 1, [each.scaled(_SMOKE_SCALE) for each in chosen]
    results = _run(chosen, options)
    return int(any(row.status == "failed" for row in results.rows))


def _run(chosen: Sequence[Workload | Feed], options: argparse.Namespace) -> Results:
    modelled_fetch = options.fetch == "modelled"
    n_cores = options.cores or (_MODELLED_CORES if modelled_fetch else None)
    rates, console = rates_of(options.rates), Console(width=None if sys.stdout.isatty() else 160)
    settings = {"case": options.case, "rounds": options.rounds, "fetch": options.fetch, "cores": n_cores}
    description = about("benchmarks.timed", settings) | {"modelled": True, "rates": asdict(rates)}
    out = options.out or (
        None if options.smoke else default_out("timed" if options.fetch == "real" else "timed-modelled-fetch")
    )
    results = Results(description, out)
    with console.status("") as status:
        session = Session(results, n_rounds=options.rounds, progress=status.update)
        for calls, slots in itertools.product(options.calls, options.slots or [rates.n_decoding]):
            device = TimedDevice(replace(rates, in_turn=calls == "in-turn", n_decoding=slots))
            with installed(device, n_cores) as decoder:
                setup = Setup(
                    device=device,
                    decoder=decoder,
                    folder=cache_directory(),
                    n_threads=options.threads,
                    modelled_fetch=modelled_fetch,
                )
                for each in chosen:
                    timed = TimedTraining(setup, each) if isinstance(each, Feed) else TimedReads(setup, each)
                    print_timed(session.run(timed.case), console)
    print_hardware(results.cases, console)
    results.finished = True
    results.save()
    if out is not None:
        console.print(f"written: {out}")
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.timed", description="Let the CUDA engine read to a modelled device."
    )
    parser.add_argument("--case", nargs="+", metavar="PART", help="workloads whose name contains one of these")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8], help="of dask (default 1 2 4 8)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--fetch", choices=("real", "modelled"), default="real", help="modelled: files cost no core")
    parser.add_argument("--cores", type=int, help="cores that the engine believes to have (modelled fetch: 16)")
    parser.add_argument(
        "--calls", nargs="+", choices=("overlap", "in-turn"), default=["overlap"], help="that decode (default overlap)"
    )
    parser.add_argument("--slots", nargs="+", type=int, help="chunks that are decoded at once (default 528)")
    parser.add_argument("--rates", type=Path, help="results of benchmarks.gpu.saturation (default: what is assumed)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/timed-<date>.json)")
    parser.add_argument("--smoke", action="store_true", help="tiny data, one round; writes JSON only with --out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
