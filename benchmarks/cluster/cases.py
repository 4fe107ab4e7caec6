"""Cases on dask.distributed: a mean on one and two workers, the cost of a task, read-ahead, and the size of graphs.

Clusters are started when a case prepares, on loopback, and end with it.
"""

from __future__ import annotations

import logging
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
import zarr
from distributed import Client, LocalCluster, wait
from zarr.storage import LocalStore

from benchmarks.measure import AbsentError, Case, Contestant, Ready, WrongValuesError
from benchmarks.results import Facts, Side
from benchmarks.cluster.slow_store import SlowStore
from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import ERA5, Workload
from xarray_gpuzarr.bench.readers import PIPELINES, READERS, Chunking, Location, open_variable
from xarray_gpuzarr.errors import GpuZarrWarning

_CHUNKINGS: tuple[Chunking, ...] = ("chunks=shards", "chunks={}")
_N_TASKS = 1000
_N_SHARDS = (1_000, 10_000, 100_000)
_STEPS = {"open": "open the dataset", "graph": "build its mean()", "optimize": "let dask optimize that"}
_LATENCY_S, _BYTES_PER_S = 0.03, 200e6
"""Of the slow store: a round trip to an object store, and about as fast as one core decodes."""


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module.

    Parameters
    ----------
    scale : float
        Share of the elements, and of the tasks; 1 for results that mean something.
    folder : pathlib.Path
        Cache of stores.
    """
    era5 = ERA5 if scale == 1 else ERA5.scaled(scale)
    return [
        *(_mean_case(era5, folder, n_workers) for n_workers in (1, 2)),
        _overhead_case(max(10, round(_N_TASKS * scale)), folder),
        _read_ahead_case(era5, folder),
        *(_graph_case(max(10, round(n * scale)), n, step, folder) for n in _N_SHARDS for step in _STEPS),
    ]


class Cluster:
    """A cluster that is started when it is first asked for, and stopped when the last of its users has closed it."""

    def __init__(self, n_users: int, **options: Any) -> None:
        logging.getLogger("distributed").setLevel(logging.ERROR)  # workers in this process say all that they do
        self._n_users = n_users
        self._options = options
        self._stack = ExitStack()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of the cluster; it is nobody's default."""
        if self._client is None:
            where = {"host": "127.0.0.1"} if self._options.get("processes", True) else {}
            cluster = self._stack.enter_context(LocalCluster(dashboard_address=None, **where, **self._options))
            self._client = self._stack.enter_context(closing(Client(cluster, set_as_default=False)))
        return self._client

    def close(self) -> None:
        """Let one user go."""
        self._n_users -= 1
        if self._n_users == 0:
            self._stack.close()


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# ---- a mean


def _mean_case(workload: Workload, folder: Path, n_workers: int) -> Case:
    def contestants() -> list[Contestant]:
        location = Location(store=str(write_workload(workload, folder)), variable=workload.variable)
        rows: list[tuple[str, str, str, Chunking]] = [("gpuzarr, chunks={}", "default", "gpuzarr", "chunks={}")]
        rows += [(f"zarr {p}, {c}", p, "zarr", c) for p in PIPELINES for c in _CHUNKINGS]
        cluster = Cluster(len(rows), n_workers=n_workers, threads_per_worker=1)
        expected: list[float] = []
        return [
            Contestant(
                name=name,
                side="ours" if engine == "gpuzarr" else "peer",
                nbytes=workload.nbytes,
                prepare=lambda row=(pipeline, engine, chunking): _prepare_mean(cluster, location, *row, expected),
            )
            for name, pipeline, engine, chunking in rows
        ]

    workers = "worker" if n_workers == 1 else "workers"
    summary = f"{workload.summary}; mean on a LocalCluster of {n_workers} {workers} of one thread"
    return Case(name=f"cluster/mean x{n_workers}", summary=summary, contestants=contestants)


def _prepare_mean(
    cluster: Cluster, location: Location, pipeline: str, engine: str, chunking: Chunking, expected: list[float]
) -> Ready:
    try:
        if pipeline == "zarrs":
            _require_zarrs()
        options = {"device": "host"} if engine == "gpuzarr" else {}
        with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}):
            mean = open_variable(location, engine, chunking, **options).mean().data
        client = cluster.client
        value = float(client.compute(mean).result())
    except BaseException:
        cluster.close()
        raise
    expected.append(value)
    if not np.isclose(value, expected[0], rtol=1e-6):
        cluster.close()
        raise WrongValuesError(f"mean {value}, expected {expected[0]}")
    return Ready(measure=lambda: _timed(client.compute(mean).result), close=cluster.close)


def _require_zarrs() -> None:
    why = READERS["zarrs"].why_absent()
    if why:
        raise AbsentError(why)


# ---- the cost of a task


class NoOp:
    """Reads nothing: what a task costs without a reader."""

    ndim = 1
    dtype = np.dtype("f4")

    def __init__(self, n: int) -> None:
        self.shape = (n,)

    def __getitem__(self, key: object) -> np.ndarray[Any, Any]:
        return np.zeros(1, self.dtype)


def _overhead_case(n_tasks: int, folder: Path) -> Case:
    def contestants() -> list[Contestant]:
        path = _write_vector(folder, n_tasks)
        no_op = da.from_array(NoOp(n_tasks), chunks=1, asarray=False)
        ours = xr.open_dataset(path, engine="gpuzarr", chunks={}, device="host", consolidated=False).v.data
        stock = xr.open_dataset(path, engine="zarr", chunks={}, consolidated=False).v.data
        arrays = {"no-op": no_op, "gpuzarr": ours, "zarr": stock}
        cluster = Cluster(len(arrays), n_workers=1, threads_per_worker=1)
        return [
            Contestant(
                name=f"one {name} task",
                side={"no-op": "limit", "gpuzarr": "ours"}.get(name, "peer"),  # type: ignore[arg-type]
                nbytes=4,
                prepare=lambda array=array: _prepare_tasks(cluster, array),
            )
            for name, array in arrays.items()
        ]

    return Case(
        name="cluster/task",
        summary=f"seconds a task, of {n_tasks} that read a shard of one float32 from a local file",
        contestants=contestants,
    )


def _prepare_tasks(cluster: Cluster, array: da.Array) -> Ready:
    client = cluster.client

    def run() -> None:
        with client.as_current():
            wait(client.persist(array))

    run()
    return Ready(measure=lambda: _timed(run) / array.npartitions, close=cluster.close)


def _write_vector(folder: Path, n: int) -> Path:
    """Write `n` shards of one element each, unless they are there already."""
    path = folder / f"vector-{n}.zarr"
    if not path.exists():
        group = zarr.create_group(LocalStore(folder / f"{path.name}.partial"), overwrite=True)
        array = group.create_array(
            "v", shape=(n,), chunks=(1,), shards=(1,), dtype="f4", compressors=None, dimension_names=["x"]
        )
        array[...] = np.arange(n, dtype="f4")
        (folder / f"{path.name}.partial").rename(path)
    return path


# ---- read-ahead


def _read_ahead_case(workload: Workload, folder: Path) -> Case:
    workload = replace(workload, name="era5-zlib", codec="gzip 5")
    n_threads = (1, 2, 4)

    def contestants() -> list[Contestant]:
        path = write_workload(workload, folder)
        return [
            Contestant(name=f"{n} thread{'s' * (n > 1)}", nbytes=workload.nbytes, prepare=lambda n=n: _prepare(path, n))
            for n in n_threads
        ]

    def _prepare(path: Path, n: int) -> Ready:
        cluster = Cluster(1, n_workers=1, threads_per_worker=n, processes=False)
        store = SlowStore(LocalStore(path), latency_s=_LATENCY_S, bytes_per_s=_BYTES_PER_S)
        mean = xr.open_dataset(store, engine="gpuzarr", chunks={}, device="host")[workload.variable].mean().data
        client = cluster.client
        client.compute(mean).result()
        return Ready(measure=lambda: _timed(client.compute(mean).result), close=cluster.close)

    return Case(
        name="cluster/read-ahead",
        summary=f"mean by one worker, from a store of {_LATENCY_S * 1e3:.0f} ms and {_BYTES_PER_S / 1e6:.0f} MB/s",
        contestants=contestants,
    )


# ---- graphs


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
