"""``python -m benchmarks.timed.auto``: is a read that both sides share ever slower than on the better side alone.

The real CUDA decoder, its decision included, and the real host decoder read to the modelled device by a clock that
stands still while they run. Reading a file and decoding a chunk on the host take as long as rates say, on threads that
are lent by the rules of `crew`. Reads are shared by what those before have taken, or by a calibration.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.timed.device import ModelledDevice
from benchmarks.timed.headers import HeaderStore, header_array
from benchmarks.timed.rates import Rates as DeviceRates
from benchmarks.timed.rates import rates_of
from benchmarks.timed.virtual_clock import VirtualClock, VirtualCrew
from xarray_gpuzarr.cuda import joint_calls
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.decoders.cost.calibration import as_document
from xarray_gpuzarr.decoders.cost.model import Calibration, CodecTimes
from xarray_gpuzarr.decoders.cuda import decoder as cuda
from xarray_gpuzarr.decoders.cuda.batches import learnt
from xarray_gpuzarr.decoders.cuda.staging import host_share
from xarray_gpuzarr.decoders.host.codecs import ChunkCodec
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.fetch import Allocate, Pending, Request
from xarray_gpuzarr.machine.diagnosis.rates import Rates
from xarray_gpuzarr.machine.diagnosis.sweep import Grid, codec_times
from xarray_gpuzarr.native import library
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.process.waiting import Bell
from xarray_gpuzarr.read import StoredArray, read
from xarray_gpuzarr.stored.cf import Cast

N_CORES = 16
CODECS = {"zstd": 0.7e9, "lz4": 2.5e9}
"""Decoded bytes a second of a thread of the host, all threads alike; assumed."""
_LOOK_S = 50e-6
"""Who waits for other threads looks so often whether they have come; rung for, in truth."""
_COPY_RATE = 8e9
"""Bytes a second from ordinary to pinned host memory, on one thread; assumed."""
N_THREADS = (1, 2, 4, 8)
BETWEEN_NBYTES = (16_384, 40_000, 131_072, 524_288, 1_048_576, 3_000_000)
"""Chunks that are read: some of a length that the calibration knows, most between."""
BETWEEN_N = (1, 6, 24, 48, 100, 300, 768, 2000)
_N_READS = 6
"""Of each thread."""
_N_LEARNING = 4
"""Reads of each thread that learn, before those that are compared."""
_HOST_CHUNKS = 8
GRID = Grid()
MOST_SLOWER = {"learnt": 1.03, "calibrated": 1.05}
"""Of auto, over the better side, by what it goes by."""
SIDES = ("device", "host", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What is read, and by how many."""

    codec: str
    chunk_nbytes: int
    n_chunks: int
    """Of a shard."""
    n_threads: int
    """Of dask: each reads one shard after another."""
    n_shards: int = 1
    """That a read is of."""

    @property
    def host_s(self) -> float:
        """Return what threads of the host need to decode all chunks of such reads."""
        nbytes = self.n_threads * self.n_shards * self.n_chunks * self.chunk_nbytes
        return nbytes / CODECS[self.codec] / N_CORES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Reads of one layout."""

    layout: Layout
    seconds: dict[str, float]
    """By side."""
    n_host: float
    """Chunks that the host decoded in a shared read, on average."""
    first_s: float = 0.0
    """The first read of each thread, of which nothing is known."""

    @property
    def slower(self) -> float:
        """Return the time of shared reads over that of the better side."""
        return self.seconds["auto"] / min(self.seconds["device"], self.seconds["host"])


class Machine:
    """A host and a device whose times are modelled; only inside `running`."""

    def __init__(self, rates: DeviceRates | None = None) -> None:
        self.clock = VirtualClock()
        self.crew = VirtualCrew(self.clock)
        self.rates = rates or DeviceRates()
        self.device = ModelledDevice(self.rates, self.clock)
        self.decoder = cuda.CudaDecoder(lambda: self.device.as_api)
        self._host: Decoder = HostDecoder()
        self._codec = "zstd"
        """Of the array that was last made."""
        self.n_decoded = 0
        """Chunks that the host has decoded."""
        self.fetches: list[tuple[float, float]] = []
        """When reads of files began and ended, those of indexes not among them."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the engine's threads, codecs and copies take modelled time inside a ``with`` block."""
        with ExitStack() as stack:
            stack.enter_context(patch.multiple(crew, run=self.crew.run, taking=self.crew.taking))
            stack.enter_context(patch("xarray_gpuzarr.process.threads.n_cores", lambda: N_CORES))
            stack.enter_context(patch.object(library, "_found", lambda: "frames are only headers"))
            stack.enter_context(patch.object(ChunkCodec, "into", lambda *chunk: self._decode(*chunk)))  # noqa: PLW0108  # binds the codec
            stack.enter_context(patch.object(cuda, "upload_pageable", self._upload))
            stack.enter_context(patch.object(Bell, "wait_until", lambda _, is_so, __=0: self._wait_until(is_so)))
            for module in (cuda, host_share, joint_calls, learnt):
                stack.enter_context(patch.object(module, "perf_counter", self.clock.now))
            stack.callback(setattr, in_force, "options", in_force.options)
            stack.callback(self.decoder.close)
            yield

    def seconds(
        self, side: str, stored: StoredArray, n_threads: int = 1, n_reads: int = 1, *, uploads: bool = True
    ) -> float:
        """Return how long threads take that each read an array so many times."""
        decoder = self._host if side == "host" else self.decoder

        def job() -> None:
            for _ in range(n_reads):
                result = read(stored, ..., decoder)
                if side == "host" and uploads:
                    self.decoder.upload(result, stored.cast)

        return self.clock.run([job] * n_threads)

    def by_shards(self, stored: StoredArray, n_shards: int, n_threads: int) -> float:
        """Return how long threads of dask take that read shard after shard to the device; none of them: one read."""
        length = stored.shape[0] // n_shards
        wanted = iter([slice(n * length, (n + 1) * length) for n in range(n_shards)] if n_threads else [...])

        def job() -> None:
            for each in wanted:
                read(stored, each, self.decoder)

        return self.clock.run([job] * max(1, n_threads))

    def stored(self, codec: str, chunk_nbytes: int, n_chunks: int, n_shards: int = 1) -> StoredArray:
        """Return an array of shards of so many chunks."""
        machine, rates, self._codec = self, self.rates, codec

        class Store(HeaderStore):
            def start_edge(self, key: str, location: str, nbytes: int) -> Any:
                finish = super().start_edge(key, location, nbytes)

                def timed() -> Any:
                    machine.crew.spend(rates.lane_s(nbytes))
                    return finish()

                return timed

            def start(self, requests: Sequence[Request], version: object = None) -> Pending:
                finish = super().start(requests, version)

                def timed(allocate: Allocate) -> list[memoryview | None]:
                    for _, wanted in requests:
                        machine.fetches.append(machine.crew.spend(rates.lane_s(wanted.nbytes)))
                    return finish(allocate)

                return timed

        return header_array(n_shards, (n_chunks,), (chunk_nbytes // 4,), codec, Store)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.clock.sleep(_LOOK_S)

    def _decode(self, _codec: ChunkCodec, _encoded: memoryview, decoded: memoryview) -> None:
        self.n_decoded += 1
        self.crew.spend(len(decoded) / CODECS[self._codec])

    def _upload(self, workspace: Any, to: int, runs: Sequence[memoryview]) -> None:
        """Take the time of `image.upload_pageable`, and copy nothing."""
        for run in runs:
            for first in range(0, len(run), workspace.options.slot_nbytes):
                nbytes = min(workspace.options.slot_nbytes, len(run) - first)
                slot = workspace.lend_slot(nbytes)
                self.clock.sleep(nbytes / _COPY_RATE)
                workspace.upload(Address(to + first), slot.array[:nbytes], workspace.copy)
                slot.give_back(workspace.copy)

    def calibrated(self, codecs: Sequence[str]) -> Calibration:
        """Return what a sweep of either side says, as `diagnosis.sweep` does of a machine's."""
        short, long = (self.uploading_s(nbytes) for nbytes in (4096, GRID.upload_nbytes))
        return Calibration(
            gpu="a modelled device",
            date="modelled",
            upload_seconds=short,
            upload_rate=GRID.upload_nbytes / (long - short),
            codecs={codec: self._times(codec) for codec in codecs},
        )

    def uploading_s(self, nbytes: int) -> float:
        """Return how long an upload from ordinary host memory takes."""
        block = np.empty(nbytes, np.uint8)
        return self.clock.run([lambda: self.decoder.upload(block, Cast(dtype="|u1"))])

    def _times(self, codec: str) -> CodecTimes:
        seconds, rates = {}, {}
        for nbytes in GRID.chunk_nbytes:
            most = min(GRID.n_chunks[-1], GRID.most_nbytes // nbytes)
            for n in (n for n in GRID.n_chunks if n <= most):
                seconds[nbytes, n] = self.seconds("device", self.stored(codec, nbytes, n))
            with patch("xarray_gpuzarr.process.threads.n_cores", lambda: 1):
                alone_s = self.seconds("host", self.stored(codec, nbytes, _HOST_CHUNKS), uploads=False)
            every_s = self.seconds("host", self.stored(codec, nbytes, most), uploads=False)
            rates[nbytes] = Rates(alone=_HOST_CHUNKS * nbytes / alone_s, every=most * nbytes / every_s)
        return codec_times(seconds, rates)


def sweep(
    codecs: Sequence[str],
    chunk_nbytes: Sequence[int],
    n_chunks: Sequence[int],
    n_threads: Sequence[int],
    rates: DeviceRates | None = None,
    *,
    by: str = "learnt",
    shards: Sequence[int] = (),
) -> Iterator[Cell]:
    """Read every layout by the device, by the host, and shared; of as many `shards` as well."""
    machine = Machine(rates)
    with machine.running(), TemporaryDirectory() as folder:
        path = None
        if by == "calibrated":
            in_force.choose({"calibration": "off"})
            path = Path(folder) / "calibration.json"
            path.write_text(json.dumps(as_document(machine.calibrated(codecs))))
        layouts = itertools.product(codecs, chunk_nbytes, n_chunks, n_threads)
        for codec, nbytes, n, k in layouts:
            for n_shards in (1, *shards):
                layout = Layout(codec=codec, chunk_nbytes=nbytes, n_chunks=n, n_threads=k, n_shards=n_shards)
                if n * nbytes <= GRID.most_nbytes:
                    yield _cell(machine, path and str(path), layout)


def _cell(machine: Machine, calibration: str | None, layout: Layout) -> Cell:
    stored = machine.stored(layout.codec, layout.chunk_nbytes, layout.n_chunks, layout.n_shards)
    n_threads, seconds, first_s = layout.n_threads, dict[str, float](), 0.0
    learnt.learnt_of(machine.device.as_api).taken.clear()
    for side in SIDES:
        in_force.choose({"calibration": calibration if side == "auto" else "off"})
        machine.decoder.close()  # here, where no thread waits for the clock
        if side == "host" and layout.n_shards > 1:  # gigabytes, that would be there in truth
            seconds[side] = layout.host_s
            continue
        if side == "auto":
            first_s = machine.seconds(side, stored, n_threads)
            machine.seconds(side, stored, n_threads, _N_LEARNING)
        machine.n_decoded = 0
        seconds[side] = machine.seconds(side, stored, n_threads, _N_READS) / _N_READS
    return Cell(layout=layout, seconds=seconds, n_host=machine.n_decoded / n_threads / _N_READS, first_s=first_s)


def print_sweep(cells: Sequence[Cell], console: Console) -> None:
    """Print a table for each codec and number of threads: auto's time over the better side's, by chunks and length."""
    for codec, k in dict.fromkeys((cell.layout.codec, cell.layout.n_threads) for cell in cells):
        found = [c for c in cells if (c.layout.codec, c.layout.n_threads) == (codec, k)]
        numbers = sorted({c.layout.n_chunks for c in found})
        console.print(f"{codec}, {k} thread{'s'[: k > 1]}: auto's time over the better side's", style="bold")
        table = Table("bytes of a chunk", *(f"{n}" for n in numbers))
        for nbytes in sorted({c.layout.chunk_nbytes for c in found}):
            by_n = {c.layout.n_chunks: c for c in found if c.layout.chunk_nbytes == nbytes}
            table.add_row(f"{nbytes:,}", *(_said(by_n[n]) if n in by_n else "" for n in numbers))
        console.print(table)


def _said(cell: Cell) -> str:
    who = {0.0: "device", float(cell.layout.n_chunks): "host"}.get(cell.n_host, f"{cell.n_host:.0f} host")
    return f"{cell.slower:.2f} ({who})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sweep; return 1 if a read by the calibration was slower than it may be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timed.auto", description=__doc__)
    parser.add_argument("--codec", nargs="+", choices=tuple(CODECS), default=list(CODECS))
    parser.add_argument("--threads", nargs="+", type=int, default=N_THREADS, help="of dask (default 1 2 4 8)")
    parser.add_argument("--rates", type=Path, help="results of benchmarks.gpu.saturation (default: what is assumed)")
    parser.add_argument("--calls", nargs="+", choices=("overlap", "in-turn"), default=["overlap"], help="that decode")
    parser.add_argument("--by", choices=tuple(MOST_SLOWER), default="learnt", help="what shared reads go by")
    parser.add_argument("--shards", nargs="+", type=int, default=(), help="that a read is of (default 1)")
    parser.add_argument("--lengths", nargs="+", type=int, default=BETWEEN_NBYTES, help="bytes of a chunk")
    parser.add_argument("--chunks", nargs="+", type=int, default=BETWEEN_N, help="of a shard")
    options = parser.parse_args(arguments)
    return max(_main(options, in_turn=calls == "in-turn") for calls in options.calls)


def _main(options: argparse.Namespace, *, in_turn: bool) -> int:
    most_slower = MOST_SLOWER[options.by]
    rates = replace(rates_of(options.rates), in_turn=in_turn)
    print(rates.hardware)
    layouts = options.codec, options.lengths, options.chunks, options.threads
    cells = list(sweep(*layouts, rates, by=options.by, shards=options.shards))
    print_sweep(cells, Console(width=None if sys.stdout.isatty() else 200))
    late = [cell for cell in cells if cell.slower > most_slower]
    print(f"{len(cells)} layouts; more than {most_slower - 1:.0%} slower than the better side: {len(late)}")
    for cell in late:
        print(f"  {cell.layout}: {cell.slower:.2f}", {side: f"{s * 1e3:.3g} ms" for side, s in cell.seconds.items()})
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
