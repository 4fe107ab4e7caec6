"""Reads of arrays with zarr-python's ``array.read_missing_chunks`` off: a missing object is an error.

A source notes which objects its store does not have, and a read that is over is an error if there are any. Chunks that
a shard lacks are the fill value all the same, as with zarr-python.
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
else:  # zarr-python has it, and the setting, from 3.2 on
    ChunkNotFoundError = getattr(zarr.errors, "ChunkNotFoundError", LookupError)

__all__ = ["ChunkNotFoundError", "MissingChunkError", "StrictSource", "missing_chunks", "missing_keys"]

_MOST_KEYS = 20
"""That a message names."""


class MissingChunkError(StoreReadError, ChunkNotFoundError):
    """Objects of an array are not there, and its settings say that this is no fill value."""


def missing_keys(path: str, keys: Iterable[str]) -> MissingChunkError:
    """Return the error for objects that a read did not find."""
    names = sorted(keys)
    more = f" and {len(names) - _MOST_KEYS} more" if len(names) > _MOST_KEYS else ""
    return missing_chunks(
        path, f"{len(names)} chunk(s)", f"no chunk or shard {', '.join(map(repr, names[:_MOST_KEYS]))}{more}"
    )


def missing_chunks(path: str, what: str, found: str) -> MissingChunkError:
    """Return the error for chunks that are not there."""
    return MissingChunkError(
        f"{what} of array '{path}' not found in its store",
        tried="a selection of it, opened with zarr-python's array.read_missing_chunks off",
        found=found,
        do="restore them; or open the array with array.read_missing_chunks on, to have the fill value there",
    )


class StrictSource:
    """An `ObjectSource` that notes which objects its store does not have."""

    storage: Storage = "posix"
    """Never straight to a GPU, past this."""
    is_local = False
    """Files are not read past this either."""

    def __init__(self, source: ObjectSource) -> None:
        self.within = source
        """What knows the store."""
        self.missing: set[str] = set()
        """Keys of objects that were asked for and are not there; of what `for_one_read` returned."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.within,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, *self.within.__dask_tokenize__())

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.within, name)
        return self._noting(attribute) if name in {"start_edge", "start_range", "start_whole"} else attribute

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> Self:
        """Return this source as one read is to use it, which has not missed anything yet."""
        within = self.within.for_one_read(ask_again=ask_again, expected_nbytes=expected_nbytes, most_nbytes=most_nbytes)
        return type(self)(within)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Start reading byte ranges, or whole objects; see `ObjectSource.start`."""
        pending = self.within.start(requests, version)

        def finish(allocate: Allocate) -> list[memoryview | None]:
            contents = pending(allocate)
            self.missing.update(key for (key, _), data in zip(requests, contents, strict=True) if data is None)
            return contents

        return finish

    def _noting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_one(key: str, *args: Any) -> Callable[..., Any]:
            pending = start(key, *args)

            def finish() -> Any:
                content = pending()
                if content is None:
                    self.missing.add(key)
                return content

            return finish

        return start_one
