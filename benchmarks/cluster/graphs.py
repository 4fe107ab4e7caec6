"""Cases of graphs: how long it takes to open many shards, build a mean and optimize it, and what the graph weighs."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import xarray as xr
import zarr
from zarr.storage import LocalStore

from benchmarks.runner.results import Facts, Side
from benchmarks.runner.session import Case, Contestant, Ready
from xarray_gpuzarr.errors import GpuZarrWarning

_N_SHARDS = (1_000, 10_000, 100_000)
_STEPS = {"open": "open the dataset", "graph": "build its mean()", "optimize": "let dask optimize that"}


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    return [_graph_case(max(10, round(n * scale)), n, step, folder) for n in _N_SHARDS for step in _STEPS]


def _graph_case(n_shards: int, called: int, step: str, folder: Path) -> Case:
    def contestants() -> list[Contestant]:
        path = _write_metadata(folder, n_shards)
        engines: Sequence[tuple[str, Side, dict[str, Any]]] = (
            ("gpuzarr", "ours", {"chunks": {}, "device": "host"}),
            ("zarr", "peer", {"chunks": {"time": 4}}),
        )
        return [
            Contestant(
                name=engine,
                side=side,
                nbytes=0,
                prepare=lambda engine=engine, options=options: _prepare_graph(path, engine, options, step),
            )
            for engine, side, options in engines
        ]

    summary = f"{n_shards} shards: {_STEPS[step]}; nothing is read"
    return Case(name=f"cluster/{step} {called}", summary=summary, each_seconds=20, contestants=contestants)


def _write_metadata(folder: Path, n_shards: int) -> Path:
    """Write an array of so many shards of 4 x 4 x 8 elements, of which none is stored."""
    path = folder / f"shards-{n_shards}.zarr"
    if not path.exists():
        group = zarr.create_group(LocalStore(path))
        shape = {"shape": (n_shards * 4, 4, 8), "chunks": (1, 4, 8), "shards": (4, 4, 8)}
        group.create_array("t2m", dtype="f4", dimension_names=["time", "lat", "lon"], **shape)
    return path


def _build(path: Path, engine: str, options: dict[str, Any]) -> Iterator[tuple[str, xr.Dataset]]:
    ds = xr.open_dataset(path, engine=engine, consolidated=False, **options)
    yield "open", ds
    mean = ds.mean()
    yield "graph", mean
    yield "optimize", dask.optimize(mean)[0]


def _prepare_graph(path: Path, engine: str, options: dict[str, Any], step: str) -> Ready:
    def measure() -> float:
        steps = _build(path, engine, options)
        while True:
            began = time.perf_counter()
            if next(steps)[0] == step:
                return time.perf_counter() - began

    return Ready(measure=measure, facts=_weigh_graph(path, engine, options, step))


def _weigh_graph(path: Path, engine: str, options: dict[str, Any], step: str) -> Facts:
    """Say how much memory is held after a step: by a dataset, its mean, and the optimized graph."""
    kept = []
    with warnings.catch_warnings(), _traced() as nbytes:
        warnings.simplefilter("ignore", GpuZarrWarning)  # that these are many tasks
        for name, built in _build(path, engine, options):
            kept.append(built)
            if name == step:
                break
        held = nbytes()
    n_tasks = len(kept[-1].t2m.data.__dask_graph__())
    return {"tasks": n_tasks, "MB held": round(held / 1e6, 1), "bytes a task": round(held / n_tasks)}


@contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes that Python has allocated within and not freed."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
