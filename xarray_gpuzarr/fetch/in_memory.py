"""`MemorySource`: reads zarr's own `MemoryStore` on the calling thread.

The coroutines of zarr's interface would take two thread switches to look up an object in the store's dictionary. A read
keeps each object that it has looked up, so all bytes of the object are of one version even if others write meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

import numpy as np
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from xarray_gpuzarr.fetch.source import Edge, Pending, PendingEdge, Request, SourceWithoutFiles, Version
from xarray_gpuzarr.fetch.store_errors import ObjectTooLongError, short_object_error
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2
_RULE = CoalesceRule(max_gap_nbytes=0, max_nbytes=2 * _MIB, max_raw_nbytes=8 * _MIB, max_together=64)


def fits_memory_source(store: object) -> TypeGuard[MemoryStore]:
    """Whether `MemorySource` reads a store: a `MemoryStore` of zarr-python 3.3 or newer, and not a subclass."""
    return type(store) is MemoryStore and hasattr(store, "get_sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource(SourceWithoutFiles):
    """The objects of a `MemoryStore`, which have no versions."""

    store: MemoryStore
    objects: dict[str, memoryview] | None = field(default=None, compare=False)
    """Bytes of the objects that one read has looked up, by key; None outside a read."""
    most_nbytes: int = NO_LIMIT
    """Length in bytes above which an object cannot be a chunk."""
    lookahead: ClassVar = 1
    """1, since nothing is gained by starting requests early."""
    is_remote: ClassVar = False
    cuts_objects: ClassVar = False
    identity: ClassVar = None
    """None, so that nothing is cached: objects have no version that would show a change."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.store,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, repr(self.store))

    @property
    def name(self) -> str:
        """Name of the store, as errors show it."""
        return str(self.store)

    @property
    def rule(self) -> CoalesceRule:
        """Rule by which one thread reads up to 64 ranges one after another, together at most 2 MiB, as for local files.

        Gaps are skipped, since another range costs no request.
        """
        return coalesce_rule(fetch_options(), _RULE)

    def for_one_read(
        self,
        *,
        ask_again: bool = False,  # noqa: ARG002  # the object would be the same
        expected_nbytes: int | None = None,  # noqa: ARG002  # there are no requests
        most_nbytes: int = NO_LIMIT,
    ) -> MemorySource:
        """Return a source that looks up each object once; see `ObjectSource.for_one_read`."""
        return MemorySource(store=self.store, objects={}, most_nbytes=most_nbytes)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:  # noqa: ARG002
        """Return a function that returns the byte ranges. `version` has no effect, since the objects have none."""
        return lambda _allocate: [self._range(*request) for request in requests]

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that returns the first or last bytes of an object."""

        def finish() -> Edge | None:
            data = self.object_bytes(key)
            if data is None:
                return None
            edge = data[:nbytes] if location == "start" else data[max(0, len(data) - nbytes) :]
            return Edge(data=edge, object_nbytes=len(data))

        return finish

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:  # noqa: ARG002
        """Return a function that returns a whole object of any length, since it is in memory already."""
        return self.start_edge(key, "start", NO_LIMIT)

    def give_up(self) -> None:
        """Do nothing, since there are no requests."""

    def _range(self, key: str, byte_range: ByteRange) -> memoryview | None:
        data = self.object_bytes(key)
        if data is None:
            return None
        offset, nbytes = byte_range
        if nbytes == WHOLE_OBJECT:
            if len(data) > self.most_nbytes:
                raise ObjectTooLongError(key, len(data))
            return data[offset:]
        if offset + nbytes > len(data):
            raise short_object_error(f"{self.store}/{key}", offset, nbytes, max(0, len(data) - offset))
        return data[offset : offset + nbytes]

    def object_bytes(self, key: str) -> memoryview | None:
        """Return all bytes of an object, as they were when this read first looked it up; None if it is missing."""
        if self.objects is not None and key in self.objects:
            return self.objects[key]
        # The prototype is explicit, so that zarr.config.enable_gpu() does not move encoded bytes to a device.
        buffer = self.store.get_sync(key, prototype=cpu.buffer_prototype)
        if buffer is None:
            return None
        data = memoryview(np.ascontiguousarray(buffer.as_numpy_array()).view(np.uint8))
        return data if self.objects is None else self.objects.setdefault(key, data)


def _rebuild(store: MemoryStore) -> MemorySource:
    return MemorySource(store=store)
