"""Objects that have several tags at once, because several servers are behind one address: how reads go on.

A read that meets another tag than its index had takes the shard for replaced, and begins anew. If a tag comes back
after another, the store is taken for several servers. That decides only what is asked for: what is returned of a shard
has come under one tag, or in one answer, whatever was believed. `read` asks before each attempt.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch import ObjectChangedError, ObjectSource, Version
from xarray_gpuzarr.process.advice import advise


class Care(IntEnum):
    """What a read does to have all bytes of a shard from one version."""

    USUAL = 0
    """It begins anew once another tag is met."""
    ASK_AGAIN = 1
    """It asks for a range until the answer is of its index's tag."""
    ONE_ANSWER = 2
    """It asks for each shard as a whole, index and chunks in one answer."""


_ATTEMPTS = {Care.USUAL: 3, Care.ASK_AGAIN: 2, Care.ONE_ANSWER: 2}
"""Times that a read is tried while tags differ."""
_PROBES = 16
"""Requests for one byte, made before a read is given up: of two servers at random, one in 65 000 goes unnoticed."""

_needed: dict[Hashable, Care] = {}
"""By a store's identity, in this process."""


class Attempts:
    """The attempts of one read.

    Parameters
    ----------
    source : ObjectSource
    """

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self.care = _needed.get(source.identity, Care.USUAL) if _needed else Care.USUAL
        self.use_cache = True
        """Whether indexes that were read before are of use: False once one may be out of date."""
        self._left = _ATTEMPTS[self.care]
        self._seen: dict[str, list[Version]] = {}

    def again(self, err: ObjectChangedError) -> bool:
        """Take note of what an attempt ended in; say whether to begin anew."""
        self.use_cache = False
        self._left -= 1
        if not err.key:
            return self._left > 0
        if self.care is Care.USUAL and (self._came_back(err.key, err.was, err.now) or self._has_several(err)):
            self._take_more(Care.ASK_AGAIN)
            self._warn(err)
        elif self.care is Care.ASK_AGAIN and not self._left:
            self._take_more(Care.ONE_ANSWER)
        return self._left > 0

    def _take_more(self, care: Care) -> None:
        self.care, self._left = care, _ATTEMPTS[care]
        if self._source.identity is not None:
            _needed[self._source.identity] = care

    def _came_back(self, key: str, *versions: Version) -> bool:
        """Note versions of an object in the order in which they were met; say whether one came after another had."""
        seen = self._seen.setdefault(key, [])
        for version in versions:
            if version in seen[:-1] and version != seen[-1]:
                return True
            seen.append(version)
        return False

    def _has_several(self, err: ObjectChangedError) -> bool:
        """Ask for the tag of an object before a read is given up, and see whether one comes back."""
        if self._left:
            return False
        for _ in range(_PROBES):
            try:
                edge = self._source.start_edge(err.key, "start", 1)()
            except StoreReadError:
                return False
            if self._came_back(err.key, None if edge is None else edge.version):
                return True
        return False

    def _warn(self, err: ObjectChangedError) -> None:
        advise(
            f"several tags: {hash(self._source.identity)}",
            f"{err.headline.partition(' was replaced')[0]} has several ETags or times at once",
            found=f"version {err.was}; version {err.now}; then one of them again: the address is several servers",
            do="nothing, for right values: reads ask again until all of a shard is of one tag, or for whole shards. To "
            "spare that, let the servers agree on ETag and Last-Modified (copy files with their times), or open one of "
            "them by its own address",
        )
