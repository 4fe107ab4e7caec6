"""The stages of one shard, one after another and each alone, as the GPU blog lists them: read, decode, compute.

There is no transfer on the host. What a reader does side by side is taken apart here; nothing of xarray_gpuzarr runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.host.chunk_table import Part, read_parts
from benchmarks.host.task import Array, Opened, Task
from benchmarks.arrays.published import BLOG_PRODUCTS
from benchmarks.host.speed_of_light import PlainLoop


def open_read_stage(task: Task) -> Opened:
    """Open the first stage: all stored bytes of a shard into memory that is there already."""
    file = first_shard_parts(task)[0].path
    buffer = np.empty(Path(file).stat().st_size, np.uint8)

    def run() -> Array:
        with open(file, "rb", buffering=0) as shard:  # noqa: PTH123  # readinto
            shard.readinto(buffer)
        return np.asarray(buffer.nbytes)

    run()
    return Opened(run=run, compared=False)


def open_decode_stage(task: Task) -> Opened:
    """Open the second stage: its chunks, in memory already, decoded by as many threads as there are cores."""
    loop = PlainLoop(task.workload, task.path / task.workload.variable, parts=first_shard_parts(task))
    resident = {part.offset: memoryview(bytes(loop.fetch(part))) for part in loop.parts}
    loop.fetch = lambda part: resident[part.offset]
    return Opened(run=loop.visit, compared=False)


def open_compute_stage(task: Task) -> Opened:
    """Open the last stage: the blog's products of a shard with itself."""
    values = task.workload.tiles().reshape(-1)
    n = int(np.prod(task.workload.whole))
    shard = np.resize(values, n)
    return Opened(run=lambda: compute(shard), compared=False)


def compute(shard: Array) -> Array:
    """Return what the blog computes of a shard: its product with itself, as often as there."""
    flat = shard.reshape(-1)
    products = [flat @ flat for _ in range(BLOG_PRODUCTS)]
    return np.asarray(products[-1])


def first_shard_parts(task: Task) -> list[Part]:
    """Return the reads that fetch all chunks of the first shard."""
    parts = read_parts(task.workload, task.path / task.workload.variable)
    return [part for part in parts if part.path == parts[0].path]


def shard_stored_nbytes(task: Task) -> int:
    """Return the bytes of the first shard's object."""
    return os.stat(first_shard_parts(task)[0].path).st_size  # noqa: PTH116  # a string
