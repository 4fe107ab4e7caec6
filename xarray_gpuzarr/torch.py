"""Batches for PyTorch's `DataLoader`. The one module that imports torch; nothing imports this.

Without worker processes a `DataLoader` adds little: `Batches` reads ahead on threads already. With workers, each reads
every n-th batch, so that a rank's batches come in the same order as without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from xarray import Dataset

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.threads import n_cores
from xarray_gpuzarr.training import Batches

_MOST_WORKERS = 1024
_NUMERIC = "biufc"
_THREADS = "XARRAY_GPUZARR_NUM_THREADS"


def tensors(batch: Dataset) -> dict[str, torch.Tensor]:
    """Return the numeric data variables of a batch as tensors where they are, without a copy if possible.

    Parameters
    ----------
    batch : xarray.Dataset
        Of NumPy or CuPy arrays. A byte order that is not the machine's is changed, which copies.
    """
    arrays = {str(name): variable.data for name, variable in batch.data_vars.items()}
    return {name: _tensor(array) for name, array in arrays.items() if array.dtype.kind in _NUMERIC}


def _tensor(array: Any) -> torch.Tensor:
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.asarray(array, array.dtype.newbyteorder("=")))
    return torch.from_dlpack(array)


class IterableBatches(IterableDataset[Any]):  # type: ignore[misc]  # where torch is not installed
    """Batches as a dataset of PyTorch: ``DataLoader(IterableBatches(batches), batch_size=None, num_workers=...)``.

    Parameters
    ----------
    batches : Batches
    convert : callable, optional
        From a batch, an `xarray.Dataset`, to what the loader gives; `tensors` if left out.

    Notes
    -----
    Worker processes share the cores of this one, unless ``XARRAY_GPUZARR_NUM_THREADS`` is set. They cannot use a GPU
    that was used before they were forked off: batches on a GPU want ``num_workers=0``.
    """

    def __init__(self, batches: Batches, convert: Callable[[Dataset], Any] = tensors) -> None:
        self._batches = batches
        self._convert = convert
        self._part: Batches | None = None
        """What this process reads, if it is a worker's."""
        self._is_resumed = False
        # Workers may be new in each epoch: what they remember of the last one is in memory that all share.
        self._next_epoch = torch.full((_MOST_WORKERS,), batches.next_epoch).share_memory_()
        self._first_epoch = batches.next_epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """Go through the next epoch, or a worker's part of it."""
        batches, info = self._here(), get_worker_info()
        if info is not None:
            if not self._is_resumed:
                batches.set_epoch(int(self._next_epoch[info.id]))
            self._is_resumed = False
            self._next_epoch[info.id] = batches.next_epoch + 1
        with iter(batches) as iterator:
            yield from map(self._convert, iterator)

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be the one of a number; see `Batches.set_epoch`."""
        self._batches.set_epoch(epoch)
        self._next_epoch.fill_(epoch)
        self._first_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return how far this process has come; see `Batches.state_dict`.

        Raises
        ------
        OptionError
            Worker processes read: only they know, as torchdata's ``StatefulDataLoader`` asks them.
        """
        if get_worker_info() is None and bool((self._next_epoch != self._first_epoch).any()):
            raise OptionError(
                "the state of batches that worker processes read is not known here",
                tried="IterableBatches.state_dict() beside workers of a DataLoader",
                found="the loader has taken more batches from them than it has handed over",
                do="use num_workers=0, which reads ahead on threads, or torchdata's StatefulDataLoader",
            )
        return self._here().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; see `Batches.load_state_dict`."""
        self._here().load_state_dict(state)
        self._is_resumed = True

    def _here(self) -> Batches:
        """Return what this process reads."""
        info = get_worker_info()
        if info is None:
            return self._batches
        if self._part is None:
            os.environ.setdefault(_THREADS, str(max(1, n_cores() // info.num_workers)))
            self._part = self._batches.part(info.id, info.num_workers)
        return self._part
