"""Indexes of shards that were read before, so that the next read of a shard needs no request for its index.

One cache in a process, of bounded size. An index belongs to one version of a shard: `snapshot` uses it only for
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
"""What the shard is read from, its store key, and how its index is stored."""

_ENTRY_NBYTES = 512
"""What an index takes besides its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedIndex:
    """An index and the version of the shard that it describes."""

    index: ShardIndex
    version: Any

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.index.offset.nbytes + self.index.nbytes.nbytes + _ENTRY_NBYTES


IndexCache = LimitedCache[Key, CachedIndex]

cache: IndexCache = LimitedCache()


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # a lock that another thread held does not come free in a fork
    cache = LimitedCache()


os.register_at_fork(after_in_child=_after_fork)
