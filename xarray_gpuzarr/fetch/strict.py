"""Reads for which a missing object is an error, since zarr-python's ``array.read_missing_chunks`` is off.

`StrictSource` records which objects its store does not have. If there are any, the read raises an error at its end. As
with zarr-python, a chunk that a shard does not hold is the fill value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import zarr.errors

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.source import Allocate, ObjectSource, Pending, Request, Storage, Version
from xarray_gpuzarr.stored.codecs import NO_LIMIT

if TYPE_CHECKING:
    from zarr.errors import ChunkNotFoundError
else:  # zarr-python has the class, and the setting, since 3.2
    ChunkNotFoundError = getattr(zarr.errors, "ChunkNotFoundError", LookupError)

__all__ = ["ChunkNotFoundError", "MissingChunkError", "StrictSource", "missing_chunks_error", "missing_keys_error"]

_MAX_KEYS = 20
"""Number of keys that a message names."""


class MissingChunkError(StoreReadError, ChunkNotFoundError):
    """Objects of an array are missing, and the array is opened so that they do not stand for the fill value."""


def missing_keys_error(path: str, keys: Iterable[str]) -> MissingChunkError:
    """Return the error for objects of the array at `path` that a read did not find, given their keys."""
    names = sorted(keys)
    found = f"no chunk or shard {', '.join(map(repr, names[:_MAX_KEYS]))}"
    if len(names) > _MAX_KEYS:
        found += f" and {len(names) - _MAX_KEYS} more"
    return missing_chunks_error(path, f"{len(names)} chunk(s)", found)


def missing_chunks_error(path: str, chunks: str, found: str) -> MissingChunkError:
    """Return the error for missing chunks of the array at `path`.

    `chunks` says what they are, such as "2 chunk(s)", and `found` what was found in their place.
    """
    return MissingChunkError(
        f"{chunks} of array '{path}' not found in its store",
        tried="a selection of it, opened with zarr-python's array.read_missing_chunks off",
        found=found,
        do="restore them; or open the array with array.read_missing_chunks on, to have the fill value there",
    )


class StrictSource:
    """An `ObjectSource` that records which objects its store does not have."""

    storage: Storage = "posix"
    """Bytes go through host memory: with GPUDirect Storage they would not pass through this source."""
    is_local = False
    """False for local files, too: a decoder would read them without this source."""

    def __init__(self, source: ObjectSource) -> None:
        self.inner = source
        """Source that reads the store."""
        self.missing: set[str] = set()
        """Keys of missing objects that were requested. Each result of `for_one_read` has its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, *self.inner.__dask_tokenize__())

    def __getattr__(self, name: str) -> Any:  # all that is not defined here is that of the inner source
        attribute = getattr(self.inner, name)
        return self._recording(attribute) if name in {"start_edge", "start_range", "start_whole"} else attribute

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> Self:
        """Return a copy for one read, whose `missing` is empty; see `ObjectSource.for_one_read`."""
        inner = self.inner.for_one_read(ask_again=ask_again, expected_nbytes=expected_nbytes, most_nbytes=most_nbytes)
        return type(self)(inner)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Start reading byte ranges, or whole objects; see `ObjectSource.start`."""
        pending = self.inner.start(requests, version)

        def finish(allocate: Allocate) -> list[memoryview | None]:
            contents = pending(allocate)
            self.missing.update(key for (key, _), data in zip(requests, contents, strict=True) if data is None)
            return contents

        return finish

    def _recording(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the inner source that also records whether its object is missing."""

        def start_one(key: str, *args: Any) -> Callable[..., Any]:
            pending = start(key, *args)

            def finish() -> Any:
                content = pending()
                if content is None:
                    self.missing.add(key)
                return content

            return finish

        return start_one
