"""The batches of one epoch, one after another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from xarray import DataArray, Dataset

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.host_memory import available_nbytes
from xarray_gpuzarr.read.stopping import Stop
from xarray_gpuzarr.training.ahead import Ahead, AsCaller
from xarray_gpuzarr.training.order import Epoch, Order
from xarray_gpuzarr.training.samples import Samples
from xarray_gpuzarr.training.template import Arrays, Template


@dataclass(slots=True)
class Progress:
    """How far an epoch has come."""

    order: Order
    epoch: int
    batch: int
    """Batches that were handed over."""
    begun: bool = False
    """Whether an iterator goes through it."""


class BatchIterator:
    """An epoch that has begun. Closes itself at its end, at an error, and when it is forgotten.

    At most `n_ahead` reads are under way or have results that are not handed over yet; 0 reads when a batch is asked
    for. `progress` says where to begin, and is kept up to date.
    """

    def __init__(
        self, epoch: Epoch, template: Template, n_ahead: int, progress: Progress, *, n_batches: int, as_caller: AsCaller
    ) -> None:
        self._template = template
        self._progress = progress
        self._n_batches = n_batches
        self._batch = epoch.order.batch
        self._per_read = epoch.order.per_read // self._batch

        def read(number: int, stop: Stop) -> Arrays:
            return template.read(epoch.of_read(number), stop)

        first, n_reads = progress.batch // self._per_read, -(-n_batches // self._per_read)
        self._reads = Ahead(read, first, n_reads, n_ahead, as_caller) if n_ahead else AtOnce(read, as_caller)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Dataset | DataArray:
        try:
            batch = self._next()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        self._progress.batch += 1
        return batch

    def _next(self) -> Dataset | DataArray | None:
        """Wait for the next batch; None if there is none any more."""
        number, at = divmod(self._progress.batch, self._per_read)
        if self._progress.batch >= self._n_batches or self._reads.closed:
            return None
        arrays = self._reads.result(number)
        if arrays is None:
            return None
        batch = self._template.batch(arrays, slice(at * self._batch, (at + 1) * self._batch))
        if at + 1 == self._per_read or self._progress.batch + 1 == self._n_batches:
            self._reads.done_with(number)
        return batch

    def close(self) -> None:
        """Stop reads that are under way, and wait until they have ended; there are no more batches."""
        self._reads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AtOnce:
    """Results of reads that begin when they are asked for, on the caller's thread; as `Ahead`."""

    def __init__(self, read: Callable[[int, Stop], Arrays], as_caller: AsCaller) -> None:
        self._read = read
        self._as_caller = as_caller
        self._found: tuple[int, Arrays] | None = None
        self.closed = False

    def result(self, number: int) -> Arrays | None:
        """Read, or return what was read already."""
        if self._found is None or self._found[0] != number:
            with self._as_caller():
                self._found = number, self._read(number, Stop())
        return self._found[1]

    def done_with(self, number: int) -> None:  # noqa: ARG002
        """Forget what was read."""
        self._found = None

    def close(self) -> None:
        """Forget what was read; there is no more."""
        self._found = None
        self.closed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on reading ahead that the caller has given."""

    prefetch: int
    """Batches, or windows, that are read ahead."""
    memory: int | None
    """Bytes of results in all processes of a rank; None for a part of what is free."""

    def n_ahead(self, template: Template, order: Order, samples: Samples) -> int:
        """Return how many results may be there at once in one process of a rank; 0 if nothing is read ahead.

        If not even one fits, that is an `OptionError`.
        """
        nbytes = max(1, template.nbytes * min(order.per_read, order.n_of_rank(samples.n_samples)))
        is_consumed_slowly = order.per_read > order.batch
        if self.memory is not None:
            limit = self.memory // order.n_parts // nbytes
        elif all(lazy.device == "host" for lazy in template.lazies):
            local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # as torchrun says; without it, this is the only one
            n_local_ranks = max(1, int(local_ranks)) if local_ranks.isdecimal() else 1
            n_sharing = order.n_parts * min(order.world_size, n_local_ranks)
            limit = max(1, (available_nbytes() or sys.maxsize) // 4 // n_sharing // nbytes)
        else:
            limit = self.prefetch + 1
        if not limit:
            raise OptionError(
                "the memory that batches may take does not suffice",
                tried=f"memory={self.memory}" + f" in {order.n_parts} processes" * (order.n_parts > 1),
                found=f"one {'window' if is_consumed_slowly else 'batch'} takes {nbytes} bytes",
                do="give more memory=, a smaller window=, batch= or sizes=, or fewer processes",
            )
        return min(self.prefetch + is_consumed_slowly, limit) if self.prefetch else 0
