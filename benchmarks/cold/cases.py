"""Cases of files that are not in the page cache: whole arrays, planes and small boxes, from seven layouts.

Before each timed run the files of the array are dropped from the page cache, after fsync. Their names and lengths stay
in memory. A disk whose host keeps the files in memory, as of most virtual machines, answers sooner than others do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from benchmarks import page_cache
from benchmarks.arrays.stores import object_files, stored_nbytes, write_workload
from benchmarks.arrays.workloads import WORKLOADS, Operation, Workload
from benchmarks.host import child
from benchmarks.host.task import Task
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.fingerprint import Reference
from benchmarks.runner.readers import READERS, AbsentError, ArrayReader, Box
from benchmarks.runner.results import Sample
from benchmarks.runner.session import Case, Contestant, Ready

Pattern = Literal["whole", "planes", "boxes"]
"""The whole array; planes across the first axis that meet every shard, or every file of a chunk; boxes of half a
chunk's length at random positions."""

_LAYOUTS = (
    *("series-1mb-zstd", "series-1mb-raw", "series-64kb-zstd"),
    *("volume-blosc-zstd", "files-raw", "shards-blosclz", "shards-raw"),
)
"""Names of workloads."""
_READERS = ("zarr default", "zarr Fused", "zarrs", "TensorStore", "zarrista", "gpuzarr")
_N_BOXES = 200
_SERIES_SHAPE = (25_600_000,)
"""One shard: more of them would only take longer."""
_EACH_SECONDS = 2.0
"""Time for the runs of one reader in one case."""


def cases(scale: float, folder: Path, crew: ReaderProcesses) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`. None where files cannot be dropped."""
    if not hasattr(os, "posix_fadvise"):
        return []
    chosen = [w for w in WORKLOADS if w.name in _LAYOUTS]
    shorter = [replace(w, shape=_SERIES_SHAPE) if w.field == "series" else w for w in chosen]
    workloads = [w if scale == 1 else w.scaled(scale) for w in shorter]
    every = product(workloads, get_args(Pattern))
    return [_case(w, pattern, folder, crew) for w, pattern in every if pattern != "planes" or len(w.shape) > 1]


def boxes_of(workload: Workload, pattern: Pattern) -> tuple[Box, ...]:
    """Return what is read one after another; nothing for the whole array."""
    match pattern:
        case "whole":
            return ()
        case "planes":
            return tuple(_planes(workload))
        case "boxes":
            rng = np.random.default_rng(0)
            return tuple(_box(workload, rng) for _ in range(_N_BOXES))


def _planes(workload: Workload) -> Iterator[Box]:
    """Return a plane through the middle of each layer of objects."""
    length, whole = workload.shape[0], workload.whole[0]
    for first in range(0, length, whole):
        at = min(first + whole // 2, length - 1)
        yield (slice(at, at + 1), *(slice(0, n) for n in workload.shape[1:]))


def _box(workload: Workload, rng: np.random.Generator) -> Box:
    lengths = [max(1, chunk // 2) for chunk in workload.chunks]
    starts = [int(rng.integers(n - length + 1)) for n, length in zip(workload.shape, lengths, strict=True)]
    return tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))


def _case(workload: Workload, pattern: Pattern, folder: Path, crew: ReaderProcesses) -> Case:
    operation: Operation = "read" if pattern == "whole" else "crop"
    task = Task(workload=workload, path=folder, operation=operation, boxes=boxes_of(workload, pattern))
    return Case(
        name=f"cold/{workload.name}/{pattern}",
        summary=f"{workload.summary}; {pattern}, not in the page cache",
        each_seconds=_EACH_SECONDS,
        contestants=partial(_contestants, task, folder, crew),
        about=lambda: {
            "operation": "cold",
            "pattern": pattern,
            "layout": workload.name,
            "nbytes": task.nbytes,
            "stored_nbytes": stored_nbytes(write_workload(workload, folder)),
        },
    )


def _contestants(task: Task, folder: Path, crew: ReaderProcesses) -> list[Contestant]:
    """Return the readers; their processes start."""
    path = write_workload(task.workload, folder)
    here = Task(workload=task.workload, path=path, operation=task.operation, boxes=task.boxes)
    readers = [READERS[name] for name in _READERS]
    crew.start(reader.name for reader in readers if not reader.why_absent())
    reference = Reference()
    return [
        Contestant(
            name=reader.name,
            side="ours" if reader.ours else "peer",
            nbytes=here.nbytes,
            prepare=partial(_prepare, here, crew, reference, reader),
        )
        for reader in readers
    ]


def _prepare(task: Task, crew: ReaderProcesses, reference: Reference, reader: ArrayReader) -> Ready:
    """Let a reader read once, on a process of its own; it must give what the first one has given."""
    if absent := reader.why_absent():
        raise AbsentError(absent)
    files = object_files(task.workload, task.path)
    page_cache.drop(files)
    in_memory = round(page_cache.share_in_memory(files), 3)
    reference.check(reader.name, crew.ask(child.open_task, reader.name, task))

    def measure() -> Sample:
        page_cache.drop(files)
        return crew.ask(child.sample, reader.name)

    return Ready(
        measure=measure, facts={"in memory when cold": in_memory}, close=partial(crew.ask, child.close, reader.name)
    )
