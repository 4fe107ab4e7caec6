"""``python -m benchmarks.gpu.tune``: where the device pays, and which budgets suit it; writes its calibration.

Sweeps chunks of a read against their length, on both sides, for each codec; then the options of `configure`, one at a
time, on the blog's array. To use the calibration: ``configure(calibration=...)`` or ``XARRAY_GPUZARR_CALIBRATION``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.calibrate import calibration_of
from benchmarks.gpu.cases import Cases
from benchmarks.gpu.command import Command, MakeGpu, default_out, exit_status
from benchmarks.gpu.configured import seconds_with
from benchmarks.gpu.device import Gpu, NativeGpu
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.sweep import CODECS, sweep
from benchmarks.gpu_figures import device_over_host
from benchmarks.measure import Case, Contestant, Ready
from benchmarks.report import print_case
from benchmarks.results import CaseRows, Results
from xarray_gpuzarr import configure, read_array
from xarray_gpuzarr.decoders.calibration import as_document

_MIB = 2**20
_IN_FORCE = "XARRAY_GPUZARR_CALIBRATION"
KNOBS: Mapping[str, Sequence[int]] = {
    "batch_chunks": (128, 256, 384, 512, 1024),
    "batch_nbytes": (32 * _MIB, 64 * _MIB, 128 * _MIB, 256 * _MIB, 512 * _MIB),
    "slot_nbytes": (8 * _MIB, 16 * _MIB, 32 * _MIB, 64 * _MIB, 128 * _MIB),
    "n_slots": (2, 3, 4, 6),
}


def cases(gpu: Gpu, folder: Path, scale: float) -> list[Case]:
    """Return the sweep, then the budgets."""
    return [*sweep(gpu, folder, scale), *_knobs(gpu, folder, scale)]


def _knobs(gpu: Gpu, folder: Path, scale: float) -> Iterator[Case]:
    scene = Cases(gpu, folder, scale).blog
    for option, values in KNOBS.items():

        def contestants(option: str = option, values: Sequence[int] = values) -> list[Contestant]:
            array = open_array(scene.stored)

            def prepare(value: int) -> Ready:
                run = functools.partial(read_array, array, device=gpu.device)
                return Ready(measure=lambda: seconds_with(gpu, run, **{option: value}))

            return [
                Contestant(name=f"{value:,}", nbytes=scene.workload.nbytes, prepare=functools.partial(prepare, value))
                for value in values
            ]

        yield Case(name=option, summary="the blog's array, read_array", seconds=8, contestants=contestants)


COMMAND = Command(
    module="benchmarks.gpu.tune",
    kind="tune",
    description="Sweep chunks and budgets; write this machine's calibration.",
    seconds=240.0,
    rounds=3,
    cases=cases,
    tables=False,
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = NativeGpu) -> int:
    """Measure, and write results and calibration; return 1 if something failed, 2 if there is no GPU, else 0."""
    parser = COMMAND.parser()
    parser.add_argument("--calibration", type=Path, help="file to write (calibration.json beside the results)")
    options = parser.parse_args(arguments)
    os.environ.pop(_IN_FORCE, None)  # an earlier one would decide where "device" decodes
    configure()
    results = COMMAND.run(options, make_gpu)
    if results is not None:
        out = options.calibration or (options.out or default_out(COMMAND.kind)).with_name("calibration.json")
        _print(results.cases)
        _write(results, out)
    return exit_status(results)


def _print(found: Sequence[CaseRows]) -> None:
    """Print the sweep, a table for each codec: the device's time over the host's, by chunks and their length."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    for codec in CODECS:
        of_codec = [
            c for c in found if c.about.get("codec") == codec and c.row("device") and c.row("host, then upload")
        ]
        numbers = sorted({c.about["n_chunks"] for c in of_codec})
        console.print(f"{codec}: time on the device over the host's; below 1 the device pays", style="bold")
        table = Table("bytes of a chunk", *(f"{n} chunks" for n in numbers))
        for nbytes in sorted({c.about["chunk_nbytes"] for c in of_codec}):
            by_n = {c.about["n_chunks"]: device_over_host(c) for c in of_codec if c.about["chunk_nbytes"] == nbytes}
            table.add_row(f"{nbytes:,}", *(f"{by_n[n]:.2f}" if n in by_n else "" for n in numbers))
        console.print(table)
    for option in KNOBS:
        case = next((c for c in found if c.name == option), None)
        if case is not None:
            print_case(case, console)


def _write(results: Results, out: Path) -> None:
    gpu: Any = results.about["gpu"]
    calibration = calibration_of(results.cases, gpu["name"])
    if calibration is None:
        print("no calibration: the sweep has not run", file=sys.stderr)
        return
    out.write_text(json.dumps(as_document(calibration), indent=1) + "\n")
    print(f"written: {out}; to use it: XARRAY_GPUZARR_CALIBRATION={out}")


if __name__ == "__main__":
    sys.exit(main())
