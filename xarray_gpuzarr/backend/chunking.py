"""One dask task per shard, with blocks of the decoder's own array library.

xarray's own dask manager declares every lazily opened array to be NumPy, which silently turns device arrays into host
arrays. `ShardManager`, which chunks each `ShardVariable`, gives them the meta of the decoder. This module imports dask:
it is imported where something is chunked, or looked for in a graph.
"""

from __future__ import annotations

import multiprocessing
from bisect import bisect_left
from collections.abc import Iterator, Sequence
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

from xarray_gpuzarr.backend.lazy_array import LazilyIndexed, LazyArray, find_unread
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.fetch.ahead import ObjectRequest, ObjectsAhead
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.threads import limit_threads
from xarray_gpuzarr.read import read
from xarray_gpuzarr.read.first_requests import first_requests, may_ask_ahead
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.tasks.ahead_reader import AheadReader, Block, Box
from xarray_gpuzarr.tasks.names import task_name
from xarray_gpuzarr.tasks.one_output import compute_into_one_output
from xarray_gpuzarr.tasks.reads_ahead import read_ahead, watch

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of blocks along every axis."""

MANY_TASKS, SMALL_TASK_NBYTES = 50_000, 1_000_000
"""Number of tasks and bytes of each from which, and below which, the user is advised to use larger chunks."""
_SYNCHRONOUS = ("sync", "synchronous", "single-threaded")


def chunks_of_whole_shards(
    chunks: Any, *, shape: tuple[int, ...], dtype: np.dtype[Any], shard: tuple[int, ...] | None
) -> Chunks:
    """Return `chunks` as dask normalizes them, but whole shards along axes that are ``"auto"``.

    dask limits automatic chunks to its ``array.chunk-size`` and cuts larger shards along every axis, so that
    several tasks would decode the same chunks. `xarray.open_dataset` replaces ``"auto"`` by dask's lengths before
    it chunks a variable: exactly these lengths count as ``"auto"``. `shard` is the shape of a shard; None if there is
    none to keep whole.
    """
    is_one_for_each = isinstance(chunks, Sequence) and not isinstance(chunks, str)
    of_axes = chunks if is_one_for_each else [chunks] * len(shape)
    auto = {axis for axis, lengths in enumerate(of_axes) if isinstance(lengths, str) and lengths == "auto"}
    if auto and 0 in shape:
        chunks = shape
    normal: Chunks = normalize_chunks(chunks, shape=shape, dtype=dtype, previous_chunks=shard if auto else None)
    if shard is None or 0 in shape:
        return normal
    # Along one axis a user may choose the length that is dask's, and few inner chunks are decoded twice.
    n_cut = sum(_cuts(lengths, edge) for lengths, edge in zip(normal, shard, strict=True))
    if chunks == normal and n_cut > 1:
        of_dask = normalize_chunks("auto", shape=shape, dtype=dtype, previous_chunks=shard)
        auto = set(range(len(shape))) if normal == of_dask else auto
    if not auto:
        return normal
    uncut = tuple(
        max(1, lengths[0] // edge) * edge if axis in auto and _cuts(lengths, edge) else lengths
        for axis, (lengths, edge) in enumerate(zip(normal, shard, strict=True))
    )
    return tuple(normalize_chunks(uncut, shape=shape))


def _cuts(lengths: tuple[int, ...], shard: int) -> bool:
    return any(length % shard for length in lengths[:-1])


class BlockReader(AheadReader):
    """The array in a dask graph: a lazy array and the selection made before it was chunked. Slicing it reads."""

    __slots__ = ("_bounds", "array", "dtype", "shape")

    def __init__(self, array: LazilyIndexed) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self._bounds: tuple[list[int], ...] = ()
        """Along each axis, where blocks begin, and the end of the last one; none in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array,)

    def cut(self, chunks: Chunks) -> None:
        """Hear into which blocks tasks cut the array."""
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
        """Shape of a shard; None if a selection was made before, or if shards are irregular."""
        spec = self.lazy.stored.spec
        unselected = all(isinstance(k, slice) and k == slice(None) for k in self.array.key.tuple)
        return spec.grid.shard_shape if unselected and not isinstance(spec, Unplanned) else None

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self.lazy.__dask_tokenize__(), normalize_token(self.array.key.tuple))

    def __getitem__(self, key: Any) -> Any:
        full = indexing.expanded_indexer(key, self.ndim)
        outer = tuple(np.asarray(k) if isinstance(k, list) else k for k in full)
        picked = self.array.oindex[indexing.OuterIndexer(outer)]
        return read_ahead(self, outer, lambda: limit_threads(_dask_threads(), picked.get_duck_array))

    def read_into(self, box: tuple[slice, ...], out: npt.NDArray[Any]) -> None:
        """Read a box into host memory of its shape and dtype, any strides; not for points."""
        picked = self.array.oindex[indexing.OuterIndexer(box)]
        stored, selection = self.lazy.stored, picked.key.tuple

        # Into `out` if its elements come in order and without gaps.
        def read_block() -> Any:
            return limit_threads(_dask_threads(), lambda: read(stored, selection, HostDecoder(), out))

        block = read_ahead(self, box, read_block)
        if block is not out:
            out[...] = block

    def objects_ahead(self) -> ObjectsAhead | None:
        """Return what asks for objects of this array ahead of reads; None where nothing may be asked for."""
        stored = self.lazy.stored
        if not isinstance(self.array, indexing.LazilyIndexedArray) or self.lazy.device == "workers":
            return None
        if not self.lazy.takes_long:
            return None
        if not may_ask_ahead(stored, by_host=self.lazy.device == "host"):
            return None
        assert stored.source is not None
        assert isinstance(stored.spec, ArraySpec)
        return ObjectsAhead(stored.source, stored.spec)

    def block_of(self, box: Box) -> Block | None:
        """Return the number of the block that a box is; None if it is no whole block, or that is not known here."""
        block = []
        for key, bounds in zip(box, self._bounds, strict=False):
            if not isinstance(key, slice) or key.step not in (None, 1) or key.start is None:
                return None
            number = bisect_left(bounds, key.start)
            if bounds[number : number + 2] != [key.start, key.stop]:
                return None
            block.append(number)
        return tuple(block) if len(block) == self.ndim else None

    def box_of(self, block: Block) -> Box | None:
        """Return the box that a block is; None if there is no such block."""
        if any(not 0 <= n < len(bounds) - 1 for n, bounds in zip(block, self._bounds, strict=True)):
            return None
        return tuple([slice(*bounds[n : n + 2]) for n, bounds in zip(block, self._bounds, strict=True)])

    def first_requests(self, box: Box) -> list[ObjectRequest]:
        """Return what a read of a box asks for first."""
        return first_requests(self.lazy.stored, self.array.oindex[indexing.OuterIndexer(box)].key.tuple)


class ShardManager(DaskManager):
    """A chunk manager whose dask arrays have the meta of the decoder."""

    def from_array(self, data: Any, chunks: Any, **kwargs: Any) -> Any:
        """Build a dask array whose tasks read `data`: xarray's adapter around one lazy array of a `ShardVariable`."""
        unread = find_unread(data.array)
        assert unread is not None
        reader = BlockReader(unread)
        whole = chunks_of_whole_shards(chunks, shape=reader.shape, dtype=reader.dtype, shard=reader.shard_shape)
        name, meta = kwargs.get("name"), reader.lazy.meta()
        if name is not False:  # False: dask chooses a random name. True: no name was chosen
            name = task_name(reader.lazy.stored, None if name is True else name, reader, str(whole))
        reader.cut(whole)
        if reader.objects_ahead() is not None:
            watch()
        array = da.from_array(reader, whole, **kwargs | {"meta": meta, "asarray": False, "name": name})
        if array.npartitions >= MANY_TASKS and (nbytes := array.nbytes // array.npartitions) < SMALL_TASK_NBYTES:
            advise(
                "tasks",
                f"'{array.name}' becomes {array.npartitions} dask tasks, more than dask handles with ease",
                found=f"{nbytes} bytes a task",
                do='read several chunks a task, with chunks="auto" or chunks={dimension: length}, or store the array '
                "in shards",
            )
        # Where blocks are NumPy's: by the host decoder, with at least one element.
        is_plain = isinstance(reader.array, indexing.LazilyIndexedArray) and 0 not in (reader.ndim, *reader.shape)
        of_host = reader.lazy.device == "host" and type(meta) is np.ndarray
        return compute_into_one_output(array, reader) if is_plain and of_host and not kwargs.get("lock") else array


def shard_manager_for(chunk_manager: str | ChunkManagerEntrypoint[Any] | None) -> str | ChunkManagerEntrypoint[Any]:
    """Return the `ShardManager` in place of dask's chunk manager, or of none; another one as it is."""
    if chunk_manager is None or chunk_manager == "dask" or isinstance(chunk_manager, DaskManager):
        return ShardManager()
    return chunk_manager


def find_block_reader(data: object) -> BlockReader | None:
    """Return the first `BlockReader` in the graph of a dask array, or None."""
    return next(find_block_readers(data), None)


def find_block_readers(data: object) -> Iterator[BlockReader]:
    """Yield the `BlockReader` objects in the graph of a dask array, one for each time an array was chunked."""
    graph = getattr(data, "dask", None)
    for layer in getattr(graph, "layers", {}).values():
        mapping = getattr(layer, "mapping", None)
        # Values that the layer holds as they are, without building its tasks.
        values = [value for value, _ in getattr(layer, "indices", ())] if mapping is None else mapping.values()
        inner = (getattr(value, "value", value) for value in values)
        reader = next((each for each in inner if isinstance(each, BlockReader)), None)
        if reader is not None:
            yield reader


def _dask_threads() -> int | None:
    """Return the threads that dask's configuration gives to this process; None if it does not say.

    A process of dask's pool has one, and so has the synchronous scheduler. A number that is passed to ``compute`` alone
    is not visible here. `process.threads` asks the workers of a cluster.
    """
    if multiprocessing.parent_process() is not None or dask.config.get("scheduler", None) in _SYNCHRONOUS:
        return 1
    pool, n_workers = dask.config.get("pool", None), dask.config.get("num_workers", None)
    n_threads = getattr(pool, "_max_workers", None) or n_workers
    return int(n_threads) if n_threads else None
