"""Cases on dask.distributed: a mean on one and two workers, the cost of a task, and reads ahead.

Clusters are started when a case prepares, on loopback, and end with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
import zarr
from distributed import Client, LocalCluster, wait
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import ERA5, Workload
from benchmarks.runner.readers import PIPELINES, READERS, AbsentError, Chunking, Location, open_variable
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared, seconds

_CHUNKINGS: tuple[Chunking, ...] = ("chunks=shards", "chunks={}")
_N_TASKS = 1000
_LATENCY_S, _BYTES_PER_S = 0.03, 200e6
"""Of the slow store: a round trip to an object store, and about as fast as one core decodes."""


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    era5 = ERA5 if scale == 1 else ERA5.scaled(scale)
    return [
        *(_mean_case(era5, folder, n_workers) for n_workers in (1, 2)),
        _overhead_case(max(10, round(_N_TASKS * scale)), folder),
        _read_ahead_case(era5, folder),
    ]


@contextmanager
def started_cluster(**options: Any) -> Iterator[Client]:
    """Start a cluster on loopback; yield a client of it that is nobody's default."""
    logging.getLogger("distributed").setLevel(logging.ERROR)  # workers in this process say all that they do
    where = {"host": "127.0.0.1"} if options.get("processes", True) else {}
    with (
        LocalCluster(dashboard_address=None, **where, **options) as cluster,
        Client(cluster, set_as_default=False) as c,
    ):
        yield c


# ---- a mean


def _mean_case(workload: Workload, folder: Path, n_workers: int) -> Case:
    def contestants() -> list[Contestant]:
        location = Location(store=str(write_workload(workload, folder)), variable=workload.variable)
        rows: list[tuple[str, str, str, Chunking]] = [("gpuzarr, chunks={}", "default", "gpuzarr", "chunks={}")]
        rows += [(f"zarr {p}, {c}", p, "zarr", c) for p in PIPELINES for c in _CHUNKINGS]
        cluster = Shared(partial(started_cluster, n_workers=n_workers, threads_per_worker=1), len(rows))
        expected: list[float] = []
        return [
            Contestant(
                name=name,
                side="ours" if engine == "gpuzarr" else "peer",
                nbytes=workload.nbytes,
                prepare=partial(
                    cluster.prepare, partial(_prepare_mean, location, (pipeline, engine, chunking), expected)
                ),
            )
            for name, pipeline, engine, chunking in rows
        ]

    workers = "worker" if n_workers == 1 else "workers"
    summary = f"{workload.summary}; mean on a LocalCluster of {n_workers} {workers} of one thread"
    return Case(name=f"cluster/mean x{n_workers}", summary=summary, contestants=contestants)


def _prepare_mean(
    location: Location, reader: tuple[str, str, Chunking], expected: list[float], client: Client
) -> Ready:
    pipeline, engine, chunking = reader
    if pipeline == "zarrs" and (why := READERS["zarrs"].why_absent()):
        raise AbsentError(why)
    options = {"device": "host"} if engine == "gpuzarr" else {}
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}):
        mean = open_variable(location, engine, chunking, **options).mean().data
    value = float(client.compute(mean).result())
    expected.append(value)
    if not np.isclose(value, expected[0], rtol=1e-6):
        raise WrongValuesError(f"mean {value}, expected {expected[0]}")
    return Ready(measure=lambda: seconds(client.compute(mean).result))


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
        cluster = Shared(partial(started_cluster, n_workers=1, threads_per_worker=1), len(arrays))
        return [
            Contestant(
                name=f"one {name} task",
                side={"no-op": "bare", "gpuzarr": "ours"}.get(name, "peer"),  # type: ignore[arg-type]
                nbytes=4,
                prepare=partial(cluster.prepare, partial(_prepare_tasks, array)),
            )
            for name, array in arrays.items()
        ]

    return Case(
        name="cluster/task",
        summary=f"seconds a task, of {n_tasks} that read a shard of one float32 from a local file",
        contestants=contestants,
    )


def _prepare_tasks(array: da.Array, client: Client) -> Ready:
    def run() -> None:
        with client.as_current():
            wait(client.persist(array))

    run()
    return Ready(measure=lambda: seconds(run) / array.npartitions)


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


class _SlowStore(WrapperStore[Store]):
    """Answers after a round trip, and no more than `_BYTES_PER_S` of all requests for chunks together."""

    free_at = 0.0

    async def get(self, key: str, *given: Any, **named: Any) -> Any:
        answer = await super().get(key, *given, **named)
        if answer is not None and not key.endswith("zarr.json"):
            now = asyncio.get_running_loop().time()
            self.free_at = max(now + _LATENCY_S, self.free_at) + len(answer) / _BYTES_PER_S
            await asyncio.sleep(self.free_at - now)
        return answer


def _read_ahead_case(workload: Workload, folder: Path) -> Case:
    workload = replace(workload, name="era5-zlib", codec="gzip 5")
    n_threads = (1, 2, 4)

    def contestants() -> list[Contestant]:
        path = write_workload(workload, folder)
        return [
            Contestant(
                name=f"{n} thread{'s' * (n > 1)}",
                nbytes=workload.nbytes,
                prepare=partial(
                    Shared(partial(started_cluster, n_workers=1, threads_per_worker=n, processes=False), 1).prepare,
                    partial(_prepare_slow, path, workload.variable),
                ),
            )
            for n in n_threads
        ]

    return Case(
        name="cluster/read-ahead",
        summary=f"mean by one worker, from a store of {_LATENCY_S * 1e3:.0f} ms and {_BYTES_PER_S / 1e6:.0f} MB/s",
        contestants=contestants,
    )


def _prepare_slow(path: Path, variable: str, client: Client) -> Ready:
    store = _SlowStore(LocalStore(path))
    mean = xr.open_dataset(store, engine="gpuzarr", chunks={}, device="host")[variable].mean().data
    client.compute(mean).result()
    return Ready(measure=lambda: seconds(client.compute(mean).result))
