"""`LazyArray`: a stored array that xarray can index before it is read.

It can be part of a dask graph, since it holds no file, stream or pool, and its pickle contains little more than its
metadata. The functions find lazy arrays below xarray's wrappers, and read several of them concurrently.
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
from xarray_gpuzarr.decoders.choice import decoder_for, read_with_usable
from xarray_gpuzarr.decoders.protocol import Decoder, Device, Route, StreamOf
from xarray_gpuzarr.fetch.remote.servers import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.process.side_by_side import MOST_THREADS, side_by_side, threads_for
from xarray_gpuzarr.read import StoredArray, read, read_points
from xarray_gpuzarr.stored.cf import in_float32

_UNDECODED = (
    indexing.LazilyIndexedArray,
    indexing.LazilyVectorizedIndexedArray,
    indexing.MemoryCachedArray,
    indexing.CopyOnWriteArray,
    BackendArray,  # such as `values_ahead.OpeningArray`
)
"""Classes of xarray that select from an array, cache it or read it, but do not decode its values."""

LazilyIndexed = indexing.LazilyIndexedArray | indexing.LazilyVectorizedIndexedArray
"""A selection of an array that has not been read."""


class LazyArray(BackendArray):
    """A stored array and the device on which selections of it are decoded.

    Indexing reads the selection. The result is an array of the decoder's library: NumPy on the host, CuPy on a GPU.

    Parameters
    ----------
    stored : StoredArray
        The array, with the conversion of its values.
    device : Device
        Where selections are decoded: "host", "cuda", "cuda:1" (any number) or "workers".
    or_host : bool
        Whether the host decodes if the device turns out to be unusable.
    """

    __slots__ = ("device", "dtype", "or_host", "shape", "stored")

    def __init__(self, stored: StoredArray, device: Device, *, or_host: bool = False) -> None:
        self.stored = stored
        self.device = device
        self.or_host = or_host
        self.shape = stored.shape
        self.dtype = decoder_for(device).result_dtype(np.dtype(stored.cast.dtype))

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # `or_host` is left out, since it does not change values.
        return (type(self).__qualname__, self.stored.__dask_tokenize__(), self.device)

    def __repr__(self) -> str:
        return f"LazyArray(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"

    def in_float32(self) -> Self:
        """Return this array with results in float32 if they are in float64."""
        stored = replace(self.stored, cast=in_float32(self.stored.cast))
        return type(self)(stored, self.device, or_host=self.or_host)

    @property
    def route(self) -> Route:
        """Where this array is decoded, and why."""
        return self.stored.route(decoder_for(self.device))

    @property
    def storage(self) -> str:
        """How stored bytes reach a GPU, and why, such as "posix: ...". Empty if there is only one way."""
        return self.stored.how_read(decoder_for(self.device))

    @property
    def takes_long(self) -> bool:
        """Whether the store is slow, so that reads should be concurrent."""
        return self._slow_store is not None

    @property
    def _slow_store(self) -> Store | None:
        """The store of the array; None if it is not a slow one."""
        array = self.stored.zarr_array
        source = self.stored.store_source
        if array is not None:
            store = array.store
        elif isinstance(source, StoreSource):
            store = source.store
        else:
            return None
        return store if takes_long(store) else None

    def meta(self) -> Any:
        """Return an array without elements, with the class, dtype and number of axes of a read's result. No I/O."""
        return self.by_decoder(lambda decoder: decoder.empty((0,) * self.ndim, self.dtype))

    def by_decoder(self, function: Callable[[Decoder], Any]) -> Any:
        """Call a function with the decoder of the device, and return its result.

        If that decoder is unusable and `or_host` is set, the function is called with the host's decoder.
        """
        return read_with_usable(decoder_for(self.device), function, or_host=self.or_host)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        # xarray's `explicit_indexing_adapter` is not used, since it fails on empty slices with a negative step.
        read_selection = read_points if isinstance(key, indexing.VectorizedIndexer) else read
        return read_selection(self.stored, key.tuple, decoder_for(self.device), or_host=self.or_host)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Return a selection. Another thread reads it, for the GPU and stream that the calling thread would use."""
        store = self._slow_store
        as_caller = as_caller_of([self])
        # Reads from slow stores mostly wait, so many of them should run at once. asyncio's own executor, which None
        # selects, has only four threads more than there are cores.
        threads = None if store is None else threads_for(server_of(store), MOST_THREADS)

        def call() -> Any:
            with as_caller():
                return self[key]

        return await asyncio.get_running_loop().run_in_executor(threads, partial(copy_context().run, call))


def data_of(variable: Variable) -> Any:
    """Return the data of a variable without reading them.

    ``variable.data`` would read them. The property of the base class, `xarray.NamedArray`, does not.
    """
    return super(Variable, variable).data


def find_wrapped[Wrapped](data: object, wrapped_class: type[Wrapped]) -> Wrapped | None:
    """Return the object of a class below xarray's wrappers, or None.

    Unlike `find_lazy_array`, this also looks below wrappers that decode.
    """
    while data is not None and not isinstance(data, wrapped_class):
        data = getattr(data, "array", None) if isinstance(data, indexing.ExplicitlyIndexed) else None
    return data


def find_lazy_array(data: object) -> LazyArray | None:
    """Return the `LazyArray` that data are selected from. None if there is none, or if xarray decodes its values."""
    while isinstance(data, _UNDECODED) and not isinstance(data, LazyArray):
        data = getattr(data, "array", None)
    return data if isinstance(data, LazyArray) else None


def find_lazy_selection(data: object) -> LazilyIndexed | None:
    """Return the selection of a `LazyArray` below xarray's caching and copy-on-write layers. None for other data.

    If there is one, no values have been read or decoded yet.
    """
    while isinstance(data, indexing.CopyOnWriteArray | indexing.MemoryCachedArray):
        data = data.array
    if isinstance(data, LazilyIndexed) and find_lazy_array(data) is not None:
        return data
    return None


def as_caller_of(
    lazies: Iterable[LazyArray], stream_of: StreamOf | None = None
) -> Callable[[], AbstractContextManager[object]]:
    """Return a function that makes context managers for reads on other threads.

    Inside such a context, a thread reads the arrays for the GPU and stream of the thread that called this function.

    Parameters
    ----------
    lazies : iterable of LazyArray
        The arrays that are to be read.
    stream_of : callable, optional
        As for `Decoder.as_caller`.
    """
    array_of_device = {lazy.device: lazy for lazy in lazies}
    # The device that is entered last stays the current GPU of the thread. It has to be "cuda", which means the current
    # GPU, rather than one with a number.
    devices = sorted(array_of_device, key=lambda device: ":" not in device)
    contexts: list[Callable[[], AbstractContextManager[object]]] = [
        array_of_device[device].by_decoder(lambda decoder: decoder.as_caller(stream_of)) for device in devices
    ]

    @contextmanager
    def as_caller() -> Iterator[None]:
        with ExitStack() as stack:
            for make_context in contexts:
                stack.enter_context(make_context())
            yield

    return as_caller


def load_together(variables: Iterable[Variable]) -> None:
    """Load lazy variables of slow stores in place, concurrently.

    Other variables stay as they are, and so does a single one of a slow store: xarray loads them afterwards. After an
    error, the variables that were not loaded stay lazy.
    """
    loads = []
    lazies = []
    for variable in variables:
        data = data_of(variable)
        lazy = find_wrapped(data, LazyArray)
        xarray_array = find_wrapped(data, ZarrArrayWrapper)
        if xarray_array is not None:
            is_slow = takes_long(xarray_array.get_array().store)
        else:
            is_slow = lazy is not None and lazy.takes_long
        if is_slow:
            loads.append(variable.load)
            if lazy is not None:
                lazies.append(lazy)
    if len(loads) > 1:
        side_by_side(loads, as_caller_of(lazies))
