"""Results as tables for people and as JSON for later comparisons. Names no host."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import CaseResult, Row

_PACKAGES = (
    "xarray-gpuzarr",
    "zarr",
    "numcodecs",
    "zarrs",
    "tensorstore",
    "xarray",
    "dask",
    "numpy",
    "imagecodecs",
    "zstandard",
    "google-crc32c",
    "memray",
)
_COLUMNS = ("wall ms", "min-max", "GB/s", "CPU ms", "extra MB", "/ best peer", "/ limit")


def print_case(result: CaseResult, console: Console) -> None:
    """Print one case: the quickest reader of each side in bold."""
    workload = result.case.workload
    ratio = workload.nbytes / result.stored_nbytes
    title = f"{result.case.name}: {workload.summary}; {workload.nbytes / 1e6:.1f} MB, ratio {ratio:.1f}"
    table = Table("reader", title=title, title_justify="left", title_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    best = {id(result.best(side)) for side in ("ours", "peer")}
    for row in result.rows:
        table.add_row(row.reader, *_cells(row, result), style="bold" if id(row) in best else None)
    console.print(table)
    for row in result.rows:
        if row.failure:
            console.print(f"  {row.reader}: {row.failure}", style="red", highlight=False, markup=False)


def _cells(row: Row, result: CaseResult) -> list[str]:
    if row.failure:
        return ["failed"]
    walls = [s.wall_s * 1e3 for s in row.samples]
    return [
        f"{row.wall_s * 1e3:.1f}",
        f"{min(walls):.0f}-{max(walls):.0f}",
        f"{result.case.workload.nbytes / row.wall_s / 1e9:.2f}",
        f"{row.cpu_s * 1e3:.0f}",
        f"{(row.peak.peak_nbytes - row.peak.result_nbytes) / 1e6:.1f}" if row.peak else "",
        _ratio(row, result.best("peer")),
        _ratio(row, result.best("limit")),
    ]


def _ratio(row: Row, other: Row | None) -> str:
    return f"{row.wall_s / other.wall_s:.2f}" if other else ""


def speedups(results: Sequence[CaseResult]) -> dict[str, dict[str, float]]:
    """Return, for each reader of ours and each case, the time of the best peer over ours."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        peer = result.best("peer")
        for row in result.rows:
            if row.side == "ours" and not row.failure and peer:
                found.setdefault(row.reader, {})[result.case.name] = peer.wall_s / row.wall_s
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Return the n-th root of the product of n values."""
    return float(prod(values) ** (1 / len(values)))


def print_summary(results: Sequence[CaseResult], console: Console) -> None:
    """Print the best peer's time over ours for each case, and the geometric means."""
    table = Table("reader", "case", title="best peer / ours: above 1, ours is quicker", title_justify="left")
    table.add_column("times", justify="right")
    for reader, by_case in speedups(results).items():
        for case, speedup in by_case.items():
            table.add_row(reader, case, f"{speedup:.2f}", style="red" if speedup < 1 else None)
        mean = geometric_mean(list(by_case.values()))
        table.add_row(reader, "geometric mean", f"{mean:.2f}", style="bold", end_section=True)
    console.print(table)


def write_json(results: Sequence[CaseResult], path: Path, settings: dict[str, float]) -> None:
    """Write everything that was measured.

    Parameters
    ----------
    results : sequence of CaseResult
    path : pathlib.Path
    settings : dict
        Rounds and scale of the run.
    """
    document = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
        "settings": settings,
        "machine": _machine(),
        "revision": _revision(),
        "versions": {"python": platform.python_version(), **_versions()},
        "cases": [_case_json(result) for result in results],
        "best_peer_over_ours": {
            reader: {**by_case, "geometric mean": geometric_mean(list(by_case.values()))}
            for reader, by_case in speedups(results).items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _case_json(result: CaseResult) -> dict[str, object]:
    return {
        "name": result.case.name,
        "workload": asdict(result.case.workload),
        "nbytes": result.case.workload.nbytes,
        "stored_nbytes": result.stored_nbytes,
        "rows": [_row_json(row) for row in result.rows],
    }


def _row_json(row: Row) -> dict[str, object]:
    return {
        "reader": row.reader,
        "side": row.side,
        "wall_s": [round(s.wall_s, 6) for s in row.samples],
        "cpu_s": [round(s.cpu_s, 6) for s in row.samples],
        "memory": asdict(row.peak) if row.peak else None,
        "failure": row.failure,
    }


def _machine() -> dict[str, object]:
    return {
        "model": _cpu_model(),
        "n_cores": len(os.sched_getaffinity(0)),
        "memory_nbytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average_at_end": [round(x, 2) for x in os.getloadavg()],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _revision() -> str:
    """Return the commit at the end of the run; "-modified" if tracked files differ from it."""
    described = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=-modified"]
    try:
        return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _versions() -> dict[str, str]:
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
