"""``python -m benchmarks.gpu.tune``: which budgets suit a GPU: the options of `configure`, one at a time.

On the blog's array. ``gpuzarr doctor --calibrate`` measures which reads the device is to decode.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cases import Cases
from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.readers import open_array
from xarray_gpuzarr import configure, read_array
from xarray_gpuzarr.machine.bench.results import Sample
from xarray_gpuzarr.machine.bench.session import Case, Contestant, Ready

_MIB = 2**20
_IN_FORCE = "XARRAY_GPUZARR_CALIBRATION"
KNOBS: Mapping[str, Sequence[int]] = {
    "batch_chunks": (132, 264, 528, 1056, 2112),
    "batch_nbytes": (32 * _MIB, 64 * _MIB, 128 * _MIB, 256 * _MIB, 512 * _MIB),
    "slot_nbytes": (8 * _MIB, 16 * _MIB, 32 * _MIB, 64 * _MIB, 128 * _MIB),
    "n_slots": (2, 3, 4, 6),
}


def cases(gpu: Gpu, folder: Path, scale: float) -> Iterator[Case]:
    """Return a case for each budget."""
    reads = Cases(gpu, folder, scale).blog
    for option, values in KNOBS.items():

        def contestants(option: str = option, values: Sequence[int] = values) -> list[Contestant]:
            array = open_array(reads.stored)

            def prepare(value: int) -> Ready:
                run = functools.partial(read_array, array, device=gpu.device)
                return Ready(measure=lambda: seconds_with(gpu, run, **{option: value}))

            return [
                Contestant(name=f"{value:,}", nbytes=reads.workload.nbytes, prepare=functools.partial(prepare, value))
                for value in values
            ]

        yield Case(name=option, summary="the blog's array, read_array", seconds=8, contestants=contestants)


def seconds_with(gpu: Gpu, run: Callable[[], Any], **options: Any) -> Sample:
    """Return how long a read takes with options of `configure`, which are put back.

    A read before it warms up: other options make streams and pinned memory anew, and that is not what is asked.
    """
    configure(**{"calibration": "off"} | options)
    try:
        run()
        return wall_seconds(gpu, run)
    finally:
        configure()


COMMAND = Command(
    module="benchmarks.gpu.tune",
    kind="tune",
    description="Compare budgets of reads.",
    seconds=60.0,
    rounds=3,
    cases=cases,
)


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = Gpu) -> int:
    """Measure; return 1 if something failed, 2 if there is no GPU, else 0."""
    options = COMMAND.parser().parse_args(arguments)
    os.environ[_IN_FORCE] = "off"  # it would decide where "device" decodes
    configure()
    return exit_status(COMMAND.run(options, make_gpu))


if __name__ == "__main__":
    sys.exit(main())
