"""``python -m benchmarks.timed``: what of a modelled device stands still while the CUDA engine reads to it.

Shards of several kinds, without dask and by several of its threads, on the clock of `machine`: it stands still
while the engine runs, so runs repeat exactly. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.machine import about, default_out
from benchmarks.page.tables import timed_table
from benchmarks.runner.results import Results, Row, Sample
from benchmarks.timed.bounds import call_s, decoding_bound, idle_shares
from benchmarks.timed.machine import N_CORES, Machine
from benchmarks.timed.rates import Rates
from xarray_gpuzarr.read import StoredArray

NO_DASK = "no dask"
_N_BEFORE = 2
"""Reads that make streams and take memory, before the one that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """An array, so long that beginnings and ends matter little."""

    name: str
    codec: str = "zstd"
    chunk_nbytes: int = 1_024_000
    n_chunks: int
    """Of a shard."""
    n_shards: int

    @property
    def nbytes(self) -> int:
        """Decoded bytes."""
        return self.chunk_nbytes * self.n_chunks * self.n_shards

    @property
    def summary(self) -> str:
        """One line for the report."""
        codec = "no codec" if self.codec == "none" else self.codec
        return f"{codec}, {self.n_shards} shards x {self.n_chunks} chunks x {self.chunk_nbytes / 1e6:.3g} MB"


SHARDS = (
    Shards(name="published", n_chunks=400, n_shards=8),
    Shards(name="64 kB chunks", chunk_nbytes=64_000, n_chunks=3200, n_shards=8),
    Shards(name="4 MB chunks", chunk_nbytes=4_096_000, n_chunks=100, n_shards=8),
    Shards(name="raw", codec="none", n_chunks=100, n_shards=64),
    Shards(name="small shards", n_chunks=4, n_shards=128),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the chosen arrays; return 2 if nothing is named so, else 0."""
    options = _parser().parse_args(arguments)
    chosen = [each for each in SHARDS if any(word in each.name for word in options.case or [""])]
    if not chosen:
        print(f"nothing is named like {options.case}; known: {', '.join(s.name for s in SHARDS)}", file=sys.stderr)
        return 2
    if options.smoke:
        chosen = [replace(each, n_shards=2, n_chunks=min(each.n_chunks, 8)) for each in chosen]
    rates = Rates()
    description = about("benchmarks.timed", {"case": options.case, "rounds": 1})
    out = options.out or (None if options.smoke else default_out("timed"))
    results = Results(description | {"modelled": True, "rates": asdict(rates)}, out)
    for calls, slots in itertools.product(options.calls, options.slots or [rates.n_decoding]):
        hardware = replace(rates, in_turn=calls == "in-turn", n_decoding=slots)
        for shards in chosen:
            _run(shards, hardware, options.threads, results)
    results.finished = True
    results.save()
    print(timed_table(results.cases), *([f"written: {out}"] if out else []), sep="\n")
    return 0


def _run(shards: Shards, rates: Rates, n_threads: Sequence[int], results: Results) -> None:
    """Read one array in every way, on a device of its own."""
    name = f"timed/{shards.name}, {rates.hardware}"
    description = {"operation": "timed", "modelled": True, "hardware": rates.hardware, "nbytes": shards.nbytes}
    results.begin(name, shards.summary, description)
    row = Row(case=name, name="", nbytes=shards.nbytes)
    machine = Machine(rates)
    with machine.running():
        stored = machine.stored(shards.codec, shards.chunk_nbytes, shards.n_chunks, shards.n_shards)
        for n in (0, *n_threads):
            seconds, facts = _timed(machine, stored, shards, n)
            reads = f"{n} thread{'s'[: n > 1]}" if n else NO_DASK
            results.sample(replace(row, name=reads, facts=facts), Sample(wall_s=seconds))
        for resource, seconds in _bounds(machine):
            results.sample(replace(row, name=resource, side="bare"), Sample(wall_s=seconds))


def _timed(machine: Machine, stored: StoredArray, shards: Shards, n_threads: int) -> tuple[float, Mapping[str, float]]:
    """Return how long one read takes, by so many threads of dask, and what stood still."""
    machine.decoder.close()
    for _ in range(_N_BEFORE):
        machine.by_shards(stored, shards.n_shards, n_threads)
    device = machine.device
    assert device.simulation is not None
    for noted in (device.simulation.intervals, device.decoded, machine.fetches):
        noted.clear()
    start_s = machine.clock.now()
    seconds = machine.by_shards(stored, shards.n_shards, n_threads)
    span = start_s, start_s + seconds
    idle = idle_shares(device.simulation.intervals, machine.fetches, span, machine.rates.slots)
    return seconds, {f"{resource} idle": round(share, 4) for resource, share in idle.items()}


def _bounds(machine: Machine) -> Iterator[tuple[str, float]]:
    """Return the seconds that each resource needs at least for what was last asked of it."""
    rates, simulation = machine.rates, machine.device.simulation
    assert simulation is not None
    decoding = call_s if rates.in_turn else decoding_bound
    yield "decoder", decoding(machine.device.decoded, rates.n_decoding)
    # Kernels that follow the blocks of zstd frames only wait.
    for resource, what, wait_s in (("copy engine", "upload", 0.0), ("kernels", "kernel", rates.kernel_latency_s)):
        intervals = [i for i in simulation.intervals if i.resource == what and i.what != "zstd_blocks"]
        yield resource, sum(i.end_s - i.start_s - wait_s for i in intervals)
    yield "fetch", sum(end_s - start_s for start_s, end_s in machine.fetches) / N_CORES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.timed", description="Let the CUDA engine read to a modelled device."
    )
    parser.add_argument("--case", nargs="+", metavar="PART", help="arrays whose name contains one of these")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8], help="of dask (default 1 2 4 8)")
    parser.add_argument(
        "--calls", nargs="+", choices=("overlap", "in-turn"), default=["overlap"], help="that decode (default overlap)"
    )
    parser.add_argument("--slots", nargs="+", type=int, help="chunks that are decoded at once (default 528)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/timed-<date>.json)")
    parser.add_argument("--smoke", action="store_true", help="short arrays; writes JSON only with --out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
