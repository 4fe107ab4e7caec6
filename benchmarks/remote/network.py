"""Cases behind a server that limits each connection: who keeps it busy, with how many requests for how many bytes.

The server answers late, sends 60 MB/s over each connection and 400 MB/s over all of them, as object stores do. The
bare client fetches the ranges of our lazy load at once, and decodes nothing: it is the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
import zarr
from zarr.storage import ObjectStore

from benchmarks.arrays.workloads import ERA5, Workload
from benchmarks.cluster.cases import started_cluster
from benchmarks.range_server import RangeServer
from benchmarks.remote.cases import written
from benchmarks.remote.readers import READERS, fetch_barely, kept_s3_store, require, wanted
from benchmarks.remote.writing import write_case
from benchmarks.runner.results import Sample, Side
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared, back_memory, seconds
from xarray_gpuzarr.decoders.host import chunk_cache
from xarray_gpuzarr.fetch import index_cache

LATENCIES_MS = (5, 30, 100)
_BYTES_PER_S, _BYTES_PER_S_EACH = 400e6, 60e6
_MEANINGFUL_SCALE = 0.01
_AT_ONCE = 24
"""Requests that the bare client has under way."""

MAPS = replace(
    ERA5,
    name="network-maps",
    summary="packed int16 maps, zstd, 1x181x360 chunks, 24 a shard, 40 shards",
    shape=(960, 181, 360),
    chunks=(1, 181, 360),
    shards=(24, 181, 360),
)
OBJECTS = replace(
    MAPS, name="network-objects", summary="packed int16 maps, zstd, 960 objects of one map each", shards=None
)
VOLUME = Workload(
    name="network-volume",
    summary="uint16 volume, zstd, 32^3 chunks in 256^3 shards",
    shape=(512, 512, 512),
    chunks=(32, 32, 32),
    shards=(256, 256, 256),
    dtype="uint16",
    codec="zstd 3",
    field="volume",
)
_PEERS = ("gpuzarr, obstore", "zarr Fused, obstore", "TensorStore")

Run = Callable[[], Any]


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    latencies = LATENCIES_MS if scale >= _MEANINGFUL_SCALE else LATENCIES_MS[1:2]
    maps, objects, volume = (w if scale == 1 else w.scaled(scale) for w in (MAPS, OBJECTS, VOLUME))
    middle = volume.shape[1] // 2
    selections = {"plane": [(slice(None), middle)], "random boxes": _boxes(volume.shape)}
    return [
        *(_dask_case(maps, ms, folder) for ms in latencies),
        *(write_case(maps, ms, folder, _serving) for ms in latencies),
        *(_selection_case(objects, "objects", [(...,)], ms, folder) for ms in latencies),
        *(_selection_case(volume, name, selections[name], ms, folder) for name in selections for ms in latencies),
    ]


def _boxes(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Return boxes, read one after the other."""
    rng = np.random.default_rng(0)
    starts = [[int(rng.integers(0, max(1, n - 48))) for n in shape] for _ in range(20)]
    return [tuple(slice(start, start + 48) for start in box) for box in starts]


@contextmanager
def _serving(folder: Path, latency_ms: float) -> Iterator[RangeServer]:
    with RangeServer(folder, latency_ms / 1e3) as server:
        server.set(bytes_per_s=_BYTES_PER_S, bytes_per_s_each=_BYTES_PER_S_EACH)
        yield server


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a workload is written."""

    path: Path
    variable: str


def _forget() -> None:
    """Let the next read start from the stored bytes: neither indexes nor decoded chunks of earlier runs are of use."""
    index_cache.cache.clear()
    chunk_cache.cache.clear()


def _ready(server: RangeServer, place: _Place, run: Run, expected: Any) -> Ready:
    """Run once, compare, and count requests for chunks and their bytes."""

    def timed() -> Sample:
        _forget()
        back_memory(np.asarray(expected).nbytes)
        began = time.process_time()
        wall_s = seconds(run)
        return Sample(wall_s=wall_s, cpu_s=time.process_time() - began)

    _forget()
    server.requests()
    if not np.allclose(run(), expected, rtol=1e-4, equal_nan=True):
        raise WrongValuesError("other values than were stored")
    ranges = [wanted(request, place.path) for request in server.requests() if "/c/" in request["path"]]
    megabytes = sum(end - first for _, first, end in ranges) / 1e6
    return Ready(measure=timed, facts={"requests": len(ranges), "MB": round(megabytes, 1)})


def _case(name: str, summary: str, place: Callable[[], _Place], workload: Workload, sides: dict[str, Side]) -> Any:
    """Return what makes a case of a function that prepares a contestant, given a name, a server and the place."""

    def build(prepare: Callable[[str, _Place, RangeServer], Ready], latency_ms: int) -> Case:
        def contestants() -> list[Contestant]:
            at = place()
            shared = Shared(partial(_serving, at.path.parent.parent, latency_ms), len(sides))
            return [
                Contestant(
                    name=who,
                    side=side,
                    nbytes=workload.nbytes,
                    prepare=partial(shared.prepare, partial(prepare, who, at)),
                )
                for who, side in sides.items()
            ]

        full = f"{summary}; from a server that answers {latency_ms} ms late, 60 MB/s for each connection"
        return Case(name=f"network/{name} {latency_ms} ms", summary=full, contestants=contestants)

    return build


# ---- through dask

_BARE, _LAZY = "bare obstore", "gpuzarr, lazy load"
_THREADS = {"gpuzarr, mean, 2 threads": 2, "gpuzarr, mean, 16 threads": 16}
_CLUSTER = "gpuzarr, mean, 2 workers"
_STOCK = "zarr fused, mean, shards, 2 threads"


def _dask_case(workload: Workload, latency_ms: int, folder: Path) -> Case:
    def prepare(who: str, place: _Place, server: RangeServer) -> Ready:
        lazy = _opened(server, place, "gpuzarr", None)
        if who == _BARE:
            _forget()
            server.requests()
            lazy.compute()
            ranges = [wanted(request, place.path) for request in server.requests() if "/c/" in request["path"]]
            fetch = partial(fetch_barely, kept_s3_store(server.url, place.path.name), ranges, _AT_ONCE)
            fetch()
            return Ready(measure=lambda: seconds(fetch), facts={"requests": len(ranges)})
        if who == _LAZY:
            return _ready(server, place, lambda: lazy.compute().values, lazy.compute().values)
        engine, chunks = (
            ("zarr", dict(zip(lazy.dims, workload.whole, strict=True))) if who == _STOCK else ("gpuzarr", {})
        )
        mean = _opened(server, place, engine, chunks).mean()
        if who == _CLUSTER:
            return _ready_on_cluster(server, mean, lazy.compute().mean().values)

        def run() -> Any:
            with dask.config.set(scheduler="threads", num_workers=_THREADS.get(who, 2)):
                return mean.compute().values

        return _ready(server, place, run, lazy.compute().mean().values)

    sides: dict[str, Side] = {
        _BARE: "bare",
        _LAZY: "ours",
        **dict.fromkeys(_THREADS, "ours"),
        _CLUSTER: "ours",
        _STOCK: "peer",
    }
    summary = f"{workload.summary}; a lazy load, and the mean through dask"
    place = partial(_place, workload, folder)
    built: Case = _case("mean through dask", summary, place, workload, sides)(prepare, latency_ms)
    return built


def _ready_on_cluster(server: RangeServer, mean: xr.DataArray, expected: Any) -> Ready:
    """Run a mean on a cluster of two workers of one thread each, and compare it."""
    with ExitStack() as stack:
        client = stack.enter_context(started_cluster(n_workers=2, threads_per_worker=1))

        def run() -> Any:
            return client.compute(mean.data).result()

        def timed() -> float:
            client.run(_forget)
            return seconds(run)

        server.requests()
        if not np.allclose(run(), expected, rtol=1e-4):
            raise WrongValuesError("another mean than of what was stored")
        n_requests = sum("/c/" in request["path"] for request in server.requests())
        return Ready(measure=timed, facts={"requests": n_requests}, close=stack.pop_all().close)


def _opened(server: RangeServer, place: _Place, engine: str, chunks: Any) -> xr.DataArray:
    store = ObjectStore(kept_s3_store(server.url, place.path.name), read_only=True)
    options = {"device": "host"} if engine == "gpuzarr" else {}
    pipeline = {"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"} if engine == "zarr" else {}
    with zarr.config.set(pipeline):
        ds = xr.open_dataset(store, engine=engine, chunks=chunks, cache=False, consolidated=False, **options)
    return ds[place.variable]


def _place(workload: Workload, folder: Path) -> _Place:
    return _Place(written(workload, folder), workload.variable)


# ---- selections


def _selection_case(
    workload: Workload, name: str, selections: list[tuple[Any, ...]], latency_ms: int, folder: Path
) -> Case:
    def prepare(who: str, place: _Place, server: RangeServer) -> Ready:
        require(who)
        array = zarr.open_array(place.path / place.variable, mode="r")
        expected = np.concatenate([np.ravel(array[selection]) for selection in selections])

        def run() -> Any:
            read = READERS[who](server, place.path, place.variable)
            return np.concatenate([np.ravel(read(selection)) for selection in selections])

        return _ready(server, place, run, expected)

    sides: dict[str, Side] = {who: "ours" if who.startswith("gpuzarr") else "peer" for who in _PEERS}
    summary = f"{workload.summary}; {name}, opening included"
    place = partial(_place, workload, folder)
    built: Case = _case(name, summary, place, workload, sides)(prepare, latency_ms)
    return built
