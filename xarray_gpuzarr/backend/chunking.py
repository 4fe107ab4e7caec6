"""Makes dask arrays of lazy arrays, with one task per shard and blocks of the decoder's own array library.

xarray's own dask manager declares the blocks of every lazily opened array to be NumPy arrays, and dask then silently
converts device arrays to host arrays. `ShardManager`, which chunks each `ShardVariable`, declares them to be arrays of
the decoder. The tasks read from a `BlockReader`.

This module imports dask. It is imported only when a variable is chunked, or when a dask graph is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from xarray_gpuzarr.backend.block_reader import BlockReader, Chunks
from xarray_gpuzarr.backend.lazy_array import find_lazy_selection
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.tasks.names import task_name
from xarray_gpuzarr.tasks.one_output import compute_into_one_output
from xarray_gpuzarr.tasks.reads_ahead import watch_computations

MANY_TASKS = 50_000
"""Smallest number of tasks of an array for which the user is advised to use larger chunks. dask says that a task costs
it 0.2 to 1 ms, so these take it 10 s or more."""
SMALL_TASK_NBYTES = 1_000_000
"""A task is small, and the user is advised to use larger chunks, if its result has fewer bytes than this. Decoding them
takes about 1 ms, no longer than dask's own work for the task."""


def chunks_of_whole_shards(
    chunks: Any, *, shape: tuple[int, ...], dtype: np.dtype[Any], shard: tuple[int, ...] | None
) -> Chunks:
    """Return `chunks` as dask normalizes them, but with whole shards along axes that are ``"auto"``.

    dask limits automatic chunks to its ``array.chunk-size`` and cuts larger shards along every axis, so that
    several tasks would decode the same chunks. `xarray.open_dataset` replaces ``"auto"`` by dask's lengths before
    it chunks a variable. Therefore exactly these lengths count as ``"auto"``, if they cut shards along several axes.

    Parameters
    ----------
    chunks : int, str or tuple
        The argument `chunks` of `dask.array.from_array`. xarray passes no mapping.
    shape, dtype
        Shape and dtype of the array.
    shard : tuple of int or None
        Shape of a shard. None if there are no shards to keep whole.
    """
    is_one_per_axis = isinstance(chunks, Sequence) and not isinstance(chunks, str)
    chunks_of_axes = chunks if is_one_per_axis else [chunks] * len(shape)
    auto_axes = {axis for axis, lengths in enumerate(chunks_of_axes) if isinstance(lengths, str) and lengths == "auto"}
    if auto_axes and 0 in shape:  # dask's automatic lengths would divide by zero
        chunks = shape
    previous = shard if auto_axes else None  # dask makes automatic lengths multiples of these where it can
    normalized: Chunks = normalize_chunks(chunks, shape=shape, dtype=dtype, previous_chunks=previous)
    if shard is None or 0 in shape:
        return normalized
    # Lengths that cut shards along a single axis may be a user's choice, and then few chunks are decoded twice.
    cut_axes = {axis for axis, length in enumerate(shard) if _cuts_shards(normalized[axis], length)}
    # If `chunks` are the lengths of all blocks, they may be what dask has made of "auto".
    if chunks == normalized and len(cut_axes) > 1:
        lengths_of_dask = normalize_chunks("auto", shape=shape, dtype=dtype, previous_chunks=shard)
        if normalized == lengths_of_dask:
            auto_axes = set(range(len(shape)))
    if not auto_axes:
        return normalized
    whole: list[Any] = list(normalized)
    for axis in auto_axes & cut_axes:
        block_length = normalized[axis][0]  # no later block is longer, since dask has chosen the lengths
        n_shards = max(1, block_length // shard[axis])
        whole[axis] = n_shards * shard[axis]
    return tuple(normalize_chunks(tuple(whole), shape=shape))


def _cuts_shards(lengths: tuple[int, ...], shard_length: int) -> bool:
    """Return whether a border between blocks along an axis lies inside a shard."""
    return any(length % shard_length for length in lengths[:-1])


class ShardManager(DaskManager):
    """A chunk manager that makes dask arrays whose meta is an array of the decoder's library."""

    def from_array(self, data: Any, chunks: Any, **kwargs: Any) -> Any:
        """Return a dask array with tasks that read a lazy array.

        Parameters
        ----------
        data : xarray.core.indexing.ImplicitToExplicitIndexingAdapter
            The data of a `ShardVariable` that has not been read, as xarray passes them.
        chunks, **kwargs
            As for `dask.array.from_array`.
        """
        selection = find_lazy_selection(data.array)
        assert selection is not None  # as `ShardVariable.chunk` has checked
        reader = BlockReader(selection)
        chunks = chunks_of_whole_shards(chunks, shape=reader.shape, dtype=reader.dtype, shard=reader.shard_shape)
        meta = reader.lazy.meta()
        name = kwargs.get("name")
        # With False, dask chooses a random name. True and None mean that the user has chosen none.
        if name is not False:
            name = task_name(reader.lazy.stored, None if name is True else name, reader, str(chunks))
        reader.set_blocks(chunks)
        if reader.requests_ahead() is not None:
            watch_computations()  # while a task runs, the objects of the next ones are requested
        array = da.from_array(reader, chunks, **{**kwargs, "meta": meta, "asarray": False, "name": name})
        _advise_of_small_tasks(array)
        # `BlockReader.read_into` reads boxes only, into NumPy arrays, and does not take a lock.
        selects_boxes = isinstance(reader.array, indexing.LazilyIndexedArray)
        # Blocks of the host are NumPy arrays, unless another decoder takes the place of the host's, as in a test.
        is_on_host = reader.lazy.device == "host" and type(meta) is np.ndarray
        can_read_into = selects_boxes and is_on_host and not kwargs.get("lock")
        has_blocks_to_join = reader.ndim > 0 and 0 not in reader.shape
        if can_read_into and has_blocks_to_join:
            return compute_into_one_output(array, reader)
        return array


def _advise_of_small_tasks(array: da.Array) -> None:
    """Advise the user to use larger chunks if an array has many small tasks."""
    if array.npartitions < MANY_TASKS:
        return
    nbytes = array.nbytes // array.npartitions
    if nbytes < SMALL_TASK_NBYTES:
        advise(
            "tasks",
            f"'{array.name}' becomes {array.npartitions} dask tasks, more than dask handles with ease",
            found=f"{nbytes} bytes a task",
            do='read several chunks a task, with chunks="auto" or chunks={dimension: length}, or store the array '
            "in shards",
        )


def shard_manager_for(chunk_manager: str | ChunkManagerEntrypoint[Any] | None) -> str | ChunkManagerEntrypoint[Any]:
    """Return a `ShardManager` if the user has named no chunk manager, or dask's. Return any other one unchanged."""
    if chunk_manager is None or chunk_manager == "dask" or isinstance(chunk_manager, DaskManager):
        return ShardManager()
    return chunk_manager
