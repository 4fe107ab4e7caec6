"""Cases that write: every writer in a process of its own, from an array in memory to files that are not synced.

Each write begins with a store that holds metadata alone, or, where a part of a shard is written, the whole array. What
was written is read by zarr-python, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.arrays.workloads import SERIES, VOLUME, Workload
from benchmarks.runner.crew import process
from benchmarks.runner.fingerprint import Reference
from benchmarks.runner.results import Peak
from benchmarks.runner.session import Case, Contestant, Ready
from benchmarks.writes import child
from benchmarks.writes.child import WRITERS, Task

_EACH_SECONDS = 15.0

MAP = Workload(
    name="maps-zstd",
    summary="float32 (12, 721, 1440), a zstd map a chunk, one shard",
    shape=(12, 721, 1440),
    chunks=(1, 721, 1440),
    shards=(12, 721, 1440),
    dtype="float32",
    codec="zstd 3",
    field="noise",
)
CUBE = replace(
    VOLUME,
    name="cube-blosc",
    summary="uint16 256^3, 32^3 blosc zstd chunks in one shard",
    shape=(256, 256, 256),
    chunks=(32, 32, 32),
    shards=(256, 256, 256),
)
WORKLOADS: Sequence[Workload] = (
    replace(SERIES, name="series", summary="float32, 100 zstd chunks of 1 MB in a shard", shape=(25_600_000,)),
    CUBE,
    replace(
        CUBE, name="cube-files", summary="uint16 256^3, 64^3 zstd, files", chunks=(64,) * 3, shards=None, codec="zstd 3"
    ),
    MAP,
    replace(
        SERIES,
        name="raw-chunk",
        summary="float32, one raw chunk of 100 MB",
        shape=(25_000_000,),
        chunks=(25_000_000,),
        shards=None,
        codec="none",
        field="noise",
    ),
    replace(CUBE, name="cube-raw", summary="uint16 256^3, raw 32^3 chunks in one shard", codec="none"),
)
SMALL = replace(
    CUBE, name="cube-4096", summary="uint16 256^3, 16^3 zstd chunks in one shard", chunks=(16,) * 3, codec="zstd 1"
)


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    scaled = [workload if scale == 1 else workload.scaled(scale) for workload in (*WORKLOADS, SMALL)]
    found = [_case(workload, None, folder) for workload in scaled]
    small = scaled[-1]
    part = tuple([slice(0, min(4 * chunk, n)) for chunk, n in zip(small.chunks, small.shape, strict=True)])
    return [*found, _case(small, part, folder)]


def _case(workload: Workload, part: tuple[slice, ...] | None, folder: Path) -> Case:
    nbytes = workload.nbytes
    if part is not None:
        for each, n in zip(part, workload.shape, strict=True):
            nbytes = nbytes // n * (each.stop - each.start)
    reference = Reference()

    def contestants() -> list[Contestant]:
        return [
            Contestant(
                name=name,
                side="ours" if name == "gpuzarr" else "peer",
                nbytes=nbytes,
                prepare=partial(_prepare, name, Task(workload=workload, path=folder / "written", part=part), reference),
            )
            for name in WRITERS
        ]

    name = f"writes/{workload.name}" + ("" if part is None else " part")
    summary = workload.summary + ("" if part is None else "; 64 of the chunks are written")
    return Case(name=name, summary=summary, each_seconds=_EACH_SECONDS, contestants=contestants)


def _prepare(writer: str, task: Task, reference: Reference) -> Ready:
    own = process()
    reference.check(writer, own.submit(child.first, writer, task).result())

    def peak() -> Peak | None:
        found = own.submit(child.peak, writer, task).result()
        own.submit(child.clear, task).result()
        own.shutdown()
        return found

    return Ready(measure=lambda: own.submit(child.sample, writer, task).result(), peak=peak)
