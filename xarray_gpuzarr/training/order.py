"""The order in which the samples of an epoch are read, and by which process. Pure; the same in every process.

An epoch is cut into reads. A read is one batch or, with a window, several batches whose samples are read at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.training.samples import Samples, Starts

Shards = Callable[[Column], Column]
"""From starts of samples, shape (n, n_dims), to numbers of the shards that they begin in, shape (n,)."""
_BOXES, _ORDER, _WITHIN = range(3)
"""Streams of random numbers: boxes, the order of samples, and their places within boxes are drawn from one each."""
AT_ONCE = 2**20
"""Samples whose shards are looked up at once: their starts take memory for each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything but the samples themselves that determines their order."""

    batch: int
    """Samples of a batch."""
    shuffle: bool
    window: int | None
    """Samples that are read at once, a multiple of `batch`; None for one batch."""
    seed: int
    drop_last: bool
    """Whether batches that are not full are left out."""
    rank: int
    world_size: int
    part: int = 0
    n_parts: int = 1
    """Number of processes that share the reads of a rank; this one carries out every `n_parts`-th, from `part` on."""

    @property
    def per_read(self) -> int:
        """Samples of a read."""
        return self.window or self.batch

    def n_of_rank(self, n_samples: int) -> int:
        """Return how many samples this rank has in an epoch."""
        if not self.drop_last:
            return len(range(self.rank, n_samples, self.world_size))
        return n_samples // self.world_size // self.batch * self.batch

    def n_batches(self, n_samples: int) -> int:
        """Return how many batches of an epoch this rank, or its part, has."""
        n_own = self.n_of_rank(n_samples)
        firsts = range(self.part * self.per_read, n_own, self.n_parts * self.per_read)
        return sum(-(-min(self.per_read, n_own - first) // self.batch) for first in firsts)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The samples of one rank in one epoch, in the order of its batches."""

    starts: Starts
    sample: Column
    """shape (n,): numbers of samples."""
    order: Order

    def of_read(self, number: int) -> Column:
        """Return where the samples of a read of this part begin, shape (n, n_dims)."""
        first = (self.order.part + number * self.order.n_parts) * self.order.per_read
        return self.starts.of(self.sample[first : first + self.order.per_read])

    @cached_property
    def checksum(self) -> str:
        """Checksum of the samples and their order."""
        first = self.starts.of(self.sample[: self.order.per_read])
        return f"{zlib.crc32(first.tobytes(), zlib.crc32(self.sample.tobytes())):08x}"


def require_batches(order: Order, samples: Samples) -> None:
    """Raise `OptionError` if an epoch would be empty on some rank."""
    least = samples.n_samples // order.world_size
    if least < (order.batch if order.drop_last else 1):
        raise OptionError(
            "too few samples for a batch on each rank",
            tried=f"batches of {order.batch} samples on {order.world_size} ranks, drop_last={order.drop_last}",
            found=f"{samples.n_samples} samples",
            do="give smaller batches or samples, a shorter stride=, or fewer ranks",
        )


def draw_epoch(samples: Samples, order: Order, number: int, shards: Shards) -> Epoch:
    """Return the epoch of a number, for one rank; `shards` is only asked if samples are shuffled in windows."""

    def rng(what: int) -> np.random.Generator:
        return np.random.default_rng([order.seed, number, what])

    n_samples, n_own = samples.n_samples, order.n_of_rank(samples.n_samples)
    starts = samples.starts(rng(_BOXES))
    if order.shuffle and order.window is not None:
        runs = (np.arange(i, min(i + AT_ONCE, n_samples)) for i in range(0, n_samples, AT_ONCE))
        # Those of a shard side by side, shards in random order.
        names, which = np.unique(np.concatenate([shards(starts.of(run)) for run in runs]), return_inverse=True)
        by_shard = np.argsort(rng(_ORDER).permutation(len(names))[which], kind="stable")
        # A rank has a run of them, which meets few shards of other ranks.
        per_rank, rest = divmod(n_samples, order.world_size)
        first = order.rank * per_rank + min(order.rank, 0 if order.drop_last else rest)
        sample, within = by_shard[first : first + n_own].copy(), rng(_WITHIN)
        for start in range(0, n_own, order.per_read):
            sample[start : start + order.per_read] = within.permutation(sample[start : start + order.per_read])
    else:
        all_samples = rng(_ORDER).permutation(n_samples) if order.shuffle else np.arange(n_samples)
        sample = all_samples[order.rank :: order.world_size][:n_own]
    return Epoch(starts=starts, sample=np.ascontiguousarray(sample, np.int64), order=order)
