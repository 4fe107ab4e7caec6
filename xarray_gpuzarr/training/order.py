"""`Order` and `draw_epoch`: the order in which the samples of an epoch are read, and the process that reads each. Pure.

All processes come to the same order without talking to each other. The samples of a rank are cut into reads. A read is
one batch or, with a window, several batches whose samples are read together.
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

ShardNumbers = Callable[[Column], Column]
"""Returns the numbers of the shards, shape (n,), that samples begin in, given their starts of shape (n, n_dims)."""
_BOX_STREAM, _ORDER_STREAM, _WINDOW_STREAM = range(3)
"""Separate streams of random numbers: for random boxes, for the order of samples, and for the order in a window."""
LOOK_UP_SIZE = 2**20
"""Number of samples whose shards are looked up at once, which limits the memory that their starts take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything except the samples themselves that determines their order."""

    batch: int
    """Number of samples in a batch."""
    shuffle: bool
    window: int | None
    """Number of samples that are read together, a multiple of `batch`. None for one batch."""
    seed: int
    drop_last: bool
    """Whether batches that are not full are left out."""
    rank: int
    world_size: int
    part: int = 0
    """Number of this process among those that share the reads of a rank. It carries out every `n_parts`-th read."""
    n_parts: int = 1
    """Number of processes that share the reads of a rank."""

    @property
    def samples_per_read(self) -> int:
        """Number of samples in a read."""
        return self.window or self.batch

    def n_samples_of_rank(self, n_samples: int) -> int:
        """Return the number of samples of an epoch that this rank has, of `n_samples` in all."""
        if not self.drop_last:
            return len(range(self.rank, n_samples, self.world_size))
        return n_samples // self.world_size // self.batch * self.batch

    def n_batches(self, n_samples: int) -> int:
        """Return the number of batches of an epoch that this process has, given the `n_samples` of all ranks."""
        n_own = self.n_samples_of_rank(n_samples)
        # The first sample of each read of this process.
        first_samples = range(self.part * self.samples_per_read, n_own, self.n_parts * self.samples_per_read)
        return sum(-(-min(self.samples_per_read, n_own - first) // self.batch) for first in first_samples)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The samples of one rank in one epoch, in the order of its batches."""

    starts: Starts
    """Positions of the samples of all ranks."""
    sample: Column
    """Numbers of the samples of this rank, shape (n,)."""
    order: Order

    def starts_of_read(self, number: int) -> Column:
        """Return the first elements of the samples of a read of this process, shape (n, n_dims)."""
        number_in_rank = self.order.part + number * self.order.n_parts
        first = number_in_rank * self.order.samples_per_read
        return self.starts.first_elements(self.sample[first : first + self.order.samples_per_read])

    @cached_property
    def checksum(self) -> str:
        """CRC-32 of the numbers of the samples in order, and of the positions in the first read, in hexadecimal.

        The positions of one read are enough to notice that other boxes were drawn.
        """
        starts = self.starts.first_elements(self.sample[: self.order.samples_per_read])
        return f"{zlib.crc32(starts.tobytes(), zlib.crc32(self.sample.tobytes())):08x}"


def require_batches(order: Order, samples: Samples) -> None:
    """Raise an `OptionError` if some rank has no batch in an epoch."""
    fewest = samples.n_samples // order.world_size
    n_needed = order.batch if order.drop_last else 1
    if fewest < n_needed:
        raise OptionError(
            "too few samples for a batch on each rank",
            tried=f"batches of {order.batch} samples on {order.world_size} ranks, drop_last={order.drop_last}",
            found=f"{samples.n_samples} samples",
            do="give smaller batches or samples, a shorter stride=, or fewer ranks",
        )


def draw_epoch(samples: Samples, order: Order, number: int, shard_numbers: ShardNumbers) -> Epoch:
    """Return an epoch of one rank.

    Parameters
    ----------
    samples : Samples
        Samples of all ranks.
    order : Order
        Determines the order together with `number`.
    number : int
        Number of the epoch.
    shard_numbers : callable
        Called only if samples are shuffled in windows.
    """
    starts = samples.starts(_generator(order, number, _BOX_STREAM))
    n_samples = samples.n_samples
    if order.shuffle and order.window is not None:
        own_samples = _shuffle_in_windows(starts, n_samples, order, number, shard_numbers)
    else:
        all_samples = np.arange(n_samples)
        if order.shuffle:
            all_samples = _generator(order, number, _ORDER_STREAM).permutation(n_samples)
        own_samples = all_samples[order.rank :: order.world_size][: order.n_samples_of_rank(n_samples)]
    return Epoch(starts=starts, sample=np.ascontiguousarray(own_samples, np.int64), order=order)


def _generator(order: Order, epoch: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([order.seed, epoch, stream])


def _shuffle_in_windows(
    starts: Starts, n_samples: int, order: Order, epoch: int, shard_numbers: ShardNumbers
) -> Column:
    """Return the numbers of the samples of a rank, shape (n,), shuffled so that a window has samples of few shards."""
    runs = [np.arange(i, min(i + LOOK_UP_SIZE, n_samples)) for i in range(0, n_samples, LOOK_UP_SIZE)]
    shards = np.concatenate([shard_numbers(starts.first_elements(run)) for run in runs])
    # Put the shards into random order, and the samples of each side by side.
    distinct_shards, shard_of_sample = np.unique(shards, return_inverse=True)
    shard_positions = _generator(order, epoch, _ORDER_STREAM).permutation(len(distinct_shards))
    by_shard = np.argsort(shard_positions[shard_of_sample], kind="stable")
    # Each rank takes consecutive samples, so that few shards are read by several ranks. The first `n_extra` ranks take
    # one sample more than the others, unless batches that are not full are left out.
    samples_per_rank, n_extra = divmod(n_samples, order.world_size)
    n_extra_before = 0 if order.drop_last else min(order.rank, n_extra)
    first = order.rank * samples_per_rank + n_extra_before
    own_samples = by_shard[first : first + order.n_samples_of_rank(n_samples)].copy()
    # Shuffle each window.
    generator = _generator(order, epoch, _WINDOW_STREAM)
    for start in range(0, len(own_samples), order.samples_per_read):
        window = slice(start, start + order.samples_per_read)
        own_samples[window] = generator.permutation(own_samples[window])
    return own_samples
