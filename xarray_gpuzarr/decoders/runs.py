"""Raw chunks side by side in memory: which of them one strided copy can put into place.

zarr-python writes the chunks of a shard in Morton order, so that every other chunk, or every fourth, has its place
right behind the last one along some axis. To copy these together takes NumPy as long, and Python once instead of often.
Neighbours along the last axis are left to copies of their own: NumPy's inner loop would be as short as their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]


_STEPS_PER_BIT = 3
"""In Morton order, as in C order, chunks go on in few ways: not many more than their number has bits."""


class Run(NamedTuple):
    """Chunks that lie on a lattice, both where they are and where they go."""

    first: int
    """Number of the first chunk."""
    shape: tuple[int, ...]
    """Chunks along each axis of the lattice; no axis for a single chunk."""
    steps: tuple[int, ...]
    """Difference of the numbers of neighbours, per axis."""
    strides: tuple[int, ...]
    """Bytes in the output between neighbours, per axis."""


@lru_cache(maxsize=256)
def cut_runs(corner: tuple[int, ...], column: tuple[int, ...]) -> tuple[Run, ...]:
    """Cut chunks into runs.

    Parameters
    ----------
    corner : tuple of int
        First byte of each chunk in the output, counted from that of the first one.
    column : tuple of int
        Where each chunk begins along the last axis; only chunks of one column share a run.

    Returns
    -------
    tuple of Run
        All chunks; none at all if the chunks are in no order, and looking for runs would cost more than they save.
    """
    if len(set(np.diff(corner).tolist())) > _STEPS_PER_BIT * len(corner).bit_length():
        return ()
    at, columns = np.array([range(len(corner)), corner]).T, np.array(column)
    return tuple(run for one in np.unique(columns) for run in _cut(at[columns == one]))


def _cut(at: Column) -> Iterator[Run]:
    run = _lattice(at)
    if run is not None:
        yield run
        return
    half = 1 << (len(at) - 1).bit_length() - 1  # a power of two: so long are the boxes of Morton order
    yield from _cut(at[:half])
    yield from _cut(at[half:])


def _lattice(at: Column) -> Run | None:
    """Return the lattice that points walk through in C order; None if there is none."""
    left, axes = at, []
    while len(left) > 1:
        steps = np.diff(left, axis=0)
        other = (steps != steps[0]).any(axis=1).nonzero()[0]
        length = int(other[0]) + 1 if len(other) else len(left)
        if len(left) % length:
            return None
        table = left.reshape(-1, length, 2)
        if (np.diff(table, axis=1) != steps[0]).any():
            return None
        axes.append((length, *steps[0].tolist()))
        left = table[:, 0]
    shape, numbers, strides = zip(*reversed(axes), strict=True) if axes else ((), (), ())
    return Run(int(at[0, 0]), shape, numbers, strides)
