"""`BlockReader`: the array from which the tasks of a dask graph read, and how it is found in a graph.

This module imports dask. It is imported only when a variable is chunked, or when a dask graph is searched.
"""

from __future__ import annotations

import multiprocessing
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, cast

import dask
import numpy as np
import numpy.typing as npt
from dask.base import normalize_token
from xarray.core import indexing

from xarray_gpuzarr.backend.lazy_array import LazilyIndexed, LazyArray
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.fetch.ahead import ObjectRequest, RequestsAhead
from xarray_gpuzarr.process.threads import limit_threads
from xarray_gpuzarr.read import read
from xarray_gpuzarr.read.first_requests import first_requests, may_ask_ahead
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, BlockIndex, Box
from xarray_gpuzarr.tasks.reads_ahead import read_ahead

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of blocks along every axis."""

_SYNCHRONOUS = ("sync", "synchronous", "single-threaded")
"""Values of dask's setting ``scheduler`` that mean the synchronous scheduler."""


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
        # dask selects by lists if it has fused a task with a later selection. xarray's indexers take arrays.
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
        # returns a view of `out` if an axis was reversed: assigning the view reverses `out` itself, since NumPy allows
        # that the two overlap.
        if block is not out:
            out[...] = block

    def requests_ahead(self) -> RequestsAhead | None:
        """Return a new `RequestsAhead` for this array. None if nothing can be requested ahead."""
        stored = self.lazy.stored
        selects_points = not isinstance(self.array, indexing.LazilyIndexedArray)
        # `first_requests` knows boxes only, not points. With "workers", the client reads nothing, and workers do not
        # request anything ahead. Reads from a fast store wait for nothing.
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

    Only values that the layer holds already are examined; the tasks of a `Blockwise` layer are not built.
    """
    graph = getattr(data, "dask", None)
    for layer in getattr(graph, "layers", {}).values():
        for value in _values_in_layer(layer):
            found = find(getattr(value, "value", value))  # dask may have wrapped it in a `DataNode`
            if found is not None:
                yield found
                break


def _values_in_layer(layer: object) -> Iterable[object]:
    """Return the values of a layer's mapping, or the operands of a `Blockwise` layer."""
    mapping = getattr(layer, "mapping", None)
    if mapping is not None:
        values: Iterable[object] = mapping.values()
        return values
    return [operand for operand, _ in getattr(layer, "indices", ())]  # each operand is paired with its indices


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
