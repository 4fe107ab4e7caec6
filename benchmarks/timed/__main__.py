"""``python -m benchmarks.timed``: what of a modelled device stands still while the CUDA engine reads to it.

The real CUDA decoder reads shards of several kinds to the modelled device, without dask and by several of its threads,
on a clock that stands still while the engine runs, so runs repeat exactly. Reading a file takes as long as rates say,
on threads that are lent by the rules of `crew`. The host decodes nothing. Run it from the root of the repository.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.machine import about, default_out
from benchmarks.page.tables import timed_table
from benchmarks.runner.results import Results, Row, Sample
from benchmarks.timed.device import ModelledDevice
from benchmarks.timed.headers import header_array
from benchmarks.timed.rates import Rates
from benchmarks.timed.virtual_clock import VirtualClock, VirtualCrew
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.native import library
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.process.waiting import Bell
from xarray_gpuzarr.read import read

_N_BEFORE = 2
"""Reads that make streams and take memory, before the one that counts."""
_N_CORES = 16
_LOOK_S = 50e-6
"""How often waiting threads look whether what they wait for has come; in truth a bell wakes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """An array, so long that beginnings and ends matter little."""

    name: str
    codec: str = "zstd"
    chunk_nbytes: int = 1_024_000
    n_chunks: int
    """Of a shard."""
    n_shards: int


SHARDS = (
    Shards(name="published", n_chunks=400, n_shards=8),
    Shards(name="64 kB chunks", chunk_nbytes=64_000, n_chunks=3200, n_shards=8),
    Shards(name="4 MB chunks", chunk_nbytes=4_096_000, n_chunks=100, n_shards=8),
    Shards(name="raw", codec="raw", n_chunks=100, n_shards=64),
    Shards(name="small shards", n_chunks=4, n_shards=128),
    Shards(name="published, lz4", codec="lz4", n_chunks=400, n_shards=8),
    Shards(name="64 kB chunks, lz4", codec="lz4", chunk_nbytes=64_000, n_chunks=3200, n_shards=8),
    Shards(name="published, gzip", codec="gzip", n_chunks=400, n_shards=8),
)


class Machine:
    """A host and a device whose times are modelled, and an array to read; only inside `running`."""

    def __init__(self, rates: Rates, shards: Shards) -> None:
        self.rates = rates
        self.clock = VirtualClock()
        self.crew = VirtualCrew(self.clock)
        self.device = ModelledDevice(rates, self.clock)
        self.fetches: list[tuple[float, float]] = []
        """When reads of files began and ended, those of indexes not among them."""
        self._decoder = CudaDecoder(lambda: self.device.as_api)
        self._n_shards, self._codec = shards.n_shards, shards.codec
        per_shard, chunk_shape = (shards.n_chunks,), (shards.chunk_nbytes // 4,)
        self._stored = header_array(shards.n_shards, per_shard, chunk_shape, shards.codec, self._spend)

    def _spend(self, nbytes: int, what: str) -> None:
        span = self.crew.spend(self.rates.lane_latency_s + nbytes / self.rates.lane_rate)
        if what == "chunks":
            self.fetches.append(span)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the engine's threads take modelled time inside a ``with`` block."""

        def wait_until(_: Bell, is_so: Any, __: float = 0) -> None:
            while not is_so():
                self.clock.sleep(_LOOK_S)

        with ExitStack() as stack:
            stack.enter_context(patch.multiple(crew, run=self.crew.run, reserve_threads=self.crew.reserve_threads))
            stack.enter_context(patch("xarray_gpuzarr.process.threads.n_cores", lambda: _N_CORES))
            stack.enter_context(patch.object(library, "find", lambda: "frames are only headers"))
            stack.enter_context(patch.object(Bell, "wait_until", wait_until))
            stack.callback(setattr, in_force, "options", in_force.options)
            in_force.choose({"little": "device"})
            stack.callback(self._decoder.close)
            yield

    def timed(self, n_threads: int) -> tuple[float, dict[str, float]]:
        """Return how long threads of dask take that read shard after shard to the device, and what stood still.

        None of them: one read of all.
        """
        self._decoder.close()
        for _ in range(_N_BEFORE):
            self._read(n_threads)
        simulation = self.device.simulation
        assert simulation is not None
        simulation.occupied_s.clear()
        self.fetches.clear()
        self.device.n_decoded = 0
        seconds = self._read(n_threads)
        idle = {
            "decoder idle": 1 - simulation.occupied_s[self._codec] / (seconds * max(1, self.rates.slots[self._codec])),
            "copy engine idle": 1 - simulation.occupied_s["upload"] / seconds,
            "fetch idle": 1 - covered(self.fetches) / seconds,
        }
        return seconds, {resource: round(share, 4) for resource, share in idle.items()}

    def _read(self, n_threads: int) -> float:
        length = self._stored.shape[0] // self._n_shards
        shards = [slice(n * length, (n + 1) * length) for n in range(self._n_shards)]
        selections = iter(shards if n_threads else [...])

        def job() -> None:
            for each in selections:
                read(self._stored, each, self._decoder)

        return self.clock.run([job] * max(1, n_threads))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return how many seconds lie in at least one span."""
    total, until = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(start_s, until))
        until = max(until, end_s)
    return total


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
    for calls, slots in itertools.product(options.calls, options.slots or [None]):
        hardware = replace(rates if slots is None else rates.with_slots(slots), in_turn=calls == "in-turn")
        for shards in chosen:
            _run(shards, hardware, options.threads, results)
    results.finished = True
    results.save()
    print(timed_table(results.cases), *([f"written: {out}"] if out else []), sep="\n")
    return 0


def _run(shards: Shards, rates: Rates, n_threads: Sequence[int], results: Results) -> None:
    """Read one array in every way, on a device of its own."""
    decoder = rates.formats[shards.codec]
    hardware = f"calls {'in turn' if rates.in_turn else 'overlap'}, {decoder.n_at_once} slots"
    name, nbytes = f"timed/{shards.name}, {hardware}", shards.chunk_nbytes * shards.n_chunks * shards.n_shards
    chunks = f"{shards.n_shards} shards x {shards.n_chunks} chunks x {shards.chunk_nbytes / 1e6:.3g} MB"
    description = {"operation": "timed", "modelled": True, "hardware": hardware, "nbytes": nbytes}
    results.begin(name, f"{'no codec' if shards.codec == 'raw' else shards.codec}, {chunks}", description)
    row = Row(case=name, name="", nbytes=nbytes)
    machine = Machine(rates, shards)
    with machine.running():
        for n in (0, *n_threads):
            seconds, facts = machine.timed(n)
            reads = f"{n} thread{'s'[: n > 1]}" if n else "no dask"
            results.sample(replace(row, name=reads, facts=facts), Sample(wall_s=seconds))
    simulation = machine.device.simulation
    assert simulation is not None
    bounds = {
        "decoder": decoder.call_s(machine.device.n_decoded, shards.chunk_nbytes),
        "copy engine": simulation.occupied_s["upload"],
        "fetch": sum(end_s - start_s for start_s, end_s in machine.fetches) / _N_CORES,
    }
    for resource, seconds in bounds.items():  # what each needs at least for what was last asked of it
        results.sample(replace(row, name=resource, side="bare"), Sample(wall_s=seconds))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.timed", description="Let the CUDA engine read to a modelled device."
    )
    parser.add_argument("--case", nargs="+", metavar="PART", help="arrays whose name contains one of these")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8], help="of dask (default 1 2 4 8)")
    parser.add_argument(
        "--calls", nargs="+", choices=("overlap", "in-turn"), default=["overlap"], help="that decode (default overlap)"
    )
    parser.add_argument("--slots", nargs="+", type=int, help="frames that are decoded at once (default: by format)")
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/timed-<date>.json)")
    parser.add_argument("--smoke", action="store_true", help="short arrays; writes JSON only with --out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
