"""``python -m benchmarks.gpu.check_auto FILE``: is any read slower by a calibration than on the better side.

Reads lie between the points of the sweep, in number of chunks and in their length. A read by the calibration that takes
longer than both by more than the noise is a failure.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.command import Command, MakeGpu, exit_status
from benchmarks.gpu.configured import seconds_with
from benchmarks.gpu.device import Gpu, NativeGpu
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.scene import Scene
from benchmarks.gpu.sweep import CODECS, HOST, MOST_NBYTES
from benchmarks.measure import Case, Contestant, Ready
from benchmarks.published import BLOG
from benchmarks.results import Results
from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.calibration import read_calibration

CHUNK_NBYTES = (32_768, 524_288, 2_097_152)
N_CHUNKS = (3, 24, 96, 400, 1500)
_SLACK = 1.25
"""Interpolation and noise."""


def cases(gpu: Gpu, folder: Path, scale: float, calibration: str) -> Iterator[Case]:
    """Return a case for each codec, length and number."""
    for codec, text in CODECS.items():
        for nbytes in CHUNK_NBYTES:
            edge = max(16, round(nbytes // 4 * min(1.0, 100 * scale)))
            most = max(4, round(MOST_NBYTES * scale) // nbytes)
            numbers = [n for n in N_CHUNKS if n <= most]
            shape = (edge * numbers[-1],)
            name = f"auto {codec} {nbytes}"
            workload = replace(BLOG.full, name=name, codec=text, chunks=(edge,), shards=shape, shape=shape)
            scene = Scene(gpu=gpu, workload=workload, folder=folder)
            for n in numbers:
                contestants = functools.partial(_contestants, scene, n, calibration)
                about = {"codec": codec, "chunk_nbytes": nbytes, "n_chunks": n, "operation": "auto"}
                yield Case(
                    name=f"{name} x {n}",
                    summary="by the calibration, and on either side",
                    seconds=2,
                    contestants=contestants,
                    about=functools.partial(dict, about),
                )


def _contestants(scene: Scene, n: int, calibration: str) -> list[Contestant]:
    gpu, array, box = scene.gpu, open_array(scene.stored), slice(0, n * scene.workload.chunks[0])

    def on_device() -> Any:
        return read_array(array, box, device=gpu.device)

    def on_host() -> Any:
        return gpu.upload(read_array(array, box, device="host"))

    ways: dict[str, tuple[Callable[[], Any], str | None]] = {
        "auto": (on_device, calibration),
        "device": (on_device, None),
        HOST: (on_host, None),
    }
    return [
        Contestant(
            name=name,
            nbytes=n * scene.workload.chunk_nbytes,
            prepare=functools.partial(Ready, measure=functools.partial(seconds_with, gpu, run, calibration=path)),
        )
        for name, (run, path) in ways.items()
    ]


def slower(results: Results) -> list[str]:
    """Return the cases in which the calibration's choice took longer than the better side."""
    found = []
    for case in results.cases:
        auto, others = case.row("auto"), [row for name in ("device", HOST) if (row := case.row(name))]
        if auto and others and auto.wall_s > _SLACK * min(row.wall_s for row in others):
            best = min(others, key=lambda row: row.wall_s)
            found.append(f"{case.name}: {auto.wall_s * 1e3:.3g} ms, {best.name} {best.wall_s * 1e3:.3g} ms")
    return found


def main(arguments: Sequence[str] | None = None, make_gpu: MakeGpu = NativeGpu) -> int:
    """Measure; return 1 if a choice was slower or something failed, 2 if there is no GPU, else 0."""
    command = Command(
        module="benchmarks.gpu.check_auto",
        kind="auto",
        description="Compare what a calibration chooses with both sides.",
        seconds=100.0,
        rounds=3,
        tables=False,
        cases=lambda gpu, folder, scale: list(cases(gpu, folder, scale, str(options.calibration))),
    )
    parser = command.parser()
    parser.add_argument("calibration", type=Path, help="what benchmarks.gpu.tune has written")
    options = parser.parse_args(arguments)
    read_calibration(str(options.calibration))
    results = command.run(options, make_gpu)
    if results is None:
        return 2
    late = slower(results)
    print(f"{len(results.cases)} reads; slower than the better side: {len(late)}", *late, sep="\n  ")
    return max(exit_status(results), int(bool(late)))


if __name__ == "__main__":
    sys.exit(main())
