"""Which objects a read found missing: zarr-python asks for that where ``array.read_missing_chunks`` is off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from xarray_gpuzarr.fetch import ObjectSource, PendingParts, Storage


class NotingSource:
    """An `ObjectSource` that notes which objects its store does not have.

    Parameters
    ----------
    source : ObjectSource
    """

    storage: Storage = "posix"
    """Never straight to a GPU, past this."""
    is_local = False
    """Files are not read past this either."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self.missing: set[str] = set()
        """Keys, of the read that `for_one_read` was called for last."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        return self._noting(found) if name in _REQUESTS else found

    def for_one_read(self, *, ask_again: bool = False, most_nbytes: int | None = None) -> Self:
        """Return this source as one read is to use it, which has not missed anything yet."""
        one_read = type(self)(self._source.for_one_read(ask_again=ask_again, most_nbytes=most_nbytes))
        self.missing = one_read.missing
        return one_read

    def start_objects(self, keys: Sequence[str], nbytes: int) -> PendingParts:
        """Start reading whole objects; see `ByteSource.start_objects`."""
        pending = self._source.start_objects(keys, nbytes)

        def finish(allocate: Any) -> list[memoryview | None]:
            objects = pending(allocate)
            self.missing.update(key for key, data in zip(keys, objects, strict=True) if data is None)
            return objects

        return finish

    def _noting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def start_one(key: str, *args: Any) -> Callable[..., Any]:
            pending = start(key, *args)

            def finish(*allocate: Any) -> Any:
                found = pending(*allocate)
                if found is None:
                    self.missing.add(key)
                return found

            return finish

        return start_one


_REQUESTS = frozenset({"start", "start_edge", "start_stream", "start_whole"})
