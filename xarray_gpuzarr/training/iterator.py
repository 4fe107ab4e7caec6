"""`BatchIterator`: the batches of one epoch, one after another; and `Budget`: how far it reads ahead."""

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
    """How many batches of an epoch were handed over."""

    order: Order
    epoch: int
    """Number of the epoch."""
    n_done: int
    """Number of batches that were handed over, and so the number of the next batch."""
    begun: bool = False
    """Whether an iterator hands over the batches of this epoch."""


class BatchIterator:
    """The batches of an epoch. Closes itself at the end of the epoch and after an error.

    Parameters
    ----------
    epoch : Epoch
        Samples and their order.
    template : Template
        Reads samples and makes batches of them.
    n_ahead : int
        Largest number of reads that are under way or have results that are not handed over yet. If 0, samples are read
        when a batch is asked for.
    progress : Progress
        Where to begin. Updated after each batch.
    n_batches : int
        Number of batches of the epoch that this process hands over.
    as_caller : callable
        Returns the context manager in which threads read ahead; see `Ahead`.
    """

    def __init__(
        self, epoch: Epoch, template: Template, n_ahead: int, progress: Progress, *, n_batches: int, as_caller: AsCaller
    ) -> None:
        self._template = template
        self._progress = progress
        self._n_batches = n_batches
        self._batch_size = epoch.order.batch
        self._batches_per_read = epoch.order.samples_per_read // self._batch_size

        def read(number: int, stop: Stop) -> Arrays:
            return template.read(epoch.starts_of_read(number), stop)

        self._reads: Ahead | OnDemand
        if n_ahead:
            first_read = progress.n_done // self._batches_per_read
            n_reads = -(-n_batches // self._batches_per_read)
            self._reads = Ahead(read, first_read, n_reads, n_ahead, as_caller)
        else:
            self._reads = OnDemand(read, as_caller)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Dataset | DataArray:
        try:
            batch = self._next_batch()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        self._progress.n_done += 1
        return batch

    def _next_batch(self) -> Dataset | DataArray | None:
        """Wait for the next batch and return it, or None if there are no more."""
        if self._progress.n_done >= self._n_batches or self._reads.closed:
            return None
        read_number, batch_of_read = divmod(self._progress.n_done, self._batches_per_read)
        arrays = self._reads.result(read_number)
        if arrays is None:
            return None
        first_sample = batch_of_read * self._batch_size
        batch = self._template.batch(arrays, slice(first_sample, first_sample + self._batch_size))
        is_last_of_read = batch_of_read + 1 == self._batches_per_read
        if is_last_of_read or self._progress.n_done + 1 == self._n_batches:
            self._reads.finish_with(read_number)
        return batch

    def close(self) -> None:
        """Stop reads that are under way and wait until they have ended. There are no more batches afterwards."""
        self._reads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OnDemand:
    """Results of reads that the consumer's thread carries out when it asks for them. It has the methods of `Ahead`."""

    def __init__(self, read: Callable[[int, Stop], Arrays], as_caller: AsCaller) -> None:
        self._read = read
        self._as_caller = as_caller
        self._latest: tuple[int, Arrays] | None = None
        """Number and result of the latest read."""
        self.closed = False

    def result(self, number: int) -> Arrays | None:
        """Return the result of a read, which is carried out unless it is the latest one."""
        if self._latest is None or self._latest[0] != number:
            with self._as_caller():
                self._latest = number, self._read(number, Stop())
        return self._latest[1]

    def finish_with(self, number: int) -> None:  # noqa: ARG002
        """Drop the latest result."""
        self._latest = None

    def close(self) -> None:
        """Drop the latest result; there are no more."""
        self._latest = None
        self.closed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits on reading ahead that `batches` was given."""

    prefetch: int
    """Number of batches, or windows, that are read ahead."""
    memory: int | None
    """Largest number of bytes of results, in all processes of a rank together. None: for results on the host, a quarter
    of its free memory, shared by the ranks on this machine; no limit for results on a GPU."""

    def n_ahead(self, template: Template, order: Order, samples: Samples) -> int:
        """Return the largest number of results that one process of a rank may hold, or 0 if nothing is read ahead.

        Raises
        ------
        OptionError
            A single result takes more than `memory`.
        """
        n_samples = min(order.samples_per_read, order.n_samples_of_rank(samples.n_samples))
        nbytes = max(1, template.nbytes * n_samples)
        reads_windows = order.samples_per_read > order.batch
        if self.memory is not None:
            limit = self.memory // order.n_parts // nbytes
        elif all(lazy.device == "host" for lazy in template.lazies):
            free_nbytes = available_nbytes() or sys.maxsize  # no limit if it is unknown
            limit = max(1, free_nbytes // 4 // _n_processes(order) // nbytes)
        else:
            limit = self.prefetch + 1  # no limit: the result of this method never exceeds it
        if not limit:
            processes = f" in {order.n_parts} processes" if order.n_parts > 1 else ""
            raise OptionError(
                "the memory that batches may take does not suffice",
                tried=f"memory={self.memory}{processes}",
                found=f"one {'window' if reads_windows else 'batch'} takes {nbytes} bytes",
                do="give more memory=, a smaller window=, batch= or sizes=, or fewer processes",
            )
        if not self.prefetch:
            return 0
        # The batches of a window are handed over one by one, and the window is kept until the last of them. So one
        # window may be held in addition to those that are read ahead.
        n_results = self.prefetch + 1 if reads_windows else self.prefetch
        return min(n_results, limit)


def _n_processes(order: Order) -> int:
    """Return the number of processes on this machine that read batches, as far as torchrun says."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by torchrun; without it, this rank counts alone
    n_local_ranks = max(1, int(local_ranks)) if local_ranks.isdecimal() else 1
    # The caller may have given a smaller `world_size` than that of torchrun.
    return order.n_parts * min(order.world_size, n_local_ranks)
