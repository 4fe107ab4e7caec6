"""What a read does if an object changes while it is read: begin again, ask by ETag, or request whole objects.

If a read meets another ETag than the one that its index came with, the shard was probably replaced, and the read begins
again. If an ETag comes back after another one, the store is probably several servers that disagree, and each range is
requested until its ETag is that of the index. The last attempts request each shard as a whole, so that index and chunks
come in one answer. A wrong guess costs requests, never values: all bytes that are used of a shard have one ETag, or
come in one answer. `read.attempts` asks `VersionConflicts` after each attempt that has met a changed object.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.source import ObjectSource, Version
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError
from xarray_gpuzarr.process.advice import advise


class Care(IntEnum):
    """What a read does to get all bytes of a shard from one version."""

    USUAL = 0
    """It begins again when it meets another ETag."""
    ASK_AGAIN = 1
    """It repeats each request until the answer has the ETag of the index."""
    ONE_ANSWER = 2
    """It requests each shard as a whole, index and chunks in one answer."""


_ATTEMPTS = {Care.USUAL: 3, Care.ASK_AGAIN: 2, Care.ONE_ANSWER: 2}
"""Number of attempts of a read with each care. If all of them fail, the read takes more care, or fails in the end."""
_N_PROBES = 16
"""Number of requests for one byte that decide whether more than the usual care is needed. If two servers answer at
random, all answers come from the one that answered before in 1 of 65 000 cases."""

care_by_store: dict[Hashable, Care] = {}
"""Care for the stores, by their identity, that have shown in this process that they need more than the usual one."""
uncut_stores: set[Hashable] = set()
"""Identities of stores whose answers have no versions that can be compared. Their objects are not requested in
pieces."""


class VersionConflicts:
    """The versions of objects that one read has met, and the care that it takes because of them.

    Parameters
    ----------
    source : ObjectSource
        The array's source.
    care : Care
        Care of the first attempt.
    """

    def __init__(self, source: ObjectSource, care: Care) -> None:
        self._source = source
        self.care = care
        """Care of the next attempt."""
        self._attempts_left = _ATTEMPTS[care]
        self._seen: dict[str, list[Version]] = {}
        """By key, the versions of each object that attempts have met, in that order."""

    def should_retry(self, err: ObjectChangedError) -> bool:
        """Return whether the read should begin again after an attempt that ended in `err`; `care` says how.

        May ask the store for the versions that it has. Raises `StoreReadError` if the store has stopped answering.
        """
        self._attempts_left -= 1
        if self.care is Care.USUAL and err.key:  # local files, whose errors have no key, come from no server
            # Perhaps several servers answer, or the server sends another ETag each time.
            if self._came_back(err.key, err.index_version, err.later_version):
                needed_care = Care.ASK_AGAIN
            elif self._attempts_left:
                needed_care = Care.USUAL
            else:
                needed_care = self._probe(err.key)
            if needed_care is not Care.USUAL:
                self._increase_care(needed_care, for_later_reads=True)
                self._warn(err)
        elif self.care is Care.ASK_AGAIN and not self._attempts_left:
            self._increase_care(Care.ONE_ANSWER, for_later_reads=True)
        if self.care is Care.USUAL and not self._attempts_left:
            # Another process replaces the object again and again.
            self._increase_care(Care.ONE_ANSWER, for_later_reads=False)
        return self._attempts_left > 0

    def _increase_care(self, care: Care, *, for_later_reads: bool) -> None:
        """Take this care from now on, and also in later reads of the store if `for_later_reads`."""
        self.care = care
        self._attempts_left = _ATTEMPTS[care]
        if for_later_reads and self._source.identity is not None:
            care_by_store[self._source.identity] = care

    def _came_back(self, key: str, *versions: Version) -> bool:
        """Record versions of an object in the order in which they were met.

        Return whether one of them came back after another one. The remaining ones are then not recorded.
        """
        seen = self._seen.setdefault(key, [])
        for version in versions:
            if version in seen[:-1] and version != seen[-1]:
                return True
            seen.append(version)
        return False

    def _probe(self, key: str) -> Care:
        """Request a byte of an object several times; return the care that the versions of the answers call for.

        That is `ASK_AGAIN` if a version comes back after another one, `ONE_ANSWER` if each answer has a new version,
        and else `USUAL`.
        """
        for _ in range(_N_PROBES):
            try:
                edge = self._source.start_edge(key, "start", 1)()
            except StoreReadError as err:
                if is_final(err):  # another attempt would only fail like this
                    raise
                return Care.USUAL  # the error says nothing about versions
            if self._came_back(key, None if edge is None else edge.version):
                return Care.ASK_AGAIN
        is_each_new = len(set(self._seen[key][-_N_PROBES:])) == _N_PROBES
        return Care.ONE_ANSWER if is_each_new else Care.USUAL

    def _warn(self, err: ObjectChangedError) -> None:
        """Warn that reads of this store take more requests or bytes because of its versions."""
        if self.care is Care.ASK_AGAIN:
            problem = "has several ETags or times at once"
            evidence = "then one of them again, so several servers seem to answer"
            cost = "requests are repeated until all bytes of a shard have one ETag, or whole shards are requested"
            remedy = (
                "let the servers agree on ETag and Last-Modified (copy files with their times), or open the store at "
                "the address of a single server"
            )
        else:
            problem = "has another ETag or time in each answer"
            evidence = "then others, none of them twice"
            cost = "whole shards are requested"
            remedy = "let the server send an ETag that changes only if the object changes"
        object_name = err.headline.partition(" was replaced")[0]  # see `changed_error`
        advise(
            f"several tags: {hash(self._source.identity)}",
            f"{object_name} {problem}",
            found=f"version {err.index_version}; version {err.later_version}; {evidence}",
            do=f"the values are right, but reads are slower, since {cost}. To avoid that, {remedy}",
        )
