"""Cases of training: how many samples a second a loop gets that does nothing with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import VOLUME, Workload
from benchmarks.host import child as host_child
from benchmarks.range_server import RangeServer
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.fingerprint import Reference
from benchmarks.runner.readers import AbsentError
from benchmarks.runner.session import Case, Contestant, Ready
from benchmarks.shared import Shared
from benchmarks.training import child
from benchmarks.training.feeds import BATCH, Feed
from benchmarks.training.loaders import LOADERS, Loader

LATENCY_MS = 10
_EACH_SECONDS = 10.0
"""Time for the runs of one loader in one case."""
_MEANINGFUL_SCALE = 0.01
_CHUNKS = {"64 kB": (1, 128, 128), "1 MB": (4, 256, 256)}
_CROPS = ((1, 256, 256), (4, 64, 64))
_FIELDS = (1, 1024, 1024)
"""Whole fields of chunks of 1 MB, each once."""
_N_BATCHES, _N_SERVED, _N_TINY = 16, 6, 2
"""Batches of a run: of local files, behind a server, and only to see that it runs."""

_ARRAY = replace(VOLUME, name="training", shape=(64, 1024, 1024), dtype="float32", codec="zstd 3")
_SHARDS = (16, 512, 512)


def cases(scale: float, folder: Path, crew: ReaderProcesses) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    *shorter, plain, sharded = _workloads()
    crops = [*product(shorter, _CROPS), *product((plain, sharded), (_FIELDS, *_CROPS))]
    found = [
        _case(scale, folder / "served" / "stores", crew, workload, crop, is_served=is_served)
        for is_served, (workload, crop) in product((False, True), crops)
    ]
    return found if scale >= _MEANINGFUL_SCALE else found[:: len(found) - 1]


def _workloads() -> Iterator[Workload]:
    for name, chunks in _CHUNKS.items():
        yield replace(_ARRAY, summary=f"float32, zstd, chunks of {name}", chunks=chunks)
        yield replace(_ARRAY, summary=f"float32, zstd, chunks of {name} in shards", chunks=chunks, shards=_SHARDS)


def _case(
    scale: float, folder: Path, crew: ReaderProcesses, workload: Workload, crop: tuple[int, ...], *, is_served: bool
) -> Case:
    n_batches = _N_TINY if scale < _MEANINGFUL_SCALE else _N_SERVED if is_served else _N_BATCHES
    feed = Feed(workload=workload, path=folder, crop=crop, n_batches=n_batches).scaled(scale)
    crops = "x".join(map(str, crop))
    place = f"a server that answers {LATENCY_MS} ms late" if is_served else "local files"
    return Case(
        name=f"training/{crops} of {workload.summary.removeprefix('float32, zstd, ')}"
        + f", {LATENCY_MS} ms" * is_served,
        summary=f"{workload.summary}; batches of {BATCH} crops of {crops} in uniform order, from {place}",
        each_seconds=_EACH_SECONDS,
        contestants=lambda: _contestants(feed, crew, is_served=is_served),
        about=lambda: {"operation": "batches", "nbytes": feed.nbytes, "n_samples": feed.n_samples},
    )


def _contestants(feed: Feed, crew: ReaderProcesses, *, is_served: bool) -> list[Contestant]:
    """Return the loaders; their processes start."""
    here = replace(feed, path=write_workload(feed.workload, feed.path))
    crew.start(loader.name for loader in LOADERS.values() if not loader.why_absent())
    reference = Reference()
    shared = Shared(partial(_serving, here.path.parent.parent, is_served=is_served), len(LOADERS))
    return [
        Contestant(
            name=loader.name,
            side=loader.side,
            nbytes=feed.nbytes,
            prepare=partial(shared.prepare, partial(_prepare, here, crew, reference, loader)),
        )
        for loader in LOADERS.values()
    ]


@contextmanager
def _serving(folder: Path, *, is_served: bool) -> Iterator[str]:
    """Give the address of a server; nothing if none is wanted."""
    if not is_served:
        yield ""
        return
    with RangeServer(folder, LATENCY_MS / 1e3) as server:
        yield server.url


def _prepare(here: Feed, crew: ReaderProcesses, reference: Reference, loader: Loader, url: str) -> Ready:
    """Let a loader read once, on a process of its own; it must give what the first one has given."""
    if absent := loader.why_absent():
        raise AbsentError(absent)
    reference.check(loader.name, crew.ask(child.open_feed, loader.name, replace(here, url=url)))
    return Ready(
        measure=partial(crew.ask, host_child.sample, loader.name),
        close=partial(crew.ask, host_child.close, loader.name),
    )
