"""`IterableBatches`: batches for PyTorch's `DataLoader`; and `tensors`, which converts a batch.

This is the only module that imports PyTorch, and no other module of the package imports this one. Without worker
processes a `DataLoader` adds little, because `Batches` reads ahead on threads already. Each of n workers reads every
n-th batch, so that batches have the same order with and without workers; with a window, each reads every n-th window.
All processes that read for one ``iter()`` of a loader agree on its epoch through `Passes`.
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
"""Kinds of dtypes that tensors can have."""
_NUM_THREADS_VARIABLE = "XARRAY_GPUZARR_NUM_THREADS"


def tensors(batch: Dataset | DataArray) -> dict[str, torch.Tensor] | torch.Tensor:
    """Return the numeric data variables of a batch as tensors on the same device, without a copy if possible.

    Parameters
    ----------
    batch : xarray.Dataset or xarray.DataArray
        Its arrays are those of NumPy or CuPy. An array in another byte order than the machine's is copied.

    Returns
    -------
    dict of str to torch.Tensor, or torch.Tensor
        Name of each variable -> its tensor, or the tensor of a DataArray.
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
        The batches. Once they are given to this dataset, their epochs must be chosen through it.
    convert : callable, optional
        Converts a batch, an `xarray.Dataset` or `xarray.DataArray`, to what the loader returns. By default `tensors`.

    Raises
    ------
    OptionError
        If `batches` is something else, such as a dataset.

    Notes
    -----
    Each ``iter()`` of a loader starts the next epoch, with or without worker processes. Workers share the cores of this
    process, unless ``XARRAY_GPUZARR_NUM_THREADS`` is set. Forked workers cannot use a GPU that this process has used,
    so use ``num_workers=0`` for batches on a GPU. Such batches are valid on the stream that is PyTorch's current one
    when the first batch of an epoch is requested.
    """

    def __init__(self, batches: Batches, convert: Callable[[Any], Any] = tensors) -> None:
        if not isinstance(batches, Batches):
            raise OptionError(
                "IterableBatches needs batches",
                tried=f"IterableBatches({type(batches).__name__})",
                found="an object that is not cut into samples",
                do="call xarray_gpuzarr.batches(ds, sizes, batch) first",
            )
        self._batches = batches
        self._convert = convert
        self._part: Batches | None = None
        """The batches that this process reads if it is a worker."""
        self._passes = Passes(batches.next_epoch, batches.next_batch)
        self._n_begun: dict[int, int] = {}
        """Id of a process -> number of passes that the process has begun.

        A forked process inherits the entry of its parent, and counts its own passes from 0.
        """

    def __len__(self) -> int:
        """Return the number of batches in an epoch of this rank."""
        return len(self._batches)

    def __iter__(self) -> BatchesOfPass:
        """Begin the next epoch, or a worker's part of it."""
        info = get_worker_info()
        process = os.getpid()
        number = self._n_begun.get(process, 0)
        self._n_begun[process] = number + 1
        batches = self._batches
        if info is not None:
            if self._part is None:
                os.environ.setdefault(_NUM_THREADS_VARIABLE, str(max(1, n_cores() // info.num_workers)))
                self._part = self._batches.part(info.id, info.num_workers)
            batches = self._part
        return BatchesOfPass(batches, self._convert, self._passes, _current_pass(info, number))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` of a loader starts, with or without workers.

        See `Batches.set_epoch`.

        Raises
        ------
        OptionError
            This is a worker process, or `epoch` is not a whole number of at least 0.
        """
        if get_worker_info() is not None:
            raise OptionError(
                "a worker cannot choose the epoch",
                tried=f"IterableBatches.set_epoch({epoch!r})"[:200] + " in a worker of a DataLoader",
                found="all workers of a pass read the same epoch",
                do="call it in the process that goes through the loader, before each pass",
            )
        self._batches.set_epoch(epoch)
        self._passes.move(self._batches.next_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the latest epoch; see `Batches.state_dict`.

        In a worker, the state is empty. The iterators of workers have states of their own, for torchdata's
        ``StatefulDataLoader``.

        Raises
        ------
        OptionError
            Worker processes read the batches, so this process does not know how many were handed over.
        """
        if get_worker_info() is not None:
            return {}
        if self._passes.n_workers():
            raise OptionError(
                "the state is unknown, because worker processes read the batches",
                tried="IterableBatches.state_dict() beside workers of a DataLoader",
                found="the loader has taken more batches from the workers than it has handed over",
                do="use num_workers=0, which reads ahead on threads, or torchdata's StatefulDataLoader",
            )
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; see `Batches.load_state_dict`. Does nothing in a worker."""
        if get_worker_info() is None:
            self._batches.load_state_dict(state)
            self._passes.move(self._batches.next_epoch, self._batches.next_batch)


class BatchesOfPass(Iterator[Any]):
    """The batches of one pass, or a worker's part of them. torchdata's ``StatefulDataLoader`` keeps its state.

    This is a class and not a generator, because the garbage collector closes generators, on any thread. The thread may
    hold a lock that reads need, and `BatchIterator.close` would wait for these reads.
    """

    def __init__(self, batches: Batches, convert: Callable[[Any], Any], passes: Passes, current: Pass) -> None:
        self._batches = batches
        self._convert = convert
        self._passes = passes
        self._pass = current
        self._iterator: BatchIterator | None = None
        """None until the first batch is requested."""
        epoch, batch = passes.begin(current)
        # If `batch` is not 0, a state was loaded. `set_epoch` would forget which rank that state belongs to.
        if not batch:
            batches.set_epoch(epoch)  # the state of `batches` is of this epoch from now on
        error = None
        if batch and current.n_workers:
            error = OptionError(
                "worker processes cannot continue in the middle of an epoch",
                tried=f"going on at batch {batch} of epoch {epoch} in {current.n_workers} processes",
                found="the loaded state does not say how far each worker had come",
                do="let torchdata's StatefulDataLoader keep the state, or read with num_workers=0",
            )
        self._move(epoch, batch, error)

    def _move(self, epoch: int, batch: int, error: OptionError | None = None) -> None:
        """Continue after `batch` batches of an epoch, or raise `error` when the next batch is requested."""
        if self._iterator is not None:
            self._iterator.close()
        self._iterator = None
        self._epoch = epoch
        self._batch = batch
        self._error = error

    def _open_iterator(self) -> BatchIterator:
        """Return the iterator over the batches. Make it when the first batch is requested.

        Errors are raised then, and not earlier, because PyTorch passes on only those errors of workers.
        """
        if self._error is not None:
            raise self._error
        if self._iterator is None:
            self._iterator = self._batches.begin(self._epoch, self._batch, _stream_of)
        return self._iterator

    def __next__(self) -> Any:
        frame = currentframe()
        _require_no_collation(frame and frame.f_back)
        iterator = self._open_iterator()
        try:
            batch = self._convert(next(iterator))
        except BaseException:
            iterator.close()
            raise
        self._batch += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were handed over.

        After the last batch it is the end of this epoch, and not the beginning of the next one.
        """
        return self._batches.state_at(self._epoch, self._batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; see `Batches.load_state_dict`."""
        self._batches.load_state_dict(state)
        epoch, batch = self._batches.next_epoch, self._batches.next_batch
        self._passes.begin(self._pass, epoch)
        self._move(epoch, batch)


def _require_no_collation(caller: FrameType | None) -> None:
    """Raise an `OptionError` if the caller is a part of a loader that would collate batches to larger ones."""
    # Only the local variables of a loader are accessed. Accessing those of any other caller would keep them alive, and
    # they may be batches.
    fetcher = None
    if caller is not None and str(caller.f_globals.get("__name__")).startswith("torch.utils.data."):
        fetcher = caller.f_locals.get("self")
    if getattr(fetcher, "auto_collation", False):
        raise OptionError(
            "batches of batches",
            tried="a DataLoader around IterableBatches that puts several of its batches into one",
            found="batch_size=, whose default is 1; the samples are in batches already",
            do="give the DataLoader batch_size=None, and the number of samples as batch= of xarray_gpuzarr.batches",
        )


def _stream_of(device: int) -> int | None:
    """Return the handle of PyTorch's current stream on the GPU with a number, or None if PyTorch has no CUDA."""
    return int(torch.cuda.current_stream(device).cuda_stream) if torch.cuda.is_available() else None


def _current_pass(info: Any, number: int) -> Pass:
    """Return what this process knows about the pass that it begins.

    Parameters
    ----------
    info
        What `torch.utils.data.get_worker_info` returns; None if this is no worker.
    number : int
        Number of passes that this process has begun before.
    """
    parent = parent_process()
    if info is None or parent is None or parent.pid is None:  # `parent` for type checkers: a worker has one with an id
        return Pass(os.getpid(), number)
    worker: Any = current_process()
    # Number of this worker among the consumer's child processes. The worker's name ends with the same number, but
    # programs may change the name.
    child_number = worker._identity[-1]  # noqa: SLF001
    # The pipe through which all workers of a loader answer. It stays unknown if PyTorch gives it another name.
    pipe = 0
    with suppress(AttributeError, KeyError, TypeError, OSError):
        arguments = signature(worker._target).bind(*worker._args, **worker._kwargs).arguments  # noqa: SLF001
        pipe = os.fstat(arguments["data_queue"]._reader.fileno()).st_ino  # noqa: SLF001
    # PyTorch starts the workers in the order of their ids, and adds the id to the seed that it has drawn for all. So
    # the number of the first child and the seed without the id are the same for all workers of a pass.
    return Pass(
        consumer=parent.pid,
        number=number,
        n_workers=info.num_workers,
        seed=info.seed - info.id,
        first_child=child_number - info.id,
        pipe=pipe,
    )
