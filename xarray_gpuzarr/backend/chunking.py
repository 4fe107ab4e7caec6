"""Makes dask arrays of lazy arrays, with one task per shard and blocks of the decoder's own array library.

xarray's own dask manager declares the blocks of every lazily opened array to be NumPy arrays, and dask then silently
converts device arrays to host arrays. `ShardManager`, which chunks each `ShardVariable`, declares them to be arrays of
the decoder. The tasks read from a `BlockReader`.

This module imports dask. It is imported only when a variable is chunked, or when a dask graph is searched.
"""

from __future__ import annotations

import multiprocessing
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.core import normalize_chunks
from dask.base import normalize_token
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from xarray_gpuzarr.backend.lazy_array import LazilyIndexed, LazyArray, find_lazy_selection
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.fetch.ahead import ObjectRequest, RequestsAhead
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.threads import limit_threads
from xarray_gpuzarr.read import read
from xarray_gpuzarr.read.first_requests import first_requests, may_ask_ahead
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, BlockIndex, Box
from xarray_gpuzarr.tasks.names import task_name
from xarray_gpuzarr.tasks.one_output import compute_into_one_output
from xarray_gpuzarr.tasks.reads_ahead import read_ahead, watch_computations

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of blocks along every axis."""

MANY_TASKS = 50_000
"""Smallest number of tasks of an array for which the user is advised to use larger chunks."""
SMALL_TASK_NBYTES = 1_000_000
"""A task is small, and the user is advised to use larger chunks, if its result has fewer bytes than this."""
_SYNCHRONOUS = ("sync", "synchronous", "single-threaded")
"""Values of dask's setting ``scheduler`` that mean the synchronous scheduler."""


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
        n_shards = max(1, normalized[axis][0] // shard[axis])
        whole[axis] = n_shards * shard[axis]
    return tuple(normalize_chunks(tuple(whole), shape=shape))


def _cuts_shards(lengths: tuple[int, ...], shard_length: int) -> bool:
    """Return whether a border between blocks along an axis lies inside a shard."""
    return any(length % shard_length for length in lengths[:-1])


class BlockReader(AheadReader):
    """The array from which the tasks of a dask graph read. Slicing it reads.

    Parameters
    ----------
    array : LazilyIndexed
        A lazy array with the selection that was made before it was chunked.
    """

    __slots__ = ("_bounds", "array", "dtype", "shape")

    def __init__(self, array: LazilyIndexed) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self._bounds: tuple[list[int], ...] = ()
        """Borders of the blocks along each axis, with both ends. Empty before `set_blocks`, and after unpickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array,)

    def set_blocks(self, chunks: Chunks) -> None:
        """Set the lengths of the blocks that the tasks read, for `block_of` and `box_of`."""
        self._bounds = tuple([list(accumulate(lengths, initial=0)) for lengths in chunks])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def lazy(self) -> LazyArray:
        """The stored array below the selection."""
        return cast("LazyArray", self.array.array)

    @property
    def shard_shape(self) -> tuple[int, ...] | None:
        """Shape of a shard. None if a selection was made before, or if the array is one that zarr-python reads."""
        spec = self.lazy.stored.spec
        if isinstance(spec, Unplanned):
            return None
        is_whole = all(isinstance(key, slice) and key == slice(None) for key in self.array.key.tuple)
        return spec.grid.shard_shape if is_whole else None

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self.lazy.__dask_tokenize__(), normalize_token(self.array.key.tuple))

    def __getitem__(self, key: Any) -> Any:
        expanded_key = indexing.expanded_indexer(key, self.ndim)
        # dask selects by lists if it has fused a task with a later selection.
        box = tuple(np.asarray(axis_key) if isinstance(axis_key, list) else axis_key for axis_key in expanded_key)
        selected = self.array.oindex[indexing.OuterIndexer(box)]
        return read_ahead(self, box, lambda: limit_threads(_dask_threads(), selected.get_duck_array))

    def read_into(self, box: tuple[slice, ...], out: npt.NDArray[Any]) -> None:
        """Read a box into `out`, a NumPy array of the box's shape and of this array's dtype, with any strides."""
        selection = self.array.oindex[indexing.OuterIndexer(box)].key.tuple
        stored = self.lazy.stored

        def read_block() -> Any:
            return limit_threads(_dask_threads(), lambda: read(stored, selection, HostDecoder(), out))

        block = read_ahead(self, box, read_block)
        # `read` returns a new array if zarr-python reads, or if an axis was dropped before the array was chunked. It
        # returns a view of `out` if an axis was reversed.
        if block is not out:
            out[...] = block

    def requests_ahead(self) -> RequestsAhead | None:
        """Return a new `RequestsAhead` for this array. None if nothing can be requested ahead."""
        stored = self.lazy.stored
        selects_points = not isinstance(self.array, indexing.LazilyIndexedArray)
        # Reads from a fast store wait for nothing. With "workers", neither client nor workers request anything ahead.
        if selects_points or self.lazy.device == "workers" or not self.lazy.takes_long:
            return None
        if not may_ask_ahead(stored, by_host=self.lazy.device == "host"):
            return None
        assert stored.source is not None  # as `may_ask_ahead` has checked
        assert isinstance(stored.spec, ArraySpec)
        return RequestsAhead(stored.source, stored.spec)

    def block_of(self, box: Box) -> BlockIndex | None:
        """Return the block that a box selects. None if it is not a whole block, or the blocks are unknown."""
        block = []
        for key, bounds in zip(box, self._bounds, strict=False):  # there are no bounds before `set_blocks`
            is_range = isinstance(key, slice) and key.step in (None, 1) and key.start is not None
            if not is_range:
                return None
            number = bisect_left(bounds, key.start)
            if bounds[number : number + 2] != [key.start, key.stop]:
                return None
            block.append(number)
        return tuple(block) if len(block) == self.ndim else None

    def box_of(self, block: BlockIndex) -> Box | None:
        """Return the box that selects a block. None if there is no such block. Call `set_blocks` first."""
        numbers_and_bounds = list(zip(block, self._bounds, strict=True))
        if any(not 0 <= number < len(bounds) - 1 for number, bounds in numbers_and_bounds):
            return None
        return tuple([slice(bounds[number], bounds[number + 1]) for number, bounds in numbers_and_bounds])

    def first_requests(self, box: Box) -> list[ObjectRequest]:
        """Return the requests with which a read of a box begins."""
        return first_requests(self.lazy.stored, self.array.oindex[indexing.OuterIndexer(box)].key.tuple)


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
            watch_computations()
        array = da.from_array(reader, chunks, **{**kwargs, "meta": meta, "asarray": False, "name": name})
        _advise_of_small_tasks(array)
        selects_points = not isinstance(reader.array, indexing.LazilyIndexedArray)
        # Blocks of the host are NumPy arrays, unless another decoder takes the place of the host's, as in a test.
        is_on_host = reader.lazy.device == "host" and type(meta) is np.ndarray
        # `BlockReader.read_into` reads boxes only, and does not take a lock. A scalar or an empty array gains nothing.
        if selects_points or 0 in reader.shape or reader.ndim == 0 or not is_on_host or kwargs.get("lock"):
            return array
        return compute_into_one_output(array, reader)


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


def find_block_reader(data: object) -> BlockReader | None:
    """Return the first `BlockReader` in the graph of a dask array, or None."""
    return next(find_block_readers(data), None)


def find_block_readers(data: object) -> Iterator[BlockReader]:
    """Yield the `BlockReader` objects in the graph of a dask array: one for each chunked array that it reads."""
    return find_in_layers(data, _as_block_reader)


def _as_block_reader(candidate: object) -> BlockReader | None:
    return candidate if isinstance(candidate, BlockReader) else None


def find_in_layers[Found](data: object, find: Callable[[object], Found | None]) -> Iterator[Found]:
    """Yield what is found in the graph of a dask array: for each layer, the first result of `find` that is not None.

    Only values that the layer holds already are examined: those of its mapping, or the operands of a `Blockwise` layer.
    The tasks of such a layer are not built.
    """
    graph = getattr(data, "dask", None)
    for layer in getattr(graph, "layers", {}).values():
        mapping = getattr(layer, "mapping", None)
        # Each operand of a `Blockwise` layer is paired with its indices.
        values = [value for value, _ in getattr(layer, "indices", ())] if mapping is None else mapping.values()
        for value in values:
            found = find(getattr(value, "value", value))  # dask may have wrapped it in a `DataNode`
            if found is not None:
                yield found
                break


def _dask_threads() -> int | None:
    """Return the number of threads that dask's configuration gives to this process. None if it gives none.

    Each process of dask's pool has one thread. Any process that multiprocessing has started counts as one of these. The
    synchronous scheduler has one thread, too. A number that is only passed to ``compute`` is not visible here. On a
    cluster, `process.threads` asks the worker.
    """
    if multiprocessing.parent_process() is not None or dask.config.get("scheduler", None) in _SYNCHRONOUS:
        return 1
    pool = dask.config.get("pool", None)
    n_threads = getattr(pool, "_max_workers", None) or dask.config.get("num_workers", None)
    return int(n_threads) if n_threads else None
