"""`CachedRead`: the cache of decoded chunks as one read uses it.

For each plan, the modules `decoder` and `cached_tasks` look up the chunks (`CachedRead.look_up`), let those that were
not found be decoded, and put those that are to be kept into the cache (`CachedRead.put`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xarray_gpuzarr.decoders.host import chunk_cache
from xarray_gpuzarr.decoders.host.chunk_cache import (
    CachedChunk,
    ChunkKey,
    Claim,
    are_kept_at_once,
    are_unfit,
    may_be_kept,
    object_key,
    store_key_of,
)
from xarray_gpuzarr.decoders.host.host_array import HostArray
from xarray_gpuzarr.fetch.source import ByteSource, ChunkVersions, PendingCheck, Version
from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.partial_chunks import PartialChunks
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.process.turns import turns


@record
class PlanChunks:
    """Chunks of one plan that are in the cache, and chunks that are to be kept there."""

    cached: dict[int, CachedChunk]
    """Cached chunks by row of the plan."""
    to_keep: dict[int, tuple[ChunkKey, CachedChunk]]
    """Chunks to put into the cache, by row of the plan: the key of each, and the `CachedChunk` that the whole chunk is
    decoded into."""

    def split(self, plan: ReadPlan) -> tuple[tuple[ReadPlan, PlanChunks], tuple[ReadPlan, PlanChunks]]:
        """Divide a plan into two: one of the cached chunks, and one of all others, including missing ones.

        Returns each plan with its own `PlanChunks`.
        """
        cached_rows = np.array(sorted(self.cached), np.int64)
        other_rows = np.delete(np.arange(plan.n_stored), cached_rows)
        # The keys of these dictionaries are rows of the new plans.
        cached = {i: self.cached[row] for i, row in enumerate(cached_rows.tolist())}
        to_keep = {i: self.to_keep[row] for i, row in enumerate(other_rows.tolist()) if row in self.to_keep}
        cached_plan = plan.take(cached_rows, plan.missing_piece_numbers[:0])
        other_plan = plan.take(other_rows, plan.missing_piece_numbers)
        cached_chunks = PlanChunks(cached=cached, to_keep={})
        other_chunks = PlanChunks(cached={}, to_keep=to_keep)
        return (cached_plan, cached_chunks), (other_plan, other_chunks)


class _Versions(dict[int, Version]):
    """Versions of a plan's objects, by the number of the object. A version is looked up when it is first needed."""

    def __init__(self, keys: Sequence[str], versions: ChunkVersions) -> None:
        super().__init__()
        self._keys, self._versions = keys, versions

    def __missing__(self, number: int) -> Version:
        version = self[number] = self._versions.settled_version(self._keys[number])
        return version


class CachedRead:
    """The cache of decoded chunks for one read. Callers must call `end_claim` in the end, whatever happens."""

    def __init__(self, array: HostArray, partial: PartialChunks, source: ByteSource, versions: ChunkVersions) -> None:
        self._array, self._partial, self._versions = array, partial, versions
        self._claim = Claim()
        self.end_claim = self._claim.end
        """Ends the claim of this read, so that reads that wait for its chunks go on. This is a single call of C, which
        no signal can interrupt. Reads that succeed call `forget_claim` before it."""
        self._claimed: list[ChunkKey] = []
        """Keys of the chunks that this read has claimed."""
        self._is_remote = source.is_remote
        self._version_takes_stat = source.is_local and array.spec.index is None
        """Whether the version of a chunk takes a `stat`, as that of a local file without an index does."""
        self._checks: list[PendingCheck] = []
        """Checks that remote shards still have the versions of their cached chunks; `check_versions` waits for them."""
        self._keeps_at_once = source.is_remote or are_kept_at_once(array, partial.target)
        """Whether chunks are kept when they are first read. Those of a server are, since they are fetched whole; others
        are if decoding only a part of them saves little."""

    def look_up(self, plan: ReadPlan) -> PlanChunks | None:
        """Look up those chunks of a plan of which the read takes a part.

        Returns the chunks that are cached and those that are to be kept; None if there are neither.

        Raises `ObjectChangedError` if the local file of a cached chunk has another version by now. For other stores,
        `check_versions` raises it.
        """
        rows = self._partial.rows(plan)
        if not rows:
            return None
        n_sought = len(rows)
        objects = plan.object.tolist()  # for each row, the number of its object
        offsets = plan.offset.tolist()
        object_keys = [object_key(self._array, self._versions.identity, key) for key in plan.keys]
        versions = _Versions(plan.keys, self._versions)
        if not self._version_takes_stat:
            # Without a version, a chunk cannot be kept. It is not claimed, since other reads would wait for it in vain.
            rows = [row for row in rows if versions[objects[row]] is not None]
        keys = [(object_keys[objects[row]], offsets[row]) for row in rows]
        entries, claimed = self._find(keys, [objects[row] for row in rows], versions)
        if not claimed and entries.count(None) == len(entries):  # most reads of single elements end here
            counters.add(n_cache_misses=n_sought)
            return None
        chunks = PlanChunks(cached={row: chunk for row, chunk in zip(rows, entries, strict=True) if chunk}, to_keep={})
        for i in claimed:
            self._keep(chunks, rows[i], keys[i], versions[objects[rows[i]]])
        # The versions of unsharded chunks are those that their files have now. The version of a shard is the one that
        # its index was read from, and the index may be from a cache, so the shard may have changed since.
        if chunks.cached and self._array.spec.index is not None:
            # To see the version of a shard, one byte of it is requested: the first of any cached chunk will do.
            row_by_object = {objects[row]: row for row in chunks.cached}
            check = self._versions.start_check([(plan.keys[n], offsets[row]) for n, row in row_by_object.items()])
            if self._is_remote:  # the requests for all plans are then under way together
                self._checks.append(check)
            else:
                check()
        n_hits = len(chunks.cached)
        hit_nbytes = n_hits * self._array.spec.chunk_nbytes
        self._versions.cached_nbytes += hit_nbytes  # `read` does not count these bytes as decoded
        counters.add(n_cache_hits=n_hits, n_cache_misses=n_sought - n_hits, cached_nbytes=hit_nbytes)
        return chunks if chunks.cached or chunks.to_keep else None

    def _find(
        self, keys: Sequence[ChunkKey], objects: Sequence[int], versions: _Versions
    ) -> tuple[list[CachedChunk | None], list[int]]:
        """Return the cached chunks, in the order of `keys`, and the positions of those that were claimed.

        `objects` has the number of each chunk's object. Waits while another read decodes one of the chunks, unless this
        read has claims itself. Chunks of an outdated version are removed from the cache, so that newer ones can take
        their places.
        """
        while True:
            entries, claimed, other = chunk_cache.cache.find(
                keys, self._claim, keeps_at_once=self._keeps_at_once, may_wait=not self._claimed
            )
            self._claimed += [keys[i] for i in claimed]
            if other is not None:
                turns.run_without(other.wait)
                continue
            stale = [
                i for i, chunk in enumerate(entries) if chunk is not None and chunk.version != versions[objects[i]]
            ]
            if not stale:
                return entries, claimed
            for i in stale:
                chunk_cache.cache.entries.drop(keys[i])

    def put(self, chunks: PlanChunks, rows: Sequence[int]) -> None:
        """Put decoded chunks of a plan into the cache, unless their objects have changed meanwhile."""
        for row in rows:
            key, chunk = chunks.to_keep[row]
            # The read itself makes sure that all bytes of a shard are of the version of its index. An unsharded chunk
            # is read whatever its version is, so its version now is compared with the one before the read.
            is_sharded = self._array.spec.index is not None
            if is_sharded or self._versions.settled_version(store_key_of(key)) == chunk.version:
                chunk_cache.cache.put(key, chunk)

    def check_versions(self) -> None:
        """Wait for the checks of all remote shards. Raises `ObjectChangedError` if one of them was replaced."""
        for check in self._checks:
            check()

    def forget_claim(self) -> None:
        """Remove this read's claim from the cache of chunks, since its chunks are in that cache by now.

        A read that fails does not call this. `end_claim` suffices then: an ended claim is treated as none.
        """
        if self._claimed:
            chunk_cache.cache.forget(self._claimed, self._claim)

    def _keep(self, chunks: PlanChunks, row: int, key: ChunkKey, version: Version) -> None:
        """Add a chunk to `chunks.to_keep`, with memory to decode it into.

        It is not added if the version of its object is unknown, nor if there is no memory: the cache is then cleared.
        """
        if version is None:
            return
        nbytes = self._array.kept_nbytes
        try:
            memory = host_memory.result_memory.empty((nbytes,), np.dtype(np.uint8))
        except MemoryError:
            chunk_cache.cache.clear()
            return
        chunk = CachedChunk(
            memory=memory, address=address(memory), version=version, nbytes=nbytes + chunk_cache.ENTRY_NBYTES
        )
        chunks.to_keep[row] = key, chunk


def cached_read(array: HostArray, target: Target, source: ByteSource) -> CachedRead | None:
    """Return the cache for one read; None if the read takes whole chunks only, or its chunks may not be kept."""
    versions = source.chunk_versions
    if versions is None or not may_be_kept(array, target.n_chunks):
        return None
    partial = PartialChunks(target, array.spec.grid)
    return None if partial.none_is_partial else CachedRead(array, partial, source, versions)


def counting_unfit(
    plans: Iterator[ReadPlan], array: HostArray, target: Target, source: ByteSource
) -> Iterator[ReadPlan]:
    """Return the same plans, and count chunks that the cache would keep if it were larger.

    This is for reads that do not use the cache. If the reason is that the cache is too small, those chunks of which the
    read takes a part are counted whenever a plan is drawn. Otherwise, nothing is counted.
    """
    if source.chunk_versions is None or not are_unfit(array, target.n_chunks):
        return plans
    partial = PartialChunks(target, array.spec.grid)
    return plans if partial.none_is_partial else _counted(plans, partial)


def _counted(plans: Iterator[ReadPlan], partial: PartialChunks) -> Iterator[ReadPlan]:
    for plan in plans:
        n_partial = len(partial.rows(plan))
        counters.add(n_cache_misses=n_partial, n_cache_unfit=n_partial)
        yield plan
