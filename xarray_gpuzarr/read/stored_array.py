"""`StoredArray`: all that is needed to read one array again later, in another thread or process."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.core.array_spec import ArrayConfig
from zarr.storage import StorePath

from xarray_gpuzarr.decoders.protocol import Decoder, FileReader, Route
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import ObjectSource, Storage
from xarray_gpuzarr.fetch.stores import store_token
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.cf import Cast, plain_cast
from xarray_gpuzarr.stored.metadata import parse_array


@cache
def own_version() -> str:
    """Return the version of this package that is installed; empty where only its files are there."""
    try:
        return metadata.version("xarray-gpuzarr")
    except metadata.PackageNotFoundError:
        return ""


class OfAnotherVersion:
    """Stand-in for an array whose fields this version may not know.

    `rebuild` makes the array of `pickled`, where the version is the one that has pickled it: `pickled[0]`. An error
    while it is unpickled would end the connection of a worker of dask, and the computation would hang.
    """

    def __init__(self, rebuild: Any, pickled: tuple[Any, ...]) -> None:
        self._reduced = rebuild, pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced

    def __getattr__(self, name: str) -> Any:
        raise GpuZarrError(
            "another version of xarray_gpuzarr has opened this array",
            tried=f"to use it after it was pickled ({name})",
            found=f"version {self._reduced[1][0]} has pickled it, and version {own_version()} is installed here",
            do="install the same version on the client and on all workers; or open the dataset here",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array of a store: picklable, holds no open file."""

    shape: tuple[int, ...]
    spec: ArraySpec | Unplanned
    source: ObjectSource | None
    """Where planned reads fetch from; None if `zarr_array` is asked instead."""
    zarr_array: zarr.Array[Any] | None = field(repr=False)  # which shows the store's address
    """The array itself, if it cannot be planned."""
    cast: Cast

    def __reduce__(self) -> tuple[object, ...]:
        # Bytes, since another version may not be able to unpickle what it knows with other fields.
        known = zlib.compress(pickle.dumps((self.shape, self.spec, self.cast)), 1)
        return _unpickled, (own_version(), known, self.source, self.zarr_array)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        spec, source = self.spec, self.source and self.source.__dask_tokenize__()
        if isinstance(spec, ArraySpec):
            array: tuple[str, ...] = (spec.path, spec.metadata)
        else:
            assert self.zarr_array is not None
            array = (store_token(self.zarr_array.store), self.zarr_array.path)
        return (type(self).__qualname__, array, source, repr(self.cast))  # dask takes what is in it as it is

    @property
    def store_source(self) -> ObjectSource | None:
        """Source of planned reads, without the check for missing objects."""
        return self.source.inner if isinstance(self.source, StrictSource) else self.source

    def in_store(self, store: Store) -> StoredArray:
        """Return this array, read through another store of the same objects, which is no directory."""
        source: ObjectSource | None = None if self.source is None else object_source(store)
        if source is not None and isinstance(self.source, StrictSource):
            source = StrictSource(source)
        array = None if self.zarr_array is None else in_store(self.zarr_array, store)
        return replace(self, source=source, zarr_array=array)

    def route(self, decoder: Decoder) -> Route:
        """Say where this array is decoded and why."""
        if isinstance(self.spec, Unplanned):
            return Route(where="host, by zarr-python", why=self.spec.reason)
        return decoder.route(self.spec, self.cast)

    def how_read(self, decoder: Decoder) -> str:
        """Say how stored bytes reach the decoder's device, and why; empty where there is nothing to choose."""
        if isinstance(self.spec, Unplanned) or not isinstance(self.source, LocalSource):
            return ""
        if not isinstance(decoder, FileReader):
            return ""
        storage = self.source.storage
        why_not = "asked for" if storage == "posix" else decoder.why_staged(self.spec, self.cast, storage)
        return "gds" if why_not is None else f"posix: {why_not}"


def _unpickled(version: str, known: bytes, source: Any, zarr_array: Any) -> StoredArray | OfAnotherVersion:
    if version != own_version():
        return OfAnotherVersion(_unpickled, (version, known, source, zarr_array))
    shape, spec, cast = pickle.loads(zlib.decompress(known))  # noqa: S301  # it is inside a pickle
    return StoredArray(shape=shape, spec=spec, source=source, zarr_array=zarr_array, cast=cast)


def stored_array(array: zarr.Array[Any], cast: Cast | None = None, storage: Storage = "auto") -> StoredArray:
    """Describe an open zarr array so that `read` can read it; no cast keeps values and dtype as zarr-python has them.

    Raises `OptionError` for ``storage="gds"`` where the array is not in local files; `MetadataError` and
    `UnsupportedCodecError` as `parse_array` does, with the name of the store.
    """
    try:
        spec = parse_array(array)
    except GpuZarrError as err:
        raise err.within(object_source(array.store).name) from err.__cause__
    planned = isinstance(spec, ArraySpec)
    source: ObjectSource | None = object_source(array.store, storage) if planned else None
    # Arrays of zarr-python before 3.2 do not show their config.
    if source is not None and refuses_missing(getattr(array, "config", None)):
        source = StrictSource(source)
    shape, cast, zarr_array = tuple(array.shape), cast or plain_cast(array.dtype.str), None if planned else array
    return StoredArray(shape=shape, spec=spec, source=source, zarr_array=zarr_array, cast=cast)


def in_store(array: zarr.Array[Any], store: Store) -> zarr.Array[Any]:
    """Return an array that is read through another store of the same objects."""
    config = getattr(array, "config", None)  # likewise
    return zarr.Array(zarr.AsyncArray(array.metadata, StorePath(store, array.path), config))


def refuses_missing(config: ArrayConfig | None) -> bool:
    """Say whether chunks that are not there are an error; zarr-python knows that setting from 3.2 on."""
    return getattr(config, "read_missing_chunks", True) is False
