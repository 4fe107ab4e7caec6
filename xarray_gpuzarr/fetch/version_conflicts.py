"""What a read does when an object changes under it: read again, ask by ETag, or take the object whole.

A read that meets another tag than its index had takes the shard for replaced, and begins anew. If a tag comes back
after another, the store is taken for several servers, and a range is asked for until its tag is that of the index. The
last attempts ask for each shard as a whole: index and chunks come in one answer. What is believed of a store decides
only what is asked for: all that is returned of a shard has come under one tag, or in one answer. `read.reading` asks
before each attempt.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.source import ObjectChangedError, ObjectSource, Version
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

needed: dict[Hashable, Care] = {}
"""By a store's identity, in this process: those that need more than the usual care."""
uncut_stores: set[Hashable] = set()
"""Identities of stores whose answers bear no version, so that no object of theirs is requested in pieces."""


class MetVersions:
    """The versions of objects that one read has met, and how much care it takes because of them."""

    def __init__(self, source: ObjectSource, care: Care) -> None:
        self._source = source
        self.care = care
        self._left = _ATTEMPTS[self.care]
        self._seen: dict[str, list[Version]] = {}

    def again(self, err: ObjectChangedError) -> bool:
        """Take note of what an attempt ended in; say whether to begin anew."""
        self._left -= 1
        if self.care is Care.USUAL and err.key:  # do tags of the store say less than they should?
            if self._came_back(err.key, err.was, err.now):
                care = Care.ASK_AGAIN
            else:
                care = Care.USUAL if self._left else self._probe(err.key)
            if care is not Care.USUAL:
                self._take(care, for_good=True)
                self._warn(err)
        elif self.care is Care.ASK_AGAIN and not self._left:
            self._take(Care.ONE_ANSWER, for_good=True)
        if self.care is Care.USUAL and not self._left:  # replaced again and again
            self._take(Care.ONE_ANSWER, for_good=False)
        return self._left > 0

    def _take(self, care: Care, *, for_good: bool) -> None:
        """Take more care, also in later reads of the store if it is `for_good`."""
        self.care, self._left = care, _ATTEMPTS[care]
        if for_good and self._source.identity is not None:
            needed[self._source.identity] = care

    def _came_back(self, key: str, *versions: Version) -> bool:
        """Note versions of an object in the order in which they were met; say whether one came after another had."""
        seen = self._seen.setdefault(key, [])
        for version in versions:
            if version in seen[:-1] and version != seen[-1]:
                return True
            seen.append(version)
        return False

    def _probe(self, key: str) -> Care:
        """Ask for an object's tag some times, to see whether one comes back, or none comes twice."""
        for _ in range(_PROBES):
            try:
                edge = self._source.start_edge(key, "start", 1)()
            except StoreReadError as err:
                if is_final(err):  # then reading once more would only ask the same again
                    raise
                return Care.USUAL
            if self._came_back(key, None if edge is None else edge.version):
                return Care.ASK_AGAIN
        return Care.ONE_ANSWER if len(set(self._seen[key][-_PROBES:])) == _PROBES else Care.USUAL

    def _warn(self, err: ObjectChangedError) -> None:
        if self.care is Care.ASK_AGAIN:
            has, then = "several ETags or times at once", "then one of them again: the address is several servers"
            do = (
                "reads ask again until all of a shard is of one tag, or for whole shards. To spare that, let the "
                "servers agree on ETag and Last-Modified (copy files with their times), or open one by its own address"
            )
        else:
            has, then = "another ETag or time in each answer", "then others, none of them twice"
            do = "reads ask for whole shards. To spare that, let the server send tags that change with the object only"
        advise(
            f"several tags: {hash(self._source.identity)}",
            f"{err.headline.partition(' was replaced')[0]} has {has}",
            found=f"version {err.was}; version {err.now}; {then}",
            do=f"nothing, for right values: {do}",
        )
