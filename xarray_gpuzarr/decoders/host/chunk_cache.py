"""The cache of decoded chunks: after a read of a part of a chunk, a read of another part needs no decoding.

A process has one cache, of bounded size. It keeps chunks before CF decoding, in one of two forms: as the compiled loops
have them when they begin to place elements, or, without the loops, simply decoded. A chunk belongs to one version of
its object, and is used only if the object is known to have that version, see `ChunkVersions`. The module `cached_read`
uses the cache for a single read.

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
from xarray_gpuzarr.fetch.source import Version
from xarray_gpuzarr.plan.partial_chunks import reaches_most, takes_much
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.limited_cache import LimitedCache
from xarray_gpuzarr.process.records import record

Memory = npt.NDArray[np.uint8]
ChunkKey = tuple[tuple[Hashable, ...], int]
"""Source of the object, metadata of the array, form of the elements, and store key; then the offset of the chunk."""

_MIB = 1024**2
ENTRY_NBYTES = 512
"""Memory in bytes that an entry takes besides the elements."""
_MOST_CHUNKS = 4096
"""Largest number of chunks of a read that uses the cache. Looking up a chunk takes 1 us, decoding one at least 10
us."""
_MOST_SEEN = 16_384
"""Largest number of remembered keys of chunks that were read once. They take about 5 MB."""
_RECHECK_INTERVAL_S = 0.5
"""Seconds after which a thread that waits for the end of a claim looks its chunks up again. They may be in the cache by
then, since a claim ends with the whole read."""


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
        """Ends the claim. From then on, other reads may decode those of its chunks that are not in the cache."""

    @property
    def has_ended(self) -> bool:
        """Whether the claim has ended. Its chunks are in the cache by then, unless they could not be kept."""
        return not self._under_way.locked()

    def wait(self) -> None:
        """Wait until the claim has ended, or some time has passed."""
        if self._under_way.acquire(timeout=_RECHECK_INTERVAL_S):
            self._under_way.release()


class ChunkCache:
    """Decoded chunks, and claims of those that are being decoded. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.entries: LimitedCache[ChunkKey, CachedChunk] = LimitedCache()
        self._claims: dict[ChunkKey, Claim] = {}
        self._seen: dict[ChunkKey, None] = {}
        """Keys of chunks that were looked up before by reads that do not keep chunks at once, the oldest first."""

    def find(
        self, keys: Sequence[ChunkKey], claim: Claim, *, keeps_at_once: bool, may_wait: bool
    ) -> tuple[list[CachedChunk | None], list[int], Claim | None]:
        """Look up chunks, and claim those that are to be kept.

        Parameters
        ----------
        keys : sequence of ChunkKey
            Keys of the chunks.
        claim : Claim
            Claim of the calling read.
        keeps_at_once : bool
            Whether chunks are kept when they are first read. If not, a chunk is kept from the second look-up on.
        may_wait : bool
            Whether the calling read can wait for the claim of another read. If not, both decode the chunk, and only the
            other one keeps it.

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
            under_way: dict[int, Claim] = {}  # claims of other reads, by the positions of the chunks
            if self._claims:
                claims = {i: self._claims[keys[i]] for i in missing if keys[i] in self._claims}
                under_way = {i: other for i, other in claims.items() if other is not claim and not other.has_ended}
            if under_way and may_wait:
                return chunks, [], next(iter(under_way.values()))
            seen = self._seen
            claimed = [i for i in missing if i not in under_way and (keeps_at_once or keys[i] in seen)]
            self._claims.update({keys[i]: claim for i in claimed})
            if not keeps_at_once:
                self._remember([keys[i] for i in missing])
        return chunks, claimed, None

    def remember_new(self, keys: Sequence[ChunkKey]) -> bool:
        """Return whether none of the chunks was looked up before. If so, remember them: the next read may keep them."""
        with self._lock:
            if any(key in self._seen or key in self._claims for key in keys):
                return False
            self._remember(keys)
        return True

    def put(self, key: ChunkKey, chunk: CachedChunk) -> None:
        """Put a chunk into the cache."""
        self.entries.put(key, chunk, fetch_options().cache_nbytes)

    def forget(self, keys: Sequence[ChunkKey], claim: Claim) -> None:
        """Remove a claim that is about to end.

        If Ctrl-C prevents this, the claim stays until another read claims the same chunks. No read waits for it, since
        it has ended.
        """
        with self._lock:
            for key in keys:
                if self._claims.get(key) is claim:
                    del self._claims[key]

    def clear(self) -> None:
        """Remove all chunks."""
        self.entries.clear()

    def _remember(self, keys: Sequence[ChunkKey]) -> None:
        """Remember keys of chunks, and forget the oldest if there are too many. The caller holds the lock."""
        self._seen.update(dict.fromkeys(keys))
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]


cache = ChunkCache()


def _after_fork() -> None:
    global cache  # noqa: PLW0603  # in a fork, nobody releases a lock that another thread held
    cache = ChunkCache()


os.register_at_fork(after_in_child=_after_fork)
host_memory.release_functions.append(lambda: cache.clear())  # noqa: PLW0108  # a fork replaces `cache`


def object_key(array: HostArray, identity: Hashable, key: str) -> tuple[Hashable, ...]:
    """Return the part of a `ChunkKey` that all chunks of an object share.

    `identity` is that of the source, and `key` the store key of the object.
    """
    return identity, array.spec.metadata, array.kept_form, key


def store_key_of(key: ChunkKey) -> str:
    """Return the store key of the object that a chunk lies in."""
    key_of_object, _offset = key
    return str(key_of_object[-1])  # see `object_key`


def are_kept_at_once(array: HostArray, target: Target) -> bool:
    """Whether chunks are kept when a part of them is first read, not only after a second read.

    For this, decoding all of a chunk must take hardly longer than decoding the part, and the read must take much of
    each chunk, such as a plane.
    """
    decodes_most = array.partial_decoding == "all" or (array.partial_decoding == "up to" and reaches_most(target))
    return decodes_most and takes_much(target, array.spec.grid)


def may_be_kept(array: HostArray, n_chunks: int) -> bool:
    """Whether the cache may keep `n_chunks` chunks of an array. Shrinks the cache if its limit was lowered."""
    limit = fetch_options().cache_nbytes
    nbytes = array.kept_nbytes
    if cache.entries.nbytes > limit:
        cache.entries.shrink(limit)
    # Raw chunks are not kept, since the page cache of the system has them already. A chunk that is longer than half of
    # the limit would displace most others.
    if array.is_copied or not 0 < nbytes <= limit // 2:
        return False
    return n_chunks <= _MOST_CHUNKS and n_chunks * (nbytes + ENTRY_NBYTES) <= limit


def are_unfit(array: HostArray, n_chunks: int) -> bool:
    """Whether the cache is too small for `n_chunks` chunks of an array, and would keep them if it were larger."""
    limit = fetch_options().cache_nbytes
    nbytes = array.kept_nbytes
    if array.is_copied or not nbytes or not limit or n_chunks > _MOST_CHUNKS:
        return False
    return nbytes > limit // 2 or n_chunks * (nbytes + ENTRY_NBYTES) > limit


def describe_cache() -> str:
    """Return a sentence about the size of the cache and its hits; an empty string if no read has used it."""
    counts = counters.snapshot()
    entries = cache.entries
    limit = fetch_options().cache_nbytes
    n_sought = counts.n_cache_hits + counts.n_cache_misses
    if not n_sought:
        return ""
    held = f"{len(entries)} chunks, {entries.nbytes / _MIB:.3g} of {limit / _MIB:.3g} MiB"
    text = f"Cache of decoded chunks: {held}; {counts.n_cache_hits} of {n_sought} chunks were found in it."
    if counts.n_cache_unfit:
        text += f" {counts.n_cache_unfit} chunks were too much for it: raise cache_nbytes."
    return text
