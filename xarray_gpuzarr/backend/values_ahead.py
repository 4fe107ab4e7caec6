"""Request the chunks that xarray reads while it opens a slow store: of indexes, and the ends of other times.

xarray reads one index after another, and the first and the last value of each time. `ValuesAhead` requests their chunks
from a `CachingStore`, those of all groups together, and xarray reads through it. Later reads go to the store itself, as
do those that failed after all bytes had come, so that errors are those of any other read.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from inspect import currentframe
from itertools import product
from math import prod
from typing import Any, Self

import xarray as xr
from xarray.backends import BackendArray
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing
from zarr import Array
from zarr.abc.store import Store

from xarray_gpuzarr.backend.caching_store import CachingStore
from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.fetch.remote.under_way import RequestsUnderWay, begin_on_loop
from xarray_gpuzarr.read import in_store

_MOST_NBYTES = 4 * 1024**2
"""Decoded bytes of an index that is requested ahead: longer ones are slow, and may not be needed."""
_MOST_CHUNKS = 256
"""Chunks of an index that is requested ahead: more take several round trips anyway."""
_OPENERS = {opener.__code__ for opener in (xr.open_dataset, xr.open_datatree, xr.open_groups)}

type Below = LazyArray | ZarrArrayWrapper


class ValuesAhead:
    """The chunks that xarray will read during one opening."""

    def __init__(self, store: Store) -> None:
        self.cache = CachingStore(store)
        self._keys: list[str] = []
        """Keys of objects that have not been requested."""
        self._times: list[OpeningArray] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop caching all arrays but indexes, which xarray reads afterwards."""
        for array in self._times:
            array.detach()
        if kind is not None:
            self.cache.give_up()

    def add(self, array: Below, stored: Array[Any], *, is_index: bool) -> OpeningArray:
        """Return an array in place of `array`, whose chunks are requested: all of an index, the ends of other times."""
        keys = _keys(stored, is_whole=is_index)
        self._keys += keys
        opening = OpeningArray(array, stored, self, is_whole=is_index or (len(keys) == 1 and is_short(stored)))
        if not is_index:
            self._times.append(opening)
        return opening

    def begin(self, *, is_tree: bool = True) -> None:
        """Request the chunks so far, if there are times, or other groups are still to be prepared."""
        if self._keys and (self._times or is_tree):
            keys, self._keys = self._keys, []
            with suppress(Exception):  # the read by xarray raises it again
                begin_on_loop(str(self.cache), RequestsUnderWay(), [lambda: self._ask(keys)])

    async def _ask(self, keys: list[str]) -> None:
        for key in keys:
            self.cache.whole(key)


class OpeningArray(BackendArray):
    """An array that is read through a cache while xarray opens its dataset, and by `array` afterwards.

    With `is_whole`, all of it is read at the first request.
    """

    __slots__ = ("_ahead", "_cached", "_is_whole", "array", "dtype", "shape", "stored")

    def __init__(self, array: Below, stored: Array[Any], ahead: ValuesAhead, *, is_whole: bool) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.stored = stored
        self._ahead: ValuesAhead | None = ahead
        self._is_whole = is_whole and self.ndim > 0
        self._cached: Below | indexing.NumpyIndexingAdapter | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.array,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        ahead, frame = self._ahead, currentframe()
        while ahead is not None and frame is not None and frame.f_code not in _OPENERS:
            frame = frame.f_back
        if ahead is not None and frame is not None:  # xarray is opening something on this thread
            try:
                ahead.begin()
                if self._cached is None:
                    self._cached = self._through(ahead.cache)
                return self._cached[key]
            except Exception as err:  # of any kind; unless the store has failed, the read below raises it again
                if ahead.cache.has_raised(err):
                    ahead.cache.give_up()
                    raise
            except BaseException:
                ahead.cache.give_up()
                raise
        self.detach()
        return self.array[key]

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read from the store."""
        return await self.array.async_getitem(key)

    def detach(self) -> None:
        """Stop using the cache."""
        self._ahead = self._cached = None

    def _through(self, cache: CachingStore) -> Below | indexing.NumpyIndexingAdapter:
        array: Below
        if isinstance(self.array, LazyArray):
            array = LazyArray(self.array.stored.in_store(cache), "host")
        else:
            array = type(self.array)(in_store(self.stored, cache))  # which may be a `CheckedArray`
        whole = indexing.BasicIndexer((slice(None),) * self.ndim)
        return indexing.NumpyIndexingAdapter(array[whole]) if self._is_whole else array


def _keys(stored: Array[Any], *, is_whole: bool) -> list[str]:
    """Return the keys of all objects of an array, or of its first and last value; none if there are too many."""
    try:
        lengths = stored.shards or stored.chunks
    except NotImplementedError:  # they are not all of one shape
        return []
    n_objects = [-(-n // along) for n, along in zip(stored.shape, lengths, strict=True)]
    is_long = stored.shards is not None and prod(lengths) * stored.dtype.itemsize > _MOST_NBYTES
    if prod(n_objects) > _MOST_CHUNKS if is_whole else is_long:
        return []
    ends = {(0,) * len(n_objects), tuple(n - 1 for n in n_objects)}
    coords = product(*map(range, n_objects)) if is_whole else ends
    return [f"{stored.path}/{stored.metadata.encode_chunk_key(coord)}".strip("/") for coord in coords]


def is_short(stored: Array[Any]) -> bool:
    """Return whether an index is short enough to be requested ahead."""
    return stored.nbytes <= _MOST_NBYTES
