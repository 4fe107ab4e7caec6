"""Reads zarr's own `MemoryStore`, on the thread that needs the bytes.

Asking its coroutines would take two changes of threads for a look into a dictionary. A read keeps each object that it
has looked at, so that all of its bytes are of one version, whatever is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeGuard

import numpy as np
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from xarray_gpuzarr.fetch.source import (
    Edge,
    ObjectTooLongError,
    Pending,
    PendingEdge,
    Request,
    SourceWithoutFiles,
    Version,
    short,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2
_RULE = CoalesceRule(max_gap_nbytes=0, max_nbytes=2 * _MIB, max_raw_nbytes=8 * _MIB, max_together=64)


def answers_at_once(store: object) -> TypeGuard[MemoryStore]:
    """Say whether a store is one that `MemorySource` reads: not before zarr-python 3.3, and no subclass of it."""
    return type(store) is MemoryStore and hasattr(store, "get_sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource(SourceWithoutFiles):
    """The objects of a `MemoryStore`, which says nothing of versions."""

    store: MemoryStore
    held: dict[str, memoryview] | None = field(default=None, compare=False)
    """Objects that one read has looked at."""
    most_nbytes: int = NO_LIMIT
    """Length in bytes of the longest object that one read takes for a chunk."""
    lookahead: ClassVar = 1
    is_remote: ClassVar = False
    cuts_objects: ClassVar = False
    identity: ClassVar = None
    """Objects bear no version."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.store,)

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, repr(self.store))

    @property
    def name(self) -> str:
        """What the store says of itself."""
        return str(self.store)

    @property
    def rule(self) -> CoalesceRule:
        """2 MiB parts, as of local files; nothing is read through that is not wanted."""
        return coalesce_rule(fetch_options(), _RULE)

    def for_one_read(
        self,
        *,
        ask_again: bool = False,  # noqa: ARG002  # a key has one object
        expected_nbytes: int | None = None,  # noqa: ARG002
        most_nbytes: int = NO_LIMIT,
    ) -> MemorySource:
        """Return this source, to look at each object once."""
        return MemorySource(store=self.store, held={}, most_nbytes=most_nbytes)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:  # noqa: ARG002  # there is none
        """Return a function that takes the ranges."""
        return lambda _allocate: [self._range(*request) for request in requests]

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that takes the edge."""

        def finish() -> Edge | None:
            data = self._object(key)
            if data is None:
                return None
            edge = data[:nbytes] if location == "start" else data[max(0, len(data) - nbytes) :]
            return Edge(data=edge, object_nbytes=len(data))

        return finish

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:  # noqa: ARG002  # it is here
        """Return a function that takes the object."""
        return self.start_edge(key, "start", 2**63 - 1)

    def give_up(self) -> None:
        """Do nothing: nothing is under way."""

    def _range(self, key: str, byte_range: ByteRange) -> memoryview | None:
        data = self._object(key)
        if data is None:
            return None
        end = len(data) if byte_range.nbytes == WHOLE_OBJECT else byte_range.offset + byte_range.nbytes
        if byte_range.nbytes == WHOLE_OBJECT and len(data) > self.most_nbytes:
            raise ObjectTooLongError(key, len(data))
        if end > len(data):
            raise short(f"{self.store}/{key}", *byte_range, max(0, len(data) - byte_range.offset))
        return data[byte_range.offset : end]

    def _object(self, key: str) -> memoryview | None:
        """Return all bytes of an object, as they were when this read first asked for it."""
        if self.held is not None and key in self.held:
            return self.held[key]
        # The host prototype is named, so that zarr.config.enable_gpu() does not move encoded bytes to a device.
        buffer = self.store.get_sync(key, prototype=cpu.buffer_prototype)
        if buffer is None:
            return None
        data = memoryview(np.ascontiguousarray(buffer.as_numpy_array()).view(np.uint8))
        return data if self.held is None else self.held.setdefault(key, data)


def _rebuild(store: MemoryStore) -> MemorySource:
    return MemorySource(store=store)
