"""``python -m benchmarks.gpu``: run it from the root of the repository, on a machine with a GPU."""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.cases import Cases
from benchmarks.gpu.device import AbsentError, Gpu, NativeGpu
from benchmarks.gpu.measure import Case, Session
from benchmarks.gpu.results import Results
from benchmarks.report import _machine, _revision

_DEFAULT_SECONDS = 420.0
_PACKAGES = (
    "xarray-gpuzarr",
    "zarr",
    "numcodecs",
    "imagecodecs",
    "xarray",
    "dask",
    "numpy",
    "tensorstore",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "rmm-cu12",
    "rmm-cu13",
    "nvidia-libnvcomp-cu12",
    "nvidia-libnvcomp-cu13",
    "nvidia-nvcomp-cu12",
    "nvidia-nvcomp-cu13",
)


def main(arguments: Sequence[str] | None = None, make_gpu: Callable[[], Gpu] = NativeGpu) -> int:
    """Run the chosen cases; return 1 if something failed, 2 if nothing could be run, else 0."""
    options = _parser().parse_args(arguments)
    try:
        gpu = make_gpu()
    except AbsentError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpuzarr-bench-") as folder:
        every = Cases(gpu, Path(folder), options.scale).all()
        cases = [case for case in every if any(word in case.name for word in options.only or [""])]
        if not cases:
            print(f"nothing is named like {options.only}; known: {', '.join(c.name for c in every)}", file=sys.stderr)
            return 2
        results = Results(_about(gpu, options), options.out or _default_out())
        try:
            _run(cases, options, results, gpu)
        finally:
            print(results.table())
    return int(any(row.status == "failed" for row in results.rows))


def _run(cases: Sequence[Case], options: argparse.Namespace, results: Results, gpu: Gpu) -> None:
    session = Session(results, n_rounds=options.rounds, seconds=options.seconds)
    for case in cases:
        print(f"{case.name}: {case.summary}", file=sys.stderr, flush=True)
        session.run(case, case.seconds * options.seconds / _DEFAULT_SECONDS)
        gc.collect()
        gpu.tidy()
    results.finished = True
    results.save()


def _about(gpu: Gpu, options: argparse.Namespace) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {
            "only": options.only,
            "rounds": options.rounds,
            "scale": options.scale,
            "seconds": options.seconds,
        },
        "gpu": gpu.about(),
        "machine": _machine(),
        "revision": _revision(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _default_out() -> Path:
    return Path(__file__).parents[1] / "results" / f"gpu-{datetime.now(UTC).date()}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Measure reads to the GPU.")
    parser.add_argument("--only", nargs="+", metavar="PART", help="cases whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each contestant, at most (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="below 1: tiny arrays, to see that it runs")
    parser.add_argument(
        "--seconds", type=float, default=_DEFAULT_SECONDS, help=f"time for all of it (default {_DEFAULT_SECONDS:g})"
    )
    parser.add_argument("--out", type=Path, help="JSON file (default benchmarks/results/gpu-<date>.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
