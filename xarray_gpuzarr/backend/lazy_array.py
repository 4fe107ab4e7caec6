"""`LazyArray`: a stored array that xarray can index before it is read.

Pickles to little more than its metadata and holds no file, stream or pool, so it may stand in a dask graph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing
from zarr.abc.store import Store

from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.decoders.choice import by_usable, decoder_for
from xarray_gpuzarr.decoders.protocol import Decoder, Device, Route, StreamOf
from xarray_gpuzarr.fetch.remote.servers import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.process.side_by_side import MOST_THREADS, side_by_side, threads_for
from xarray_gpuzarr.read import StoredArray, read, read_points
from xarray_gpuzarr.stored.cf import in_float32

_INDEXED = (
    indexing.LazilyIndexedArray,
    indexing.LazilyVectorizedIndexedArray,
    indexing.MemoryCachedArray,
    indexing.CopyOnWriteArray,
    BackendArray,
)


LazilyIndexed = indexing.LazilyIndexedArray | indexing.LazilyVectorizedIndexedArray
"""A selection of an array that has not been read."""


class LazyArray(BackendArray):
    """A stored array and the device on which selections of it are decoded.

    With `or_host`, the host decodes if the device turns out to be unusable.
    """

    __slots__ = ("device", "dtype", "or_host", "shape", "stored")

    def __init__(self, stored: StoredArray, device: Device, *, or_host: bool = False) -> None:
        self.stored = stored
        self.device = device
        self.or_host = or_host
        self.shape = stored.shape
        self.dtype = decoder_for(device).result_dtype(np.dtype(stored.cast.dtype))

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self.stored.__dask_tokenize__(), self.device)

    def __repr__(self) -> str:
        return f"LazyArray(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"

    def in_float32(self) -> Self:
        """Return this array with results in float32 where they are float64."""
        stored = replace(self.stored, cast=in_float32(self.stored.cast))
        return type(self)(stored, self.device, or_host=self.or_host)

    @property
    def route(self) -> Route:
        """Where this array is decoded and why."""
        return self.stored.route(decoder_for(self.device))

    @property
    def storage(self) -> str:
        """How stored bytes reach a GPU and why; empty where there is nothing to choose."""
        return self.stored.how_read(decoder_for(self.device))

    @property
    def takes_long(self) -> bool:
        """Whether the store is slow, so that reads should be concurrent."""
        return self._slow_store is not None

    @property
    def _slow_store(self) -> Store | None:
        source, array = self.stored.store_source, self.stored.zarr_array
        store = array.store if array is not None else source.store if isinstance(source, StoreSource) else None
        return store if store is not None and takes_long(store) else None

    def meta(self) -> Any:
        """Return a zero-length array of the kind that reads give. No I/O."""
        return self.by_decoder(lambda decoder: decoder.empty((0,) * self.ndim, self.dtype))

    def by_decoder(self, read: Callable[[Decoder], Any]) -> Any:
        """Return what `read` returns for the decoder of the device, or for the host's if `or_host` allows it."""
        return by_usable(decoder_for(self.device), read, or_host=self.or_host)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        # xarray's explicit_indexing_adapter is not needed, and fails on empty slices with a negative step.
        read_selection = read_points if isinstance(key, indexing.VectorizedIndexer) else read
        return read_selection(self.stored, key.tuple, decoder_for(self.device), or_host=self.or_host)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read on another thread, for the device that this thread would use."""
        store, as_caller = self._slow_store, as_caller_of([self])
        # asyncio's own are only four more than there are cores
        threads = None if store is None else threads_for(server_of(store), MOST_THREADS)

        def call() -> Any:
            with as_caller():
                return self[key]

        return await asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, call))


def data_of(variable: Variable) -> Any:
    """Return the data of a variable without reading them, as `xarray.NamedArray.data` does."""
    return super(Variable, variable).data


def find_below[Kind](data: object, kind: type[Kind]) -> Kind | None:
    """Return the array of a class below xarray's wrappers, or None."""
    while data is not None and not isinstance(data, kind):
        data = getattr(data, "array", None) if isinstance(data, indexing.ExplicitlyIndexed) else None
    return data


def find_lazy_array(data: object) -> LazyArray | None:
    """Return the `LazyArray` that data are selected from; None also if xarray decodes what is read."""
    while isinstance(data, _INDEXED) and not isinstance(data, LazyArray):
        data = getattr(data, "array", None)
    return data if isinstance(data, LazyArray) else None


def find_unread(data: object) -> LazilyIndexed | None:
    """Return the selection of a `LazyArray` below xarray's caching and copy-on-write layers; None for other data."""
    while isinstance(data, indexing.CopyOnWriteArray | indexing.MemoryCachedArray):
        data = data.array
    if isinstance(data, LazilyIndexed) and find_lazy_array(data) is not None:
        return data
    return None


def as_caller_of(
    lazies: Iterable[LazyArray], stream_of: StreamOf | None = None
) -> Callable[[], AbstractContextManager[object]]:
    """Return a context manager in which another thread reads arrays for the GPU and stream of the calling thread.

    For `stream_of` see `Decoder.as_caller`.
    """
    of_device = {lazy.device: lazy for lazy in lazies}
    in_order = sorted(of_device, key=lambda device: ":" not in device)  # the one entered last stays the current GPU
    reading: list[Callable[[], AbstractContextManager[object]]] = [
        of_device[device].by_decoder(lambda decoder: decoder.as_caller(stream_of)) for device in in_order
    ]

    @contextmanager
    def as_caller() -> Iterator[None]:
        with ExitStack() as stack:
            for enter in reading:
                stack.enter_context(enter())
            yield

    return as_caller


def load_together(variables: Iterable[Variable]) -> None:
    """Load lazy variables of slow stores, in place and concurrently; after an error, the rest stays lazy."""
    loads, lazies = [], []
    for variable in variables:
        lazy, stock = find_below(data_of(variable), LazyArray), find_below(data_of(variable), ZarrArrayWrapper)
        if takes_long(stock.get_array().store) if stock is not None else lazy is not None and lazy.takes_long:
            loads.append(variable.load)
            lazies += [] if lazy is None else [lazy]
    if len(loads) > 1:  # one is loaded by xarray
        side_by_side(loads, as_caller_of(lazies))
