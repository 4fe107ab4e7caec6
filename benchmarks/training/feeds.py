"""What a training loop asks for: batches of crops of one array, at the same places for every loader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.arrays.workloads import Workload

BATCH = 16
"""Samples of a batch."""
PREFETCH = 2
"""Batches that are read ahead."""
_SEED = 20261122

Box = tuple[slice, ...]
Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Crops of one array in an order without any pattern, no crop twice."""

    workload: Workload
    path: Path = Path()
    """Of the store: a group that holds `workload.variable`."""
    url: str = ""
    """Of the server to read from; empty: local files."""
    crop: tuple[int, ...]
    """Shape of a sample, elements."""
    n_batches: int

    def scaled(self, scale: float) -> Feed:
        """Return the same with a smaller array, crops that are as much smaller, and fewer of them."""
        small = self.workload if scale == 1 else self.workload.scaled(scale)
        axes = zip(self.crop, small.shape, self.workload.shape, strict=True)
        feed = replace(self, workload=small, crop=tuple(max(1, n * new // old) for n, new, old in axes))
        return replace(feed, n_batches=min(self.n_batches, prod(feed.grid) // BATCH))

    @property
    def stride(self) -> tuple[int, ...]:
        """Elements between neighbouring crops, a third of a crop: where borders of chunks lie in them varies."""
        return tuple(max(1, n // 3) for n in self.crop)

    @property
    def grid(self) -> tuple[int, ...]:
        """Crops along each axis."""
        axes = zip(self.workload.shape, self.crop, self.stride, strict=True)
        return tuple((n - crop) // stride + 1 for n, crop, stride in axes)

    @property
    def n_samples(self) -> int:
        """Samples that are read."""
        return self.n_batches * BATCH

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return self.n_samples * prod(self.crop) * self.workload.itemsize

    @property
    def sample(self) -> Column:
        """Numbers of the crops in C order of the grid, shape (n_batches, BATCH)."""
        drawn = np.random.default_rng(_SEED).choice(prod(self.grid), self.n_samples, replace=False)
        return drawn.reshape(self.n_batches, BATCH)

    @property
    def start(self) -> Column:
        """First elements of the crops, shape (n_batches, BATCH, ndim)."""
        return np.stack(np.unravel_index(self.sample, self.grid), axis=-1) * self.stride

    @property
    def boxes(self) -> list[list[Box]]:
        """The crops of each batch."""
        return [
            [tuple(slice(s, s + n) for s, n in zip(start, self.crop, strict=True)) for start in batch]
            for batch in self.start.tolist()
        ]
