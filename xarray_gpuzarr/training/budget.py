"""Bounds the number of results that wait at once, in each of the processes that share a machine's memory."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.host_memory import available_nbytes
from xarray_gpuzarr.training.order import Order
from xarray_gpuzarr.training.samples import Samples
from xarray_gpuzarr.training.template import Template


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
