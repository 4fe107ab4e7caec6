"""Requests the chunks that xarray reads while it opens a slow store.

While it opens a dataset, xarray reads every index, one after another, and the first and the last value of every other
time variable. `ValuesAhead` requests the chunks of all groups concurrently from a `CachingStore`, and `OpeningArray`
makes xarray read through that store. Later reads go to the store itself. A read that cannot decode the chunks of the
`CachingStore` is repeated from the store itself, so that its error is that of any other read.
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
"""Largest size of an array or a shard that is requested ahead as a whole, in decoded bytes. Longer indexes are not
requested, because the user may have passed ``create_default_indexes=False`` in order not to read them. xarray does not
pass this argument to its engines."""
_MOST_CHUNKS = 256
"""Largest number of objects of an index that is requested ahead. More take several round trips anyway."""
_OPENERS = {opener.__code__ for opener in (xr.open_dataset, xr.open_datatree, xr.open_groups)}
"""Code of the functions of xarray that open datasets, to recognise them among the calling frames."""

type AnyLazyArray = LazyArray | ZarrArrayWrapper
"""A lazy array of this package, or one of xarray."""


class ValuesAhead:
    """The chunks that xarray will read during one opening.

    As a context manager, it surrounds the decoding of all groups by xarray.
    """

    def __init__(self, store: Store) -> None:
        self.cache = CachingStore(store)
        self._keys: list[str] = []
        """Keys of objects that have not been requested yet."""
        self._times: list[OpeningArray] = []
        """Arrays of times that are no indexes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        """Detach all arrays from the cache, except indexes, which xarray reads afterwards.

        After an error, nothing is read, so requests that are not answered are cancelled.
        """
        for array in self._times:
            array.detach()
        if error_type is not None:
            self.cache.give_up()

    def add(self, array: AnyLazyArray, stored: Array[Any], *, is_short_index: bool) -> OpeningArray:
        """Return an array that xarray can read in place of `array`, and record which chunks of `stored` to request.

        These are all chunks of an index that is short (`is_short`), and those of the first and the last value of other
        times. None are recorded if they would be too many or too large.
        """
        keys = _chunk_keys(stored, is_short_index=is_short_index)
        self._keys += keys
        # If an array is one short object, xarray's reads of the first and the last value need all of it.
        is_one_object = len(keys) == 1 and is_short(stored)
        opening = OpeningArray(array, stored, self, is_read_whole=is_short_index or is_one_object)
        if not is_short_index:
            self._times.append(opening)
        return opening

    def request_added(self, *, indexes_can_wait: bool = False) -> None:
        """Request the chunks of all arrays added so far.

        With `indexes_can_wait`, nothing is requested if all of these arrays are indexes: with
        ``create_default_indexes=False``, xarray reads none of them. If it does read one, that read calls this again.
        """
        if self._keys and (self._times or not indexes_can_wait):
            keys = self._keys
            self._keys = []
            # `_request` ends at once, so nothing has to be cancelled by its `RequestsUnderWay`.
            with suppress(Exception):  # xarray's read raises the same error
                begin_on_loop(str(self.cache), RequestsUnderWay(), [lambda: self._request(keys)])

    async def _request(self, keys: list[str]) -> None:
        """Make the cache request objects, without waiting for them."""
        for key in keys:
            self.cache.request_object(key)


class OpeningArray(BackendArray):
    """An array that is read through a cache while xarray opens its dataset, and through `array` afterwards.

    Parameters
    ----------
    array : LazyArray or ZarrArrayWrapper
        The lazy array that reads from the store itself.
    stored : zarr.Array
        The stored array, from which `array` reads.
    ahead : ValuesAhead
        The opening, with its cache.
    is_read_whole : bool
        Whether the first read reads all values, which are then kept until the array is detached.
    """

    __slots__ = ("_ahead", "_cached", "_is_read_whole", "array", "dtype", "shape", "stored")

    def __init__(self, array: AnyLazyArray, stored: Array[Any], ahead: ValuesAhead, *, is_read_whole: bool) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype
        self.stored = stored
        self._ahead: ValuesAhead | None = ahead
        """The opening; None once the array is detached."""
        # A scalar is not kept: its object stays in the cache, and decoding it again is cheap.
        self._is_read_whole = is_read_whole and self.ndim > 0
        self._cached: AnyLazyArray | indexing.NumpyIndexingAdapter | None = None
        """The array that reads through the cache, or all values. None before the first read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copy, (self.array,)  # what is unpickled is a copy of `array`, which has no cache

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        ahead = self._ahead
        if ahead is not None and _is_xarray_opening():
            try:
                ahead.request_added()
                if self._cached is None:
                    self._cached = self._array_in_cache(ahead.cache)
                return self._cached[key]
            except BaseException as err:
                is_interrupt = not isinstance(err, Exception)
                if is_interrupt or ahead.cache.has_raised(err):
                    # `ValuesAhead.__exit__` has run before xarray reads indexes, so requests are cancelled here.
                    ahead.cache.give_up()
                    raise
                # The chunks have arrived, but cannot be decoded. They are read from the store itself, below, so that
                # the error is that of any other read.
        self.detach()
        return self.array[key]

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Return a selection, read from the store itself."""
        return await self.array.async_getitem(key)

    def detach(self) -> None:
        """Stop using the cache."""
        self._ahead = None
        self._cached = None

    def _array_in_cache(self, cache: CachingStore) -> AnyLazyArray | indexing.NumpyIndexingAdapter:
        """Return a lazy array that reads through the cache, or all of its values if the first read reads them."""
        array: AnyLazyArray
        if isinstance(self.array, LazyArray):
            array = LazyArray(self.array.stored.in_store(cache), "host")
        else:
            array = type(self.array)(in_store(self.stored, cache))  # the class may be `CheckedArray`
        if not self._is_read_whole:
            return array
        everything = indexing.BasicIndexer((slice(None),) * self.ndim)
        return indexing.NumpyIndexingAdapter(array[everything])


def _is_xarray_opening() -> bool:
    """Return whether a function of xarray that opens datasets is running on this thread."""
    frame = currentframe()
    while frame is not None and frame.f_code not in _OPENERS:
        frame = frame.f_back
    return frame is not None


def _chunk_keys(stored: Array[Any], *, is_short_index: bool) -> list[str]:
    """Return the keys of the objects to request ahead; none if they are too many or too large.

    These are all objects of a short index, and those of the first and the last value of other arrays.
    """
    try:
        lengths = stored.shards or stored.chunks
    except NotImplementedError:  # the chunks are not all of one shape
        return []
    n_objects = [-(-size // length) for size, length in zip(stored.shape, lengths, strict=True)]
    if is_short_index:
        if prod(n_objects) > _MOST_CHUNKS:
            return []
        coords = list(product(*map(range, n_objects)))
    else:
        # The whole shard would be requested for the sake of one value.
        if stored.shards is not None and prod(lengths) * stored.dtype.itemsize > _MOST_NBYTES:
            return []
        first = (0,) * len(n_objects)
        last = tuple([n - 1 for n in n_objects])
        coords = list({first, last})
    return [f"{stored.path}/{stored.metadata.encode_chunk_key(coord)}".strip("/") for coord in coords]


def is_short(stored: Array[Any]) -> bool:
    """Return whether an array is short enough to be requested ahead as a whole."""
    return stored.nbytes <= _MOST_NBYTES
