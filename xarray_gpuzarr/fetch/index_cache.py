"""Cache of shard indexes, so that the next read of a shard needs no request for its index.

A process has one cache, of bounded size. An index belongs to one version of its shard: `shard_indexes` uses it only for
requests that fail if the shard has another version by then.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from xarray_gpuzarr.process.limited_cache import LimitedCache
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec

Key = tuple[Hashable, str, ShardIndexSpec | None]
"""Identity of the source, store key of the shard, and format of its index. The format is None for an object of an
unsharded array: such a key may be looked up, but nothing is stored under it."""

_ENTRY_OVERHEAD_NBYTES = 512
"""Memory that an entry takes besides the columns of its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedIndex:
    """An index and the version of the shard that it describes."""

    index: ShardIndex
    version: Any
    """Version of the shard; see `source.Version`."""

    @property
    def nbytes(self) -> int:
        """Memory that the entry takes, in bytes."""
        return self.index.offset.nbytes + self.index.nbytes.nbytes + _ENTRY_OVERHEAD_NBYTES


IndexCache = LimitedCache[Key, CachedIndex]

cache: IndexCache = LimitedCache()
"""The cache of this process."""


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # the old lock may be held by a thread that the fork does not have
    cache = LimitedCache()


os.register_at_fork(after_in_child=_after_fork)
