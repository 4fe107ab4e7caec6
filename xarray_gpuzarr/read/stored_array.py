"""`StoredArray`: everything that a later read of an array needs, also in another thread or process."""

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
from xarray_gpuzarr.stored.metadata import parse_metadata


@cache
def own_version() -> str:
    """Return the installed version of this package; an empty string if it is imported without being installed."""
    try:
        return metadata.version("xarray-gpuzarr")
    except metadata.PackageNotFoundError:
        return ""


class ArrayOfAnotherVersion:
    """Stand-in for an array that another version of this package has pickled. Any use of it raises `GpuZarrError`.

    Unpickling must not raise: this would end the connection of a dask worker, and the computation would hang.

    Parameters
    ----------
    rebuild : callable
        Returns the array, if the version is the one that pickled it.
    pickled : tuple
        Arguments of `rebuild`, the version first.
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
    """One array of a store. It can be pickled, and holds no open file."""

    shape: tuple[int, ...]
    """Shape of the array, in elements."""
    spec: ArraySpec | Unplanned
    """Description of the stored array, or the reason why it cannot be planned."""
    source: ObjectSource | None
    """Source of the bytes of planned reads; None if `zarr_array` is read instead."""
    zarr_array: zarr.Array[Any] | None = field(repr=False)  # its repr shows the store's address
    """The array itself, if it cannot be planned; else None."""
    cast: Cast
    """Conversion of stored elements to those of the result."""

    def __reduce__(self) -> tuple[object, ...]:
        # Other versions, whose classes may differ, may be unable to unpickle these fields, so they are passed as bytes.
        fields = zlib.compress(pickle.dumps((self.shape, self.spec, self.cast)), 1)
        return _unpickled, (own_version(), fields, self.source, self.zarr_array)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        spec = self.spec
        source = None if self.source is None else self.source.__dask_tokenize__()
        if isinstance(spec, ArraySpec):
            array: tuple[str, ...] = (spec.path, spec.metadata)
        else:
            assert self.zarr_array is not None
            array = (store_token(self.zarr_array.store), self.zarr_array.path)
        return (type(self).__qualname__, array, source, repr(self.cast))  # dask hashes these texts, not the objects

    @property
    def store_source(self) -> ObjectSource | None:
        """`source` without the check for missing objects."""
        return self.source.inner if isinstance(self.source, StrictSource) else self.source

    def in_store(self, store: Store) -> StoredArray:
        """Return this array, to be read through another store of the same objects.

        `store` must not be a local directory: the array's choice of `storage` would be lost.
        """
        source: ObjectSource | None = None if self.source is None else object_source(store)
        if source is not None and isinstance(self.source, StrictSource):
            source = StrictSource(source)
        array = None if self.zarr_array is None else in_store(self.zarr_array, store)
        return replace(self, source=source, zarr_array=array)

    def route(self, decoder: Decoder) -> Route:
        """Return where this array is decoded, and why."""
        if isinstance(self.spec, Unplanned):
            return Route(where="host, by zarr-python", why=self.spec.reason)
        return decoder.route(self.spec, self.cast)

    def how_read(self, decoder: Decoder) -> str:
        """Return how stored bytes reach the decoder's device: "gds", or "posix: " and the reason.

        Returns an empty string if the array is not in local files, or the decoder has no choice.
        """
        if isinstance(self.spec, Unplanned) or not isinstance(self.source, LocalSource):
            return ""
        if not isinstance(decoder, FileReader):
            return ""
        storage = self.source.storage
        why_posix = "asked for" if storage == "posix" else decoder.why_staged(self.spec, self.cast, storage)
        return "gds" if why_posix is None else f"posix: {why_posix}"


def _unpickled(version: str, fields: bytes, source: Any, zarr_array: Any) -> StoredArray | ArrayOfAnotherVersion:
    """Return an unpickled array, or its stand-in if another version has pickled it.

    Pickles of all versions name this function, so it must keep its name, module and parameters.
    """
    if version != own_version():
        return ArrayOfAnotherVersion(_unpickled, (version, fields, source, zarr_array))
    shape, spec, cast = pickle.loads(zlib.decompress(fields))  # noqa: S301  # part of a pickle that is being loaded
    return StoredArray(shape=shape, spec=spec, source=source, zarr_array=zarr_array, cast=cast)


def stored_array(array: zarr.Array[Any], cast: Cast | None = None, storage: Storage = "auto") -> StoredArray:
    """Return an open zarr array in the form that `read` takes.

    Parameters
    ----------
    array : zarr.Array
        The array.
    cast : Cast, optional
        Conversion of stored elements. Without it, values and dtype stay the same.
    storage : "auto", "posix" or "gds"
        How local files reach a GPU.

    Raises
    ------
    OptionError
        If `storage` is "gds" and the array is not in local files.
    MetadataError, UnsupportedCodecError
        See `parse_metadata`.
    """
    try:
        spec = parse_metadata(array.metadata, array.path)
    except GpuZarrError as err:
        raise err.within(object_source(array.store).name) from err.__cause__
    is_planned = isinstance(spec, ArraySpec)
    source: ObjectSource | None = object_source(array.store, storage) if is_planned else None
    # Arrays of zarr-python before 3.2 have no attribute `config`.
    if source is not None and refuses_missing(getattr(array, "config", None)):
        source = StrictSource(source)
    return StoredArray(
        shape=tuple(array.shape),
        spec=spec,
        source=source,
        zarr_array=None if is_planned else array,
        cast=cast or plain_cast(array.dtype.str),
    )


def in_store(array: zarr.Array[Any], store: Store) -> zarr.Array[Any]:
    """Return the same array, to be read through another store of the same objects."""
    config = getattr(array, "config", None)  # zarr-python before 3.2 has no such attribute
    return zarr.Array(zarr.AsyncArray(array.metadata, StorePath(store, array.path), config))


def refuses_missing(config: ArrayConfig | None) -> bool:
    """Whether a missing chunk is an error for an array with this config; zarr-python has the setting since 3.2."""
    return getattr(config, "read_missing_chunks", True) is False
