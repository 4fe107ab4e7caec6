"""Cases behind a server on loopback: time at several latencies against a bare client, and requests counted.

The server (`range_server`) is a process of its own, so client and server share the cores of the machine: on loopback
itself, what is measured is who uses least of them. Behind a line of limited rate it is who leaves it idle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import zarr

from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import SERIES, Workload
from benchmarks.range_server import RangeServer
from benchmarks.remote.readers import (
    READERS,
    fetch_barely,
    open_local,
    open_ours,
    open_to_device,
    require,
    s3_store,
    wanted,
)
from benchmarks.runner.results import Side
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared, back_memory, seconds
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.process.counters import counters

LATENCIES_MS = (0, 10, 50)
_LINE_BITS_PER_S = 5e9
"""More than a cloud machine gets for every two cores."""
_LINE = f"{_LINE_BITS_PER_S / 1e9:.0f} Gbit/s"
_COUNTING_S = 0.05
"""Latency at which the requests of one of our reads that are under way at once are counted: none is answered before
all have come."""
_MEANINGFUL_SCALE = 0.01
_LONG_AGO_S = 1e9
"""When stores were written, for servers and clients that do not trust what is new."""

SHARDS = {
    codec: replace(
        SERIES,
        name=f"remote-{codec}",
        summary=f"float32, 1 MB chunks, 16 a shard, 24 shards, {codec}",
        shape=(98_304_000,),
        shards=(4_096_000,),
        codec=codec,
        operations=("read",),
    )
    for codec in ("none", "zstd 3")
}
VOLUME = Workload(
    name="remote-volume",
    summary="uint16 volume, 32^3 chunks, 64 a shard, 8 shards, zstd",
    shape=(256, 256, 256),
    chunks=(32, 32, 32),
    shards=(128, 128, 128),
    dtype="uint16",
    codec="zstd 3",
    field="volume",
)
_BARE = "bare obstore"
_LOCAL = "gpuzarr, local files"
"""Decoding alone, all but."""
_TO_DEVICE = "gpuzarr, obstore, to a GPU that does nothing"


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    latencies = LATENCIES_MS if scale >= _MEANINGFUL_SCALE else LATENCIES_MS[1:2]
    shards = [w if scale == 1 else w.scaled(scale) for w in SHARDS.values()]
    volume = VOLUME if scale == 1 else VOLUME.scaled(scale)
    return [
        *(_latency_case(w, ms, folder) for w in shards for ms in latencies),
        *(_latency_case(shards[0], ms, folder, with_line=True) for ms in latencies),
        *(_device_case(w, ms, folder) for w in shards for ms in latencies),
        _requests_case(volume, folder),
    ]


@dataclass(frozen=True, slots=True)
class Served:
    """A server of a folder of stores."""

    server: RangeServer
    latency_s: float


@contextmanager
def _serving(folder: Path, latency_ms: float, *, with_line: bool) -> Iterator[Served]:
    with RangeServer(folder, latency_ms / 1e3) as server:
        if with_line:
            server.set(bytes_per_s=_LINE_BITS_PER_S / 8)
        yield Served(server, latency_ms / 1e3)


Prepare = Callable[[str, Served], Ready]
"""Prepare the contestant of a name."""


def _contestants(
    workload: Workload, path: Path, latency_ms: float, prepare: Prepare, names: Sequence[str], *, with_line: bool
) -> list[Contestant]:
    """Return contestants that read through one server."""
    shared = Shared(partial(_serving, path.parent.parent, latency_ms, with_line=with_line), len(names))

    def side(name: str) -> Side:
        return "bare" if name in (_BARE, _LOCAL) else "ours" if name.startswith("gpuzarr") else "peer"

    return [
        Contestant(
            name=name, side=side(name), nbytes=workload.nbytes, prepare=partial(shared.prepare, partial(prepare, name))
        )
        for name in names
    ]


def written(workload: Workload, folder: Path) -> Path:
    """Write a store into a folder of its own that can be served as a bucket."""
    path = write_workload(workload, folder / "served" / "stores")
    for file in path.rglob("*"):
        os.utime(file, (_LONG_AGO_S, _LONG_AGO_S))
    return path


# ---- whole arrays


def _latency_case(workload: Workload, latency_ms: int, folder: Path, *, with_line: bool = False) -> Case:
    def contestants() -> list[Contestant]:
        path = written(workload, folder)
        expected = zarr.open_array(path / workload.variable, mode="r")[...]

        def prepare(name: str, served: Served) -> Ready:
            if name == _BARE:
                return _prepare_client(served, path, workload)
            require(name)
            read = {**READERS, _LOCAL: open_local}[name](served.server, path, workload.variable)
            if not np.array_equal(read(...), expected):
                raise WrongValuesError("other values than were stored")
            return Ready(measure=lambda: _timed(partial(read, ...), workload.nbytes))

        return _contestants(workload, path, latency_ms, prepare, [*READERS, _LOCAL, _BARE], with_line=with_line)

    line = f", over a line of {_LINE}" * with_line
    summary = f"{workload.summary}; whole array from a server that answers {latency_ms} ms late{line}"
    name = f"store/{workload.codec} {latency_ms} ms{f', {_LINE}' * with_line}"
    return Case(name=name, summary=summary, contestants=contestants)


def _device_case(workload: Workload, latency_ms: int, folder: Path) -> Case:
    """Return what the CUDA engine leaves of a line: everything but the GPU is real, up to the pinned memory."""

    def contestants() -> list[Contestant]:
        path = written(workload, folder)
        shards = list((path / workload.variable / "c").rglob("*"))

        def prepare(name: str, served: Served) -> Ready:
            if name == _BARE:
                return _prepare_client(served, path, workload)
            read, before = open_to_device(served.server, path, workload.variable), counters.snapshot()
            read(...)
            if (counters.snapshot() - before).read_nbytes != sum(f.stat().st_size for f in shards if f.is_file()):
                raise WrongValuesError("other bytes than were stored")
            return Ready(measure=lambda: _timed(partial(read, ...), workload.nbytes))

        return _contestants(workload, path, latency_ms, prepare, [_TO_DEVICE, _BARE], with_line=True)

    return Case(
        name=f"store/{workload.codec} {latency_ms} ms, {_LINE}, to a GPU",
        summary=f"{workload.summary}; whole array by the CUDA engine, from a server that answers {latency_ms} ms late, "
        f"over a line of {_LINE}",
        contestants=contestants,
    )


def _timed(run: Callable[[], object], nbytes: int) -> float:
    """Return the seconds of a read whose result has `nbytes` bytes."""
    index_cache.cache.clear()
    back_memory(nbytes)
    return seconds(run)


def _prepare_client(served: Served, path: Path, workload: Workload) -> Ready:
    """Let our reader ask once, so that the bare client can ask for the same ranges, as many at once."""
    server = served.server
    index_cache.cache.clear()
    read = open_ours(server, path, workload.variable)
    server.requests()
    server.set(latency_s=_COUNTING_S, most_at_once=0)
    read(...)
    at_once = server.most_at_once()
    server.set(latency_s=served.latency_s)
    ranges = [wanted(request, path) for request in server.requests()]
    fetch = partial(fetch_barely, s3_store(server.url, path.name), ranges, at_once)
    fetch()
    return Ready(measure=lambda: _timed(fetch, workload.nbytes), facts={"requests": len(ranges), "at once": at_once})


# ---- requests


def _requests_case(workload: Workload, folder: Path) -> Case:
    chunk = tuple(slice(0, n) for n in workload.chunks)
    shard = tuple(slice(0, n) for n in workload.whole)
    selections = {
        "one chunk": chunk,
        "another of its shard": (*chunk[:-1], slice(workload.chunks[-1], 2 * workload.chunks[-1])),
        "one plane": (slice(0, 1),),
        "one shard": shard,
        "whole array": (...,),
    }

    def contestants() -> list[Contestant]:
        path = written(workload, folder)

        def prepare(name: str, served: Served) -> Ready:
            require(name)
            read = READERS[name](served.server, path, workload.variable)
            facts = {}
            for what, selection in selections.items():
                if what != "another of its shard":
                    index_cache.cache.clear()
                served.server.requests()
                read(selection)
                facts[what] = len(served.server.requests())
            return Ready(measure=dict, facts=facts)

        return _contestants(workload, path, 0, prepare, [*READERS], with_line=False)

    summary = f"{workload.summary}; requests for a selection"
    return Case(name="store/requests", summary=summary, contestants=contestants)
