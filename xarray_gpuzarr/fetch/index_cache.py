"""Indexes of shards that were read before, so that the next read of a shard needs no request for its index.

One cache in a process, of bounded size; the index that was used longest ago makes room. An index belongs to one version
of a shard: `snapshot` uses it only for requests that fail if the shard has another version by then.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec

Key = tuple[Hashable, str, ShardIndexSpec | None]
"""What the shard is read from, its store key, and how its index is stored."""

_ENTRY_NBYTES = 512
"""What an index takes besides its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedIndex:
    """An index and the version of the shard that it describes."""

    index: ShardIndex
    version: Hashable

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.index.offset.nbytes + self.index.nbytes.nbytes + _ENTRY_NBYTES


class IndexCache:
    """Indexes by shard. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, CachedIndex] = OrderedDict()
        self.nbytes = 0
        """Memory that all entries take."""
        self._is_torn = False
        """Whether a change has begun and not ended: a signal interrupted it, unless it is under way."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> CachedIndex | None:
        """Return the index of a shard, None if it is not there."""
        with self._lock:
            if self._is_torn:
                self._begin()
                self._is_torn = False
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Key, entry: CachedIndex, most_nbytes: int) -> None:
        """Keep an index, unless it alone is too large; drop others until all take `most_nbytes` at most."""
        with self._lock:
            self._begin()
            self._drop(key)
            if entry.nbytes <= most_nbytes:
                self._entries[key] = entry
                self.nbytes += entry.nbytes
            while self.nbytes > most_nbytes:
                self._drop(next(iter(self._entries)))
            self._is_torn = False

    def drop(self, key: Key) -> None:
        """Forget the index of a shard."""
        with self._lock:
            self._begin()
            self._drop(key)
            self._is_torn = False

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._is_torn = True
            self._begin()
            self._is_torn = False

    def _begin(self) -> None:
        """Begin a change; forget everything if an earlier one was interrupted halfway."""
        if self._is_torn:
            self._entries, self.nbytes = OrderedDict(), 0
        self._is_torn = True

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes


cache = IndexCache()


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # a lock that another thread held does not come free in a fork
    cache = IndexCache()


os.register_at_fork(after_in_child=_after_fork)
