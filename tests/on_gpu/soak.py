"""``python -m on_gpu.soak``: random arrays, selections, threads and budgets, until the time is over.

Every result is compared with NumPy's. What process and device hold at rest is noted after every round; it must not
grow once the first part of the time is over. A seed makes a round again: ``--seed``.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arrays.compressors import INNER_CODECS, SHUFFLES
from benchmarks.arrays.workloads import SERIES, VOLUME, Workload
from benchmarks.gpu.command import Command, MakeGpu
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.stores import Stored, write
from benchmarks.machine import GPU_PACKAGES, HOST_PACKAGES, about, default_out
from benchmarks.runner.readers import AbsentError
from xarray_gpuzarr import configure, read_array

_MIB = 2**20
_WARM_SHARE = 0.4
"""Share of the time after which memory must not grow."""
_GROWTH_NBYTES = 64 * _MIB
"""What it may grow all the same: pools round up, and heaps of threads come and go."""
_STATUS = Path("/proc/self/status")


@dataclass(slots=True)
class Found:
    """What a soak has seen."""

    n_rounds: int = 0
    n_reads: int = 0
    nbytes: int = 0
    """Decoded."""
    failures: list[str] = field(default_factory=list)
    at_rest: list[tuple[float, int, int]] = field(default_factory=list)
    """Share of the time that was over; resident host memory and used device memory at rest, bytes."""

    def growth(self) -> tuple[int, int]:
        """Return by how much the most host and device memory at rest grew after the first part of the time."""
        return self._growth(1), self._growth(2)

    def _growth(self, column: int) -> int:
        early = [int(row[column]) for row in self.at_rest if row[0] <= _WARM_SHARE]
        late = [int(row[column]) for row in self.at_rest if row[0] > _WARM_SHARE]
        return max(late) - max(early) if early and late else 0

    @property
    def is_flat(self) -> bool:
        """Whether neither grew."""
        return max(self.growth()) <= _GROWTH_NBYTES


def random_workload(rng: np.random.Generator, scale: float) -> Workload:
    """Draw an array of at most some tens of MB."""
    codecs = ["none", "zstd 3", "gzip 5", "lz4", "zlib 5"]
    codecs += [f"blosc {cname} 5 {shuffle}" for cname in INNER_CODECS for shuffle in SHUFFLES]
    codec = codecs[rng.integers(len(codecs))]
    if rng.random() < 0.5:
        chunk = max(16, round(int(rng.integers(1000, 300_000)) * scale))
        per_shard, n_shards = int(rng.integers(1, 20)), int(rng.integers(1, 4))
        whole = chunk * per_shard
        return replace(
            SERIES, name="s", summary="", shape=(whole * n_shards,), chunks=(chunk,), shards=(whole,), codec=codec
        )
    chunks = tuple(max(2, round(int(n) * scale ** (1 / 3))) for n in rng.integers(4, 48, 3))
    shards = tuple(int(n) * chunk for n, chunk in zip(rng.integers(1, 4, 3), chunks, strict=True))
    shape = tuple(int(n) * shard for n, shard in zip(rng.integers(1, 3, 3), shards, strict=True))
    return replace(VOLUME, name="v", summary="", shape=shape, chunks=chunks, shards=shards, codec=codec)


def random_selection(rng: np.random.Generator, shape: Sequence[int]) -> tuple[Any, ...]:
    """Draw an outer selection: slices with steps, single elements, lists of elements."""
    chosen: list[Any] = []
    for axis, n in enumerate(shape):
        kind = rng.integers(4)
        low, high = sorted(rng.integers(0, n + 1, 2).tolist())
        if kind == 0:
            chosen.append(slice(None))
        elif kind == 1:
            chosen.append(slice(low, high, int(rng.integers(1, 4))))
        elif kind == 2 and axis > 0:  # something is left to compare
            chosen.append(int(rng.integers(n)))
        else:
            chosen.append(np.sort(rng.integers(0, n, min(n, 50))))
    return tuple(chosen)


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    """Draw budgets for reads."""
    return {
        "slot_nbytes": int(rng.choice([64 * 1024, _MIB, 16 * _MIB, 64 * _MIB])),
        "n_slots": int(rng.integers(2, 5)),
        "batch_nbytes": int(rng.choice([_MIB, 32 * _MIB, 512 * _MIB])),
        "batch_chunks": int(rng.choice([1, 64, 528])),
    }


def run_round(gpu: Gpu, seed: int, folder: Path, scale: float, found: Found) -> None:
    """Write an array, read it in several ways on several threads, and compare."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng, scale)
    options = random_options(rng)
    configure(little="device", **options)  # otherwise the host decodes reads of a few chunks
    stored = write(workload, folder)
    values = workload.values()
    selections = [(...,), *(random_selection(rng, workload.shape) for _ in range(int(rng.integers(2, 8))))]
    n_threads = int(rng.integers(1, 5))
    with ThreadPoolExecutor(n_threads) as threads:
        said = list(threads.map(lambda selection: _differs(gpu, stored, values, selection), selections))
    for selection, difference in zip(selections, said, strict=True):
        if difference:
            found.failures.append(
                f"--seed {seed}: {workload}, {options}, {n_threads} threads, {selection}: {difference}"
            )
    found.n_rounds += 1
    found.n_reads += len(selections)
    found.nbytes += len(selections) * workload.nbytes


def _differs(gpu: Gpu, stored: Stored, values: np.ndarray[Any, Any], selection: tuple[Any, ...]) -> str:
    """Read a selection; say what is wrong, empty if nothing is."""
    try:
        result = read_array(open_array(stored), selection, device=gpu.device)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "" if gpu.same(result, gpu.put(_outer(values, selection))) else "other values"


def _outer(values: np.ndarray[Any, Any], selection: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Return what NumPy selects axis by axis."""
    if selection[0] is ...:
        return values
    for axis in range(values.ndim - 1, -1, -1):
        values = values[(slice(None),) * axis + (selection[axis],)]
    return np.ascontiguousarray(values)


def at_rest(gpu: Gpu) -> tuple[int, int]:
    """Return resident host memory and used device memory, once nothing is under way and pools have given back."""
    gc.collect()
    gpu.synchronize()
    gpu.tidy()
    gpu.forget()
    free, total = gpu.api.memory_nbytes()
    return _resident_nbytes(), total - free


def _resident_nbytes() -> int:
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def soak(gpu: Gpu, *, seconds: float, seed: int, scale: float) -> Found:
    """Run rounds until the time is over, at least two; one more begins only while there is time."""
    found, start = Found(), time.monotonic()
    for number in itertools.count(seed):
        over = (time.monotonic() - start) / max(seconds, 1e-9)
        if over >= 1 and found.n_rounds > 1:
            break
        with tempfile.TemporaryDirectory(prefix="gpuzarr-soak-") as folder:
            run_round(gpu, number, Path(folder), scale, found)
        found.at_rest.append((min(over, 1.0), *at_rest(gpu)))
    configure()
    return found


COMMAND = Command(
    module="on_gpu.soak",
    kind="soak",
    description="Read random arrays until the time is over; values right, memory flat.",
    seconds=180.0,
    cases=lambda _gpu, _folder, _scale: [],
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = Gpu) -> int:
    """Soak; return 1 if a value was wrong or memory grew, 2 if there is no GPU, else 0."""
    parser = COMMAND.parser()
    parser.add_argument("--seed", type=int, default=0, help="number of the first round (0)")
    options = parser.parse_args(arguments)
    try:
        gpu = make_gpu()
    except AbsentError as error:
        print(error, file=sys.stderr)
        return 2
    found = soak(gpu, seconds=options.seconds, seed=options.seed, scale=options.scale)
    host, device = found.growth()
    print(f"{found.n_rounds} rounds, {found.n_reads} reads, {found.nbytes / 1e9:.2f} GB decoded")
    print(f"memory at rest grew by {host / _MIB:.1f} MiB on the host, {device / _MIB:.1f} MiB on the device")
    for failure in found.failures[:20]:
        print(failure)
    settings = {"seconds": options.seconds, "seed": options.seed, "scale": options.scale}
    document = about(COMMAND.module, settings, (*HOST_PACKAGES, *GPU_PACKAGES)) | {"gpu": gpu.about()}
    document |= {"rounds": found.n_rounds, "reads": found.n_reads, "failures": found.failures, "at_rest": found.at_rest}
    out = options.out or default_out(COMMAND.kind)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    return int(bool(found.failures) or not found.is_flat)


if __name__ == "__main__":
    sys.exit(main())
