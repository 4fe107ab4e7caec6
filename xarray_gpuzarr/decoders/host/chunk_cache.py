"""Decoded chunks of which reads took a part, so that the next part of one needs no decoding.

One cache in a process, of bounded size. A chunk belongs to one version of its object, as indexes do: what is found is
used only if the object is known to be of that version, see `ChunkVersions`. Kept are the elements as the
loops place them, before CF decoding. `decoder` asks for the chunks of each plan, and hands over those that it has
decoded.

Threads that want one chunk at the same time decode it once: the first one claims it, the others wait for the end of
that claim. A read that has claims waits for none, so reads never wait for each other in a circle.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.host_array import HostArray
from xarray_gpuzarr.fetch.source import ByteSource, ChunkVersions, Version
from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.partial_chunks import PartialChunks, are_much, reach_most
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.limited_cache import LimitedCache
from xarray_gpuzarr.process.records import record

Memory = npt.NDArray[np.uint8]
ChunkKey = tuple[tuple[Hashable, ...], int]
"""Source of the object, metadata of the array, form of the elements and store key; and the first byte of the chunk."""

_MIB = 1024**2
_ENTRY_NBYTES = 512
"""Memory that a chunk takes besides its elements, in bytes."""
_MOST_CHUNKS = 4096
"""Most chunks in a read whose chunks are looked for: 1 us each, where decoding takes ten at least."""
_MOST_SEEN = 16_384
"""Chunks that are remembered to have been read once, some 5 MB."""
_LOOK_S = 0.5
"""How often a thread that waits for a chunk looks whether it is still being decoded."""


@record
class CachedChunk:
    """The elements of a chunk and the version of the object that it comes from."""

    memory: Memory
    address: int
    """Address of `memory`."""
    version: Version
    nbytes: int
    """Memory that it takes."""


class Claim:
    """Chunks that one read decodes; it ends in one step, which no signal can interrupt."""

    __slots__ = ("_under_way", "end")

    def __init__(self) -> None:
        self._under_way = Lock()
        self._under_way.acquire()
        self.end = self._under_way.release
        """Let others decode what is not in the cache by now."""

    @property
    def has_ended(self) -> bool:
        """Whether the chunks are in the cache, or will not be."""
        return not self._under_way.locked()

    def wait(self) -> None:
        """Return soon after it has ended."""
        if self._under_way.acquire(timeout=_LOOK_S):
            self._under_way.release()


class ChunkCache:
    """Decoded chunks, and those that are being decoded. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.entries: LimitedCache[ChunkKey, CachedChunk] = LimitedCache()
        self._claims: dict[ChunkKey, Claim] = {}
        self._seen: dict[ChunkKey, None] = {}

    def find(
        self, keys: Sequence[ChunkKey], claim: Claim, *, at_once: bool, may_wait: bool
    ) -> tuple[list[CachedChunk | None], list[int], Claim | None]:
        """Look for chunks, and claim those that are to be kept.

        Without `at_once`, a chunk is to be kept from the second time on that it is looked for. Returns those that are
        there, of any version; the positions of the others that are claimed now; and the claim of another read to wait
        for before all is looked for again: only if it `may_wait`, and nothing is claimed then.
        """
        with self._lock:
            chunks = self.entries.get_all(keys)
            missing = [i for i, chunk in enumerate(chunks) if chunk is None]
            if not missing:
                return chunks, [], None
            of_others = {i: self._claims[keys[i]] for i in missing if keys[i] in self._claims} if self._claims else {}
            under_way = {i: other for i, other in of_others.items() if other is not claim and not other.has_ended}
            if under_way and may_wait:
                return chunks, [], next(iter(under_way.values()))
            seen = self._seen
            claimed = [i for i in missing if i not in under_way and (at_once or keys[i] in seen)]
            self._claims.update({keys[i]: claim for i in claimed})
            if not at_once:
                self._see([keys[i] for i in missing])
        return chunks, claimed, None

    def see_first(self, keys: Sequence[ChunkKey]) -> bool:
        """Whether no chunk has been looked for before; all are remembered then, and kept at their next read."""
        with self._lock:
            if any(key in self._seen or key in self._claims for key in keys):
                return False
            self._see(keys)
        return True

    def put(self, key: ChunkKey, chunk: CachedChunk) -> None:
        """Keep a chunk."""
        self.entries.put(key, chunk, fetch_options().cache_nbytes)

    def forget(self, keys: Sequence[ChunkKey], claim: Claim) -> None:
        """Forget a claim that is about to end; one that was interrupted goes with the next claim of its chunks."""
        with self._lock:
            for key in keys:
                if self._claims.get(key) is claim:
                    del self._claims[key]

    def clear(self) -> None:
        """Forget all chunks."""
        self.entries.clear()

    def _see(self, keys: Sequence[ChunkKey]) -> None:
        """Remember chunks, and forget those that were read longest ago."""
        self._seen.update(dict.fromkeys(keys))
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


cache = ChunkCache()


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # a lock that another thread held does not come free in a fork
    cache = ChunkCache()


os.register_at_fork(after_in_child=_after_fork)
host_memory.release_functions.append(lambda: cache.clear())  # noqa: PLW0108  # a fork has another one


@record
class PlanChunks:
    """Chunks of one plan that the cache has, and those that it is to keep."""

    found: dict[int, CachedChunk]
    """By row."""
    kept: dict[int, tuple[ChunkKey, CachedChunk]]
    """By row: chunks that are to be decoded as a whole, to this memory."""

    def split(self, plan: ReadPlan) -> tuple[tuple[ReadPlan, PlanChunks], tuple[ReadPlan, PlanChunks]]:
        """Return the plan of the chunks that were found and that of all others, each with what the cache has of it."""
        found = np.array(sorted(self.found), np.int64)
        others = np.delete(np.arange(plan.n_stored), found)
        here = PlanChunks(found={i: self.found[row] for i, row in enumerate(found.tolist())}, kept={})
        rest = {i: self.kept[row] for i, row in enumerate(others.tolist()) if row in self.kept}
        first = plan.take(found, plan.missing_row[:0]), here
        return first, (plan.take(others, plan.missing_row), PlanChunks(found={}, kept=rest))


class _Versions(dict[int, Version]):
    """Versions of a plan's objects, by number; only those that are looked at are asked for."""

    def __init__(self, keys: Sequence[str], versions: ChunkVersions) -> None:
        super().__init__()
        self._keys, self._of = keys, versions

    def __missing__(self, number: int) -> Version:
        version = self[number] = self._of.settled_version(self._keys[number])
        return version


class CachedRead:
    """The cache as one read uses it; call `end_claim`, whatever happens."""

    def __init__(self, array: HostArray, partial: PartialChunks, versions: ChunkVersions, *, is_remote: bool) -> None:
        self._array, self._partial, self._versions = array, partial, versions
        self._claim = Claim()
        self.end_claim = self._claim.end
        """Lets others decode what has not been kept: one call of C."""
        self._claimed: list[ChunkKey] = []
        """Keys of the chunks that this read has claimed."""
        self._at_once = is_remote or are_kept_at_once(array, partial.target)
        """Whether chunks are kept when they are first read: nothing, or little, is saved by decoding a part of them."""

    def look_up(self, plan: ReadPlan) -> PlanChunks | None:
        """Return what there is of a plan's chunks, and what is to be kept; None if it is nothing.

        Raises `ObjectChangedError` if a shard of which chunks were found is of another version by now.
        """
        rows = self._partial.rows(plan)
        if not rows:
            return None
        number, offset = plan.object.tolist(), plan.offset.tolist()
        objects = [object_key(self._array, self._versions.identity, key) for key in plan.keys]
        keys = [(objects[number[row]], offset[row]) for row in rows]
        versions = _Versions(plan.keys, self._versions)
        found, claimed = self._find(keys, [number[row] for row in rows], versions)
        if not claimed and found.count(None) == len(found):  # as of most single elements
            counters.add(n_cache_misses=len(found))
            return None
        chunks = PlanChunks(found={row: chunk for row, chunk in zip(rows, found, strict=True) if chunk}, kept={})
        for i in claimed:
            self._keep(chunks, rows[i], keys[i], versions[number[rows[i]]])
        if chunks.found and self._array.spec.index is not None:
            of_object = {number[row]: row for row in chunks.found}
            self._versions.check_versions([(plan.keys[n], offset[row]) for n, row in of_object.items()])
        n_hits = len(chunks.found)
        hit_nbytes = n_hits * self._array.spec.chunk_nbytes
        counters.add(n_cache_hits=n_hits, n_cache_misses=len(keys) - n_hits, cached_nbytes=hit_nbytes)
        return chunks if chunks.found or chunks.kept else None

    def _find(
        self, keys: Sequence[ChunkKey], number: Sequence[int], versions: _Versions
    ) -> tuple[list[CachedChunk | None], list[int]]:
        """Return the chunks that are there, and the positions of those that are claimed; `number` is of their objects.

        What is there of a version that is no more is dropped: it would keep the next one out.
        """
        while True:
            found, claimed, other = cache.find(keys, self._claim, at_once=self._at_once, may_wait=not self._claimed)
            self._claimed += [keys[i] for i in claimed]
            if other is not None:
                crew.run_without_turn(other.wait)
                continue
            stale = [i for i, chunk in enumerate(found) if chunk is not None and chunk.version != versions[number[i]]]
            if not stale:
                return found, claimed
            for i in stale:
                cache.entries.drop(keys[i])

    def put(self, chunks: PlanChunks, rows: Sequence[int]) -> None:
        """Keep chunks of a plan that have been decoded, unless their objects have been changed meanwhile."""
        for row in rows:
            key, chunk = chunks.kept[row]
            object_key = str(key[0][-1])
            if self._array.spec.index is not None or self._versions.settled_version(object_key) == chunk.version:
                cache.put(key, chunk)

    def forget_claim(self) -> None:
        """Let others claim the chunks, which have been kept if they could be."""
        if self._claimed:
            cache.forget(self._claimed, self._claim)

    def _keep(self, chunks: PlanChunks, row: int, key: ChunkKey, version: Version) -> None:
        """Take memory for a chunk; where it lacks, or the object bears no version, the chunk is not kept."""
        if version is None:
            return
        nbytes = self._array.kept_nbytes
        try:
            memory = host_memory.result_memory.empty((nbytes,), np.dtype(np.uint8))
        except MemoryError:
            cache.clear()
            return
        chunk = CachedChunk(memory=memory, address=address(memory), version=version, nbytes=nbytes + _ENTRY_NBYTES)
        chunks.kept[row] = key, chunk


def object_key(array: HostArray, identity: Hashable, key: str) -> tuple[Hashable, ...]:
    """Return the part of a `ChunkKey` that all chunks of an object share; `identity` is that of its source."""
    return identity, array.spec.metadata, array.kept_form, key


def are_kept_at_once(array: HostArray, target: Target) -> bool:
    """Whether chunks are kept when a part of them is first read: reading all of them takes hardly longer."""
    decodes_most = array.decodes == "all" or (array.decodes == "up to" and reach_most(target))
    return decodes_most and are_much(target, array.spec.grid)


def may_be_kept(array: HostArray, n_chunks: int) -> bool:
    """Whether the cache may keep so many chunks of an array."""
    limit, nbytes = fetch_options().cache_nbytes, array.kept_nbytes
    if cache.entries.nbytes > limit:  # which was lowered
        cache.entries.shrink(limit)
    if array.is_copied or not 0 < nbytes <= limit // 2:
        return False
    return n_chunks <= _MOST_CHUNKS and n_chunks * (nbytes + _ENTRY_NBYTES) <= limit


def cached_read(array: HostArray, target: Target, source: ByteSource) -> CachedRead | None:
    """Return the cache as a read uses it; None if it takes whole chunks only, or too much, or may keep none."""
    versions = source.chunk_versions
    if versions is None or not may_be_kept(array, target.n_chunks):
        return None
    partial = PartialChunks(target, array.spec.grid)
    return None if partial.are_none else CachedRead(array, partial, versions, is_remote=source.is_remote)


def kept_chunks() -> str:
    """Return a sentence about what the cache holds and has been good for; empty if no read has made use of it."""
    counts, entries, limit = counters.snapshot(), cache.entries, fetch_options().cache_nbytes
    n_sought = counts.n_cache_hits + counts.n_cache_misses
    if not n_sought:
        return ""
    held = f"{len(entries)} chunks, {entries.nbytes / _MIB:.3g} of {limit / _MIB:.3g} MiB"
    return f"Kept of chunks that were read in part: {held}; {counts.n_cache_hits} of {n_sought} were found decoded."
