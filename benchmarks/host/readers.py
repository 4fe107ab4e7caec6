"""All readers of the host, and what each does with a store: the shipped registry.

How a library opens an array and reads a box of it stands in `benchmarks.runner.readers`; here it becomes a whole read,
a read in pieces, or a mean. Readers to a GPU are in `gpu.readers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from benchmarks.arrays.workloads import SELECTIONS, Operation
from benchmarks.host.boxes import object_boxes, whole_box
from benchmarks.host.task import Array, Opened, Task
from benchmarks.runner.readers import READERS as SHIPPED
from benchmarks.runner.readers import ArrayReader, Box, Chunking, Location, ReadBox, open_variable
from benchmarks.runner.results import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of a table."""

    name: str
    side: Side
    operations: tuple[Operation, ...]
    open: Callable[[Task], Opened]
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of zarr-python, set in the process before anything is opened."""
    shipped: ArrayReader | None = None
    """Where it comes from the shipped registry."""


def _open_boxes(reader: ArrayReader, task: Task) -> Opened:
    """Open an array for one of the operations that read stored values."""
    workload = task.workload
    read_box = reader.open(Location(store=str(task.path), variable=workload.variable))
    if task.operation == "read":
        box = whole_box(workload)
        return Opened(run=lambda: np.asarray(read_box(box)))
    if task.operation == "chunks":
        return _open_pieces(read_box, list(object_boxes(workload)), task)
    return _open_selection(read_box, task.boxes)


def _open_selection(read_box: ReadBox, boxes: Sequence[Box]) -> Opened:
    """Read box after box, each dropped at once."""

    def run() -> None:
        for box in boxes:
            read_box(box)

    return Opened(run=run, check=lambda: np.concatenate([np.asarray(read_box(box)).reshape(-1) for box in boxes]))


def _open_pieces(read_box: ReadBox, boxes: list[Box], task: Task) -> Opened:
    """Read box after box on so many threads, each dropped at once."""
    threads = ThreadPoolExecutor(task.concurrency)

    def visit(box: Box) -> None:
        np.asarray(read_box(box))

    def assembled() -> Array:
        out = np.empty(task.workload.shape, task.workload.dtype)
        for box in boxes:
            out[box] = np.asarray(read_box(box))
        return out

    return Opened(run=lambda: list(threads.map(visit, boxes)), check=assembled)


def _open_load(reader: ArrayReader, task: Task) -> Opened:
    location = Location(store=str(task.path), variable=task.workload.variable)
    if task.operation == "mean":
        engine, chunking = _engine_of(reader.name)
        options = {"device": reader.device} if engine == "gpuzarr" else {}
        variable = open_variable(location, engine, chunking, **options)
        return Opened(run=lambda: np.asarray(variable.mean().compute().data))
    read_box, box = reader.open(location), whole_box(task.workload)
    return Opened(run=lambda: np.asarray(read_box(box)))


def _engine_of(name: str) -> tuple[str, Chunking]:
    """Return engine and chunking, which stand in the name of a reader that goes through xarray."""
    how, _, chunking = name.partition(", ")
    found = next(c for c in get_args(Chunking) if c == chunking)
    return how.split()[1], found


def _from_shipped(reader: ArrayReader) -> Reader:
    stored = reader.operation == "read"
    operations: tuple[Operation, ...] = ("read", "chunks", *SELECTIONS) if stored else ("load", "mean")

    def open_reader(task: Task) -> Opened:
        return (_open_boxes if stored else _open_load)(reader, task)

    return Reader(
        name=reader.name,
        side="ours" if reader.ours else "peer",
        operations=operations,
        open=open_reader,
        settings=reader.settings,
        shipped=reader,
    )


READERS: Mapping[str, Reader] = {
    reader.name: reader for reader in (_from_shipped(reader) for reader in SHIPPED.values() if reader.device == "host")
}
"""Name -> reader, in the order in which they start; the first one's values are the reference."""
