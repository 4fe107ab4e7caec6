"""Batches for PyTorch's `DataLoader`. The one module that imports torch; nothing imports this.

Without worker processes a `DataLoader` adds little: `Batches` reads ahead on threads already. With workers, each reads
every n-th batch, so that a rank's batches come in the same order as without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import currentframe, signature
from multiprocessing import current_process, parent_process
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from xarray import DataArray, Dataset

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.threads import n_cores
from xarray_gpuzarr.training import Batches
from xarray_gpuzarr.training.iterator import BatchIterator
from xarray_gpuzarr.training.passes import Pass, Passes

_NUMERIC = "biufc"
_THREADS = "XARRAY_GPUZARR_NUM_THREADS"


def tensors(batch: Dataset | DataArray) -> dict[str, torch.Tensor] | torch.Tensor:
    """Return the numeric data variables of a batch as tensors where they are, without a copy if possible.

    Parameters
    ----------
    batch : xarray.Dataset or xarray.DataArray
        Of NumPy or CuPy arrays. A byte order that is not the machine's is changed, which copies.

    Returns
    -------
    dict of str to torch.Tensor, or torch.Tensor
        The tensor of each variable by its name, or that of a DataArray.
    """
    if isinstance(batch, DataArray):
        return _tensor(batch.data)
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
        Choose its epochs through this dataset from now on.
    convert : callable, optional
        Converts a batch, an `xarray.Dataset`, to what the loader returns. By default `tensors`.

    Notes
    -----
    Each ``iter()`` of a loader starts the next epoch, with or without worker processes. Workers share the cores of this
    process, unless ``XARRAY_GPUZARR_NUM_THREADS`` is set. Forked workers cannot use a GPU that this process has used,
    so use ``num_workers=0`` for batches on a GPU. These belong to the stream that is PyTorch's current one when the
    first batch of an epoch is asked for.
    """

    def __init__(self, batches: Batches, convert: Callable[[Any], Any] = tensors) -> None:
        self._batches = batches
        self._convert = convert
        self._part: Batches | None = None
        """What this process reads, if it is a worker's."""
        self._passes = Passes(batches.next_epoch, batches.next_batch)
        self._n_begun: dict[int, int] = {}
        """By process, which those that it forks off inherit: passes that it has begun."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank."""
        return len(self._batches)

    def __iter__(self) -> BatchesOfPass:
        """Begin the next epoch, or a worker's part of it."""
        info, here = get_worker_info(), os.getpid()
        number = self._n_begun.get(here, 0)
        self._n_begun[here] = number + 1
        if info is not None and self._part is None:
            os.environ.setdefault(_THREADS, str(max(1, n_cores() // info.num_workers)))
            self._part = self._batches.part(info.id, info.num_workers)
        batches = self._batches if info is None or self._part is None else self._part
        return BatchesOfPass(batches, self._convert, self._passes, _this_pass(info, number))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read the epoch of a number, whoever carries it out; see `Batches.set_epoch`.

        Raises
        ------
        OptionError
            This is a worker process, or `epoch` is no whole number.
        """
        if get_worker_info() is not None:
            raise OptionError(
                "the epoch is not for one worker to choose",
                tried=f"IterableBatches.set_epoch({epoch!r})"[:200] + " in a worker of a DataLoader",
                found="all workers of a pass read the same epoch",
                do="call it in the process that goes through the loader, before each pass",
            )
        self._batches.set_epoch(epoch)
        self._passes.move(self._batches.next_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return how far this process has come, see `Batches.state_dict`; nothing in a worker, whose passes know.

        Raises
        ------
        OptionError
            Worker processes read: only they know, as torchdata's ``StatefulDataLoader`` asks them.
        """
        if get_worker_info() is not None:
            return {}
        if self._passes.n_workers():
            raise OptionError(
                "the state of batches that worker processes read is not known here",
                tried="IterableBatches.state_dict() beside workers of a DataLoader",
                found="the loader has taken more batches from them than it has handed over",
                do="use num_workers=0, which reads ahead on threads, or torchdata's StatefulDataLoader",
            )
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; see `Batches.load_state_dict`. In a worker, its pass does."""
        if get_worker_info() is None:
            self._batches.load_state_dict(state)
            self._passes.move(self._batches.next_epoch, self._batches.next_batch)


class BatchesOfPass(Iterator[Any]):
    """An epoch that has begun, or a worker's part of it. Has a state of its own, which torchdata keeps."""

    def __init__(self, batches: Batches, convert: Callable[[Any], Any], passes: Passes, which: Pass) -> None:
        self._batches = batches
        self._convert = convert
        self._passes = passes
        self._which = which
        # It is no generator: a garbage collection closes generators, and may run on a thread that holds a lock that the
        # reads need whose end `BatchIterator.close` waits for.
        self._reading: BatchIterator | None = None
        epoch, batch = passes.begin(which)
        if not batch:
            batches.set_epoch(epoch)
        refused = None
        if batch and which.n_workers:
            refused = OptionError(
                "a part of an epoch that has begun",
                tried=f"going on at batch {batch} of epoch {epoch} in {which.n_workers} processes",
                found="how far each of them had come is not in the state",
                do="let torchdata's StatefulDataLoader keep the state, or read with num_workers=0",
            )
        self._go_on(epoch, batch, refused)

    def _go_on(self, epoch: int, batch: int, refused: OptionError | None = None) -> None:
        if self._reading is not None:
            self._reading.close()
        self._epoch, self._batch, self._refused = epoch, batch, refused
        self._reading = None

    def _begun(self) -> BatchIterator:
        """Return the iterator of the batches; it begins, or is refused, when the first batch is asked for.

        PyTorch carries errors over only from there.
        """
        if self._refused is not None:
            raise self._refused
        if self._reading is None:
            self._reading = self._batches.begin(self._epoch, self._batch, _stream_of)
        return self._reading

    def __next__(self) -> Any:
        caller = currentframe()
        _require_no_collation(caller and caller.f_back)
        reading = self._begun()
        try:
            batch = self._convert(next(reading))
        except BaseException:
            reading.close()
            raise
        self._batch += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were handed over; all of them are not yet the beginning of the next epoch."""
        return self._batches.state_at(self._epoch, self._batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; see `Batches.load_state_dict`."""
        self._batches.load_state_dict(state)
        epoch, batch = self._batches.next_epoch, self._batches.next_batch
        self._passes.begin(self._which, epoch)
        self._go_on(epoch, batch)


def _require_no_collation(caller: FrameType | None) -> None:
    """Raise an `OptionError` if the part of a loader that asks for batches would make batches of them."""
    # Looking at the variables of a frame keeps them alive, and a user's frame may hold batches.
    is_loader = caller is not None and str(caller.f_globals.get("__name__")).startswith("torch.utils.data.")
    asking = caller.f_locals.get("self") if caller and is_loader else None
    if getattr(asking, "auto_collation", False):
        raise OptionError(
            "batches of batches",
            tried="a DataLoader around IterableBatches that puts several of its batches into one",
            found="batch_size=, whose default is 1; the samples are in batches already",
            do="give the DataLoader batch_size=None, and the number of samples as batch= of xarray_gpuzarr.batches",
        )


def _stream_of(device: int) -> int | None:
    """Return the handle of PyTorch's current stream on a GPU; None if PyTorch has no CUDA."""
    return int(torch.cuda.current_stream(device).cuda_stream) if torch.cuda.is_available() else None


def _this_pass(info: Any, number: int) -> Pass:
    """Return what this process knows of the pass that it is about to begin."""
    parent, process = parent_process(), current_process()
    if info is None or parent is None or parent.pid is None:
        return Pass(os.getpid(), number)
    child = process._identity[-1]  # noqa: SLF001  # also the end of the name, if nobody has changed that
    worker: Any = process
    pipe = 0  # on which all workers of a loader answer; where PyTorch calls it otherwise, it is not known
    with suppress(AttributeError, KeyError, TypeError, OSError):
        arguments = signature(worker._target).bind(*worker._args, **worker._kwargs).arguments  # noqa: SLF001
        pipe = os.fstat(arguments["data_queue"]._reader.fileno()).st_ino  # noqa: SLF001
    return Pass(parent.pid, number, info.num_workers, info.seed - info.id, child - info.id, pipe)
