"""Which boxes of an array are read: all of it, object by object, or a few that are drawn from a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from benchmarks.arrays.workloads import Operation, Workload
from benchmarks.runner.readers import Box

_N_CHUNKS, _N_CROPS = 32, 16
_CROP = 64
"""Elements of a crop along an axis."""
_CROP_STEPS = 4
"""And along the first axis of a series of fields."""


def whole_box(workload: Workload) -> Box:
    """Return the box that is the whole array."""
    return tuple(slice(0, n) for n in workload.shape)


def object_boxes(workload: Workload) -> Iterator[Box]:
    """Return the box of every shard, or of every chunk where there are none, cut at the array's edge."""
    counts = (range(-(-n // w)) for n, w in zip(workload.shape, workload.whole, strict=True))
    for key in product(*counts):
        axes = zip(key, workload.whole, workload.shape, strict=True)
        yield tuple(slice(k * w, min(n, (k + 1) * w)) for k, w, n in axes)


def boxes_of(operation: Operation, workload: Workload) -> tuple[Box, ...]:
    """Return the boxes of a selection; none for operations on the whole array."""
    rng = np.random.default_rng(0)
    if operation == "chunk":
        return tuple(_chunk_box(workload, rng) for _ in range(_N_CHUNKS))
    if operation == "plane":
        return tuple(_plane(workload, axis, rng) for axis in range(len(workload.shape)))
    if operation == "crop":
        first = _CROP_STEPS if workload.packed else _CROP
        lengths = [min(n, first if axis == 0 else _CROP) for axis, n in enumerate(workload.shape)]
        return tuple(_crop(workload, lengths, rng) for _ in range(_N_CROPS))
    return ()


def _chunk_box(workload: Workload, rng: np.random.Generator) -> Box:
    coord = [int(rng.integers(n)) for n in workload.grid]
    axes = zip(coord, workload.chunks, workload.shape, strict=True)
    return tuple(slice(at * length, min(n, (at + 1) * length)) for at, length, n in axes)


def _plane(workload: Workload, across: int, rng: np.random.Generator) -> Box:
    at = int(rng.integers(workload.shape[across]))
    return tuple(slice(at, at + 1) if axis == across else slice(0, n) for axis, n in enumerate(workload.shape))


def _crop(workload: Workload, lengths: list[int], rng: np.random.Generator) -> Box:
    starts = [int(rng.integers(n - length + 1)) for n, length in zip(workload.shape, lengths, strict=True)]
    return tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))
