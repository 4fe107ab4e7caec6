"""Cases that write to a server that limits each connection: how long, by how many requests.

The bare client sends the objects of one of our writes at once, and encodes nothing: it is the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import obstore
import tensorstore
import xarray as xr
import zarr
from zarr.core.sync import sync
from zarr.storage import ObjectStore

import xarray_gpuzarr  # noqa: F401  # the accessor
from benchmarks.arrays.workloads import Workload
from benchmarks.range_server import RangeServer
from benchmarks.remote.cases import written
from benchmarks.remote.readers import kept_s3_store
from benchmarks.runner.readers import PIPELINES
from benchmarks.runner.results import Side
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared, seconds
from xarray_gpuzarr import zarr_pipeline

_AT_ONCE = 24
"""Requests that the bare client has under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is written, and to which server."""

    server: RangeServer
    workload: Workload
    values: npt.NDArray[Any]

    def new_path(self) -> Path:
        """Return the path of a store that is not there yet, in the bucket."""
        return self.server.directory / "stores" / f"written-{uuid4().hex}"

    @property
    def bucket(self) -> ObjectStore[Any]:
        """The bucket, in which each store is a group."""
        return ObjectStore(kept_s3_store(self.server.url, ""))


Write = Callable[[Task, Path], None]


def _to_zarr(task: Task, path: Path) -> None:
    dims = [f"x{axis}" for axis in range(task.values.ndim)]
    sizes = [dict(zip(dims, lengths, strict=True)) for lengths in (task.workload.chunks, task.workload.whole)]
    dataset = xr.Dataset({"values": (dims, task.values)})
    # Consolidating would read the metadata of all stores in the bucket.
    dataset.gpuzarr.to_zarr(task.bucket, *sizes, group=path.name, progress=False, consolidated=False)


def _by_zarr(task: Task, path: Path) -> None:
    lengths = {"chunks": task.workload.chunks, "shards": task.workload.whole}
    shape, dtype = task.values.shape, task.values.dtype
    name = f"{path.name}/values"
    zarr.create_array(task.bucket, name=name, shape=shape, dtype=dtype, **lengths)[...] = task.values


def _by_pipeline(name: str, task: Task, path: Path) -> None:
    with zarr.config.set({"codec_pipeline.path": PIPELINES[name], "codec_pipeline.strict": True}):
        _by_zarr(task, path)


def _by_ours(task: Task, path: Path) -> None:
    with zarr_pipeline():
        _by_zarr(task, path)


def _by_tensorstore(task: Task, path: Path) -> None:
    inner = {"name": "zstd", "configuration": {"level": 0}}
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, inner]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": list(task.workload.chunks), "codecs": codecs},
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": list(task.workload.whole)}}
    metadata = {
        "shape": list(task.values.shape),
        "data_type": task.values.dtype.name,
        "chunk_grid": grid,
        "codecs": [sharding],
    }
    kvstore = {
        "driver": "s3",
        "bucket": "stores",
        "endpoint": task.server.url,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "anonymous"},
        "path": f"{path.name}/values/",
    }
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    tensorstore.open(spec, create=True).result().write(task.values).result()


WRITERS: dict[str, Write] = {
    "gpuzarr, to_zarr": _to_zarr,
    "gpuzarr, zarr_pipeline": _by_ours,
    "zarr Fused, obstore": partial(_by_pipeline, "Fused"),
    "zarrs, obstore": partial(_by_pipeline, "zarrs"),
    "TensorStore": _by_tensorstore,
}
_BARE = "bare obstore"


def write_case(workload: Workload, latency_ms: int, folder: Path, serving: Callable[[Path, float], Any]) -> Case:
    """Return the case of a whole array that is written to a server which `serving` starts."""

    @contextmanager
    def shared(path: Path) -> Iterator[Task]:
        values = zarr.open_array(path / workload.variable, mode="r")[...]
        with serving(path.parent.parent, latency_ms) as server:
            yield Task(server=server, workload=workload, values=np.asarray(values))

    def contestants() -> list[Contestant]:
        path = written(workload, folder)
        names = [*WRITERS, _BARE]
        task = Shared(partial(shared, path), len(names))
        return [
            Contestant(
                name=name,
                side=_side(name),
                nbytes=workload.nbytes,
                prepare=partial(task.prepare, partial(_prepare, WRITERS.get(name))),
            )
            for name in names
        ]

    return Case(
        name=f"network/write {latency_ms} ms",
        summary=f"{workload.summary}; all of it from memory to a server that answers {latency_ms} ms late, "
        "60 MB/s for each connection",
        contestants=contestants,
    )


def _side(name: str) -> Side:
    if name == _BARE:
        return "bare"
    return "ours" if name.startswith("gpuzarr") else "peer"


def _prepare(write: Write | None, task: Task) -> Ready:
    """Write once, compare, and count requests; without a writer, let the bare client send the same objects."""
    path = task.new_path()
    task.server.requests()
    (write or _to_zarr)(task, path)
    n_requests = len(task.server.requests())
    if not np.array_equal(zarr.open_array(path / "values", mode="r")[...], task.values):
        raise WrongValuesError("other values than were written")
    if write is not None:
        return Ready(measure=lambda: seconds(lambda: write(task, task.new_path())), facts={"requests": n_requests})
    objects = {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return Ready(
        measure=lambda: seconds(lambda: _send(task, task.new_path(), objects)), facts={"requests": len(objects)}
    )


def _send(task: Task, path: Path, objects: dict[str, bytes]) -> None:
    """Send objects, so many at a time."""
    store = kept_s3_store(task.server.url, path.name)

    async def all_of_them() -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(key: str, data: bytes) -> None:
            async with gate:
                await obstore.put_async(store, key, data, use_multipart=False)

        await asyncio.gather(*(one(*each) for each in objects.items()))

    sync(all_of_them())
