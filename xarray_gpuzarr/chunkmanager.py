"""One dask task per shard, with blocks of the decoder's own array library.

xarray's own dask manager declares every lazily opened array to be NumPy, which turns device arrays into host arrays
without a word. `ShardVariable` is a `Variable` that chunks itself through `ShardManager` instead, which asks the decoder
what its blocks are. It works with plain ``xr.open_dataset(..., chunks={})``: no chunk manager has to be named.
"""

from __future__ import annotations

from typing import Any, Self, cast

import dask.array as da
import numpy as np
from xarray import Variable
from xarray.core import indexing
from xarray.namedarray.daskmanager import DaskManager
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from xarray_gpuzarr.lazy_array import LazyArray, find_lazy_array


class BlockReader:
    """What a dask graph holds of a lazy array: slicing it reads.

    Parameters
    ----------
    array : LazilyIndexedArray
        A lazy array and the selection that was made before it was chunked.
    """

    __slots__ = ("array", "dtype", "shape")

    def __init__(self, array: indexing.LazilyIndexedArray) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def lazy(self) -> LazyArray:
        """The stored array below the selection."""
        return cast(LazyArray, self.array.array)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self.lazy.__dask_tokenize__(), self.array.key.tuple)

    def __getitem__(self, key: Any) -> Any:
        full = indexing.expanded_indexer(key, self.ndim)
        outer = tuple(np.asarray(k) if isinstance(k, list) else k for k in full)
        return self.array.oindex[indexing.OuterIndexer(outer)].get_duck_array()


class ShardManager(DaskManager):
    """Dask arrays whose meta is the decoder's."""

    def from_array(self, data: Any, chunks: Any, **kwargs: Any) -> Any:
        """Build a dask array whose tasks read `data`.

        Parameters
        ----------
        data : BlockReader
        chunks : as for `dask.array.from_array`
        """
        kwargs |= {"meta": data.lazy.meta(), "asarray": False}
        return da.from_array(data, chunks, **kwargs)


class ShardVariable(Variable):
    """A lazily read variable that becomes one dask task per shard when it is chunked."""

    __slots__ = ()

    def chunk(self, chunks: Any = {}, **kwargs: Any) -> Self:  # noqa: B006  # xarray's signature
        """Chunk as `xarray.Variable.chunk` does, with blocks of the decoder's array library."""
        reader = _block_reader(self._data)
        manager = kwargs.get("chunked_array_type")
        if reader is None or not _is_dask(manager):
            return super().chunk(chunks, **kwargs)
        kwargs["chunked_array_type"] = ShardManager()
        return self._replace(data=reader).as_chunked(chunks, **kwargs)

    def as_chunked(self, chunks: Any, **kwargs: Any) -> Self:
        """Chunk whatever the data is, with the chunk manager that `kwargs` names."""
        return super().chunk(chunks, **kwargs)


def _is_dask(manager: object) -> bool:
    return manager in (None, "dask") or isinstance(manager, DaskManager)


def _block_reader(data: object) -> BlockReader | None:
    """Unwrap xarray's caching and copy-on-write layers around a lazy array that was not read yet."""
    while isinstance(data, indexing.CopyOnWriteArray | indexing.MemoryCachedArray):
        data = data.array
    if isinstance(data, indexing.LazilyIndexedArray) and find_lazy_array(data) is not None:
        return BlockReader(data)
    return None


def find_block_reader(data: object) -> BlockReader | None:
    """Return the first `BlockReader` in the graph of a dask array, or None."""
    graph = getattr(data, "dask", None)
    for layer in getattr(graph, "layers", {}).values():
        found = next(filter(None, map(_reader_in, _literals(layer))), None)
        if found is not None:
            return found
    return None


def _literals(layer: Any) -> list[Any]:
    """List the values that a graph layer holds as they are, without building its tasks."""
    mapping = getattr(layer, "mapping", None)
    if mapping is not None:
        return list(mapping.values())
    return [value for value, _ in getattr(layer, "indices", ())]


def _reader_in(value: Any) -> BlockReader | None:
    inner = getattr(value, "value", value)
    return inner if isinstance(inner, BlockReader) else None


__all__ = ["BlockReader", "ChunkManagerEntrypoint", "ShardManager", "ShardVariable", "find_block_reader"]
