"""The cache of decoded chunks: after a read of a part of a chunk, a read of another part needs no decoding.

A process has one cache, of bounded size. It keeps the elements of chunks as the loops place them, before CF decoding. A
chunk belongs to one version of its object, and is used only if the object is known to have that version, see
`ChunkVersions`. For each plan, `decoder` looks up the chunks (`CachedRead.look_up`), and puts those that it has
decoded.

Threads that need a chunk at the same time decode it once: the first one claims it, and the others wait for the end of
the claim. A read with claims of its own never waits, so reads cannot wait for each other in a circle.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.host_array import HostArray
from xarray_gpuzarr.fetch.source import ByteSource, ChunkVersions, PendingCheck, Version
from xarray_gpuzarr.native.library import address
from xarray_gpuzarr.plan.partial_chunks import PartialChunks, reaches_most, takes_much
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.limited_cache import LimitedCache
from xarray_gpuzarr.process.records import record

Memory = npt.NDArray[np.uint8]
ChunkKey = tuple[tuple[Hashable, ...], int]
"""Source of the object, metadata of the array, form of the elements, and store key; then the offset of the chunk."""

_MIB = 1024**2
_ENTRY_NBYTES = 512
"""Memory in bytes that an entry takes besides the elements."""
_MOST_CHUNKS = 4096
"""Most chunks of a read that uses the cache. Looking up a chunk takes 1 us, decoding one at least 10 us."""
_MOST_SEEN = 16_384
"""Most keys of chunks that were read once and are remembered, in about 5 MB."""
_LOOK_S = 0.5
"""Seconds after which a thread that waits for a chunk checks again whether it is being decoded."""


@record
class CachedChunk:
    """Elements of a chunk, and the version of the object that they were read from."""

    memory: Memory
    address: int
    """Address of `memory`."""
    version: Version
    nbytes: int
    """Memory that the entry takes, in bytes."""


class Claim:
    """A claim of one read to decode chunks. It ends in a single step, which no signal can interrupt."""

    __slots__ = ("_under_way", "end")

    def __init__(self) -> None:
        self._under_way = Lock()
        self._under_way.acquire()
        self.end = self._under_way.release
        """End the claim: other reads decode the chunks that are not in the cache by then."""

    @property
    def has_ended(self) -> bool:
        """Whether the claim has ended, and its chunks are in the cache unless they could not be kept."""
        return not self._under_way.locked()

    def wait(self) -> None:
        """Wait until the claim has ended, or some time has passed."""
        if self._under_way.acquire(timeout=_LOOK_S):
            self._under_way.release()


class ChunkCache:
    """Decoded chunks, and claims of those that are being decoded. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.entries: LimitedCache[ChunkKey, CachedChunk] = LimitedCache()
        self._claims: dict[ChunkKey, Claim] = {}
        self._seen: dict[ChunkKey, None] = {}

    def find(
        self, keys: Sequence[ChunkKey], claim: Claim, *, at_once: bool, may_wait: bool
    ) -> tuple[list[CachedChunk | None], list[int], Claim | None]:
        """Look up chunks, and claim those that are to be kept.

        Parameters
        ----------
        keys : sequence of ChunkKey
            Keys of the chunks.
        claim : Claim
            Claim of the calling read.
        at_once : bool
            Whether chunks are kept when they are first read. If not, a chunk is kept from the second look-up on.
        may_wait : bool
            Whether the calling read can wait for the claim of another read.

        Returns
        -------
        chunks : list of CachedChunk or None
            Cached chunks, of any version, in the order of `keys`.
        claimed : list of int
            Positions of the missing chunks that are now claimed by `claim`.
        other : Claim or None
            The claim of another read to wait for before looking up all chunks again. No chunk is claimed then.
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
        """Return whether none of the chunks was looked up before. If so, remember them: their next read keeps them."""
        with self._lock:
            if any(key in self._seen or key in self._claims for key in keys):
                return False
            self._see(keys)
        return True

    def put(self, key: ChunkKey, chunk: CachedChunk) -> None:
        """Put a chunk into the cache."""
        self.entries.put(key, chunk, fetch_options().cache_nbytes)

    def forget(self, keys: Sequence[ChunkKey], claim: Claim) -> None:
        """Remove a claim that is about to end. The next claim of its chunks replaces one that is left after Ctrl-C."""
        with self._lock:
            for key in keys:
                if self._claims.get(key) is claim:
                    del self._claims[key]

    def clear(self) -> None:
        """Remove all chunks."""
        self.entries.clear()

    def _see(self, keys: Sequence[ChunkKey]) -> None:
        """Remember keys of chunks, and forget those that were seen longest ago."""
        self._seen.update(dict.fromkeys(keys))
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


cache = ChunkCache()


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # in a fork, nobody releases a lock that another thread held
    cache = ChunkCache()


os.register_at_fork(after_in_child=_after_fork)
host_memory.release_functions.append(lambda: cache.clear())  # noqa: PLW0108  # a fork replaces `cache`


@record
class PlanChunks:
    """Chunks of one plan that were found in the cache, and chunks that are to be kept there."""

    found: dict[int, CachedChunk]
    """Cached chunks by row of the plan."""
    kept: dict[int, tuple[ChunkKey, CachedChunk]]
    """Chunks to keep, by row of the plan: each is decoded as a whole into the memory of its `CachedChunk`."""

    def split(self, plan: ReadPlan) -> tuple[tuple[ReadPlan, PlanChunks], tuple[ReadPlan, PlanChunks]]:
        """Return the plan of the cached chunks and the plan of all others, each with its own `PlanChunks`."""
        found = np.array(sorted(self.found), np.int64)
        others = np.delete(np.arange(plan.n_stored), found)
        cached = PlanChunks(found={i: self.found[row] for i, row in enumerate(found.tolist())}, kept={})
        kept = {i: self.kept[row] for i, row in enumerate(others.tolist()) if row in self.kept}
        cached_plan = plan.take(found, plan.missing_piece_numbers[:0])
        other_plan = plan.take(others, plan.missing_piece_numbers)
        return (cached_plan, cached), (other_plan, PlanChunks(found={}, kept=kept))


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

    def __init__(self, array: HostArray, partial: PartialChunks, versions: ChunkVersions, *, is_remote: bool) -> None:
        self._array, self._partial, self._versions = array, partial, versions
        self._claim = Claim()
        self.end_claim = self._claim.end
        """Ends the claim of this read. It is a single call of C, which no signal can interrupt."""
        self._claimed: list[ChunkKey] = []
        """Keys of the chunks that this read has claimed."""
        self._is_remote = is_remote
        self._checks: list[PendingCheck] = []
        """Checks of the versions of shards that have been asked for."""
        self._at_once = is_remote or are_kept_at_once(array, partial.target)
        """Whether chunks are kept when they are first read, because decoding a part of them saves little or nothing."""

    def look_up(self, plan: ReadPlan) -> PlanChunks | None:
        """Look up the chunks of a plan. Return those found and those to be kept; None if there are neither.

        Raises `ObjectChangedError` if the local file of a cached chunk has another version by now. For other stores,
        `check` raises it.
        """
        rows = self._partial.rows(plan)
        if not rows:
            return None
        number, offset = plan.object.tolist(), plan.offset.tolist()
        objects = [object_key(self._array, self._versions.identity, key) for key in plan.keys]
        keys = [(objects[number[row]], offset[row]) for row in rows]
        versions = _Versions(plan.keys, self._versions)
        found, claimed = self._find(keys, [number[row] for row in rows], versions)
        if not claimed and found.count(None) == len(found):  # most reads of single elements end here
            counters.add(n_cache_misses=len(found))
            return None
        chunks = PlanChunks(found={row: chunk for row, chunk in zip(rows, found, strict=True) if chunk}, kept={})
        for i in claimed:
            self._keep(chunks, rows[i], keys[i], versions[number[rows[i]]])
        if chunks.found and self._array.spec.index is not None:
            of_object = {number[row]: row for row in chunks.found}
            check = self._versions.start_check([(plan.keys[n], offset[row]) for n, row in of_object.items()])
            if self._is_remote:  # the requests for all plans are then under way together
                self._checks.append(check)
            else:
                check()
        n_hits = len(chunks.found)
        hit_nbytes = n_hits * self._array.spec.chunk_nbytes
        counters.add(n_cache_hits=n_hits, n_cache_misses=len(keys) - n_hits, cached_nbytes=hit_nbytes)
        return chunks if chunks.found or chunks.kept else None

    def _find(
        self, keys: Sequence[ChunkKey], number: Sequence[int], versions: _Versions
    ) -> tuple[list[CachedChunk | None], list[int]]:
        """Return the cached chunks, in the order of `keys`, and the positions of those that were claimed.

        `number` has the number of each chunk's object. Chunks of an outdated version are removed from the cache, so
        that newer ones can take their places.
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
        """Put decoded chunks of a plan into the cache, unless their objects have changed meanwhile."""
        for row in rows:
            key, chunk = chunks.kept[row]
            object_key = str(key[0][-1])
            if self._array.spec.index is not None or self._versions.settled_version(object_key) == chunk.version:
                cache.put(key, chunk)

    def check(self) -> None:
        """Wait for all checks of remote shards; raise `ObjectChangedError` if one has another version."""
        for check in self._checks:
            check()

    def forget_claim(self) -> None:
        """Remove the claims of this read, after its chunks were put into the cache."""
        if self._claimed:
            cache.forget(self._claimed, self._claim)

    def _keep(self, chunks: PlanChunks, row: int, key: ChunkKey, version: Version) -> None:
        """Allocate memory for a chunk to keep. Without enough memory, or a version of its object, it is not kept."""
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
    """Return the part of a `ChunkKey` that all chunks of an object share. `identity` is that of the source."""
    return identity, array.spec.metadata, array.kept_form, key


def are_kept_at_once(array: HostArray, target: Target) -> bool:
    """Whether chunks are kept when a part of them is first read, because decoding all of them takes hardly longer."""
    decodes_most = array.decodes == "all" or (array.decodes == "up to" and reaches_most(target))
    return decodes_most and takes_much(target, array.spec.grid)


def may_be_kept(array: HostArray, n_chunks: int) -> bool:
    """Whether the cache may keep `n_chunks` chunks of an array."""
    limit, nbytes = fetch_options().cache_nbytes, array.kept_nbytes
    if cache.entries.nbytes > limit:  # the limit was lowered
        cache.entries.shrink(limit)
    if array.is_copied or not 0 < nbytes <= limit // 2:
        return False
    return n_chunks <= _MOST_CHUNKS and n_chunks * (nbytes + _ENTRY_NBYTES) <= limit


def cached_read(array: HostArray, target: Target, source: ByteSource) -> CachedRead | None:
    """Return the cache for one read; None if the read takes whole chunks only, or its chunks may not be kept."""
    versions = source.chunk_versions
    if versions is None or not may_be_kept(array, target.n_chunks):
        return None
    partial = PartialChunks(target, array.spec.grid)
    return None if partial.none_is_partial else CachedRead(array, partial, versions, is_remote=source.is_remote)


def kept_chunks() -> str:
    """Return a sentence about the size of the cache and its hits; an empty string if no read has used it."""
    counts, entries, limit = counters.snapshot(), cache.entries, fetch_options().cache_nbytes
    n_sought = counts.n_cache_hits + counts.n_cache_misses
    if not n_sought:
        return ""
    held = f"{len(entries)} chunks, {entries.nbytes / _MIB:.3g} of {limit / _MIB:.3g} MiB"
    return f"Kept of chunks that were read in part: {held}; {counts.n_cache_hits} of {n_sought} were found decoded."
