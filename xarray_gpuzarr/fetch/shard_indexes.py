"""`ShardIndexes`: the indexes of the shards that one read takes chunks from, and the version of each shard.

An index comes from the cache (`index_cache`), from a request that was made ahead of the read (`ahead`), or from the
store. If the read takes most chunks of a small shard on a server, the whole shard is requested, so that its chunks come
with its index. These shards are kept until their chunks have been taken, and their total size is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.ahead import RequestsAhead
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.fetch.object_names import is_written
from xarray_gpuzarr.fetch.source import UNTAGGED, Edge, ObjectSource, PendingEdge, Request, Version
from xarray_gpuzarr.fetch.version_conflicts import Care
from xarray_gpuzarr.fetch.whole_shard import WholeShard, comes_whole, max_whole_nbytes, uncompressed_shard_nbytes
from xarray_gpuzarr.plan.faults import vanished_shard
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import NO_LIMIT
from xarray_gpuzarr.stored.shard_index import ShardIndex, decode_shard_index


@record
class FetchedIndex:
    """The index of a shard, or the information that there is no such shard."""

    index: ShardIndex | None
    """None if there is no such shard."""
    from_cache: bool = False
    """Whether the index is from the cache. Only requests for chunks will show whether it is out of date."""


PendingIndex = Callable[[], FetchedIndex]
"""Wait for the index of a shard."""

MAX_WHOLE_NBYTES = 128 * 1024 * 1024
"""Largest total of whole shards, in bytes, that are outstanding or whose chunks have not all been taken."""


class ShardIndexes:
    """The shard indexes of one array during one attempt to read it.

    Parameters
    ----------
    source : ObjectSource
        The array's source, as `ObjectSource.for_one_read` returns it.
    spec : ArraySpec
        The array, which is sharded.
    identity : hashable
        What the source reads from; None if it is unknown. Then no index is put into the cache.
    seen_shards : dict of str to bool, optional
        The shards whose index the read has had; see `Snapshot`. The dictionary is updated.
    care : Care
        What is done to get all bytes of a shard from one version.
    use_cache : bool
        Whether cached indexes are used. Indexes from the store are put into the cache in any case.
    ahead : RequestsAhead, optional
        Requests that were made ahead of the read. Their answers are taken.
    """

    def __init__(  # noqa: PLR0913  # a snapshot chooses each of them
        self,
        source: ObjectSource,
        spec: ArraySpec,
        identity: Hashable,
        seen_shards: dict[str, bool] | None,
        *,
        care: Care,
        use_cache: bool,
        ahead: RequestsAhead | None,
    ) -> None:
        assert spec.index is not None
        self._source = source
        self._spec = spec
        self._index_spec = spec.index
        self._identity = identity
        self._seen_shards = {} if seen_shards is None else seen_shards
        self._one_answer = care is Care.ONE_ANSWER
        self._use_cache = use_cache
        self._ahead = ahead
        self.versions: dict[str, Version] = {}
        """By key, the version of each shard from which its index was read."""
        self.settled: set[str] = set()
        """Keys of shards whose index may be cached, since any later change gives them another version."""
        self.changes_are_visible = True
        """Whether each shard whose index came from the store would get another version by any later change."""
        self.whole: dict[str, WholeShard] = {}
        """By key, shards that were requested as a whole, until all their requested chunks have been taken."""
        self._longest_nbytes = 0
        """Length in bytes of the longest whole shard that has arrived; 0 before the first one."""

    def start(self, key: str, n_chunks: int) -> FetchedIndex | PendingIndex:
        """Return the index of a shard from the cache, or start to read it.

        Parameters
        ----------
        key : str
            Key of the shard.
        n_chunks : int
            Number of its chunks that the read will take. If that is at least half of a small shard on a server, the
            whole shard is requested, if there is room for it (`MAX_WHOLE_NBYTES`). With `Care.ONE_ANSWER`, every shard
            is requested as a whole.

        Returns
        -------
        FetchedIndex or callable
            If the index is not in the cache, a function that waits for it. It raises `StoreReadError` if the shard
            cannot be read or has vanished since an earlier attempt, and `ShardIndexError` if the index is damaged.
        """
        request_ahead = None if self._ahead is None else self._ahead.take(key)
        if request_ahead is not None:  # whether there is room or not, since the bytes are under way
            whole = None
            if request_ahead.is_whole:
                self.whole[key] = whole = WholeShard(self._expected_nbytes())
            return partial(self._finish, key, request_ahead.answer, whole)
        cached = index_cache.cache.get((self._identity, key, self._index_spec)) if self._use_cache else None
        if cached is not None:
            self._seen_shards.setdefault(key, False)
            self.versions[key] = cached.version
            self.settled.add(key)
            return FetchedIndex(index=cached.index, from_cache=True)
        if self._should_come_whole(n_chunks) and self._has_room():
            return self._start_whole(key)
        if self._one_answer:  # there is no room for another whole shard: the request starts when its answer is needed
            return lambda: self._start_whole(key)()  # noqa: PLW0108  # the call must not be made yet
        return self._start_edge(key)

    def should_wait(self, n_chunks: int) -> bool:
        """Whether the request for the next index should wait until there is room for another whole shard.

        `n_chunks` is the number of the next shard's chunks that the read will take.
        """
        return self._should_come_whole(n_chunks) and not self._has_room()

    def refetch(self, key: str) -> FetchedIndex:
        """Return the index of a shard as the store has it now, in the place of a cached one that may be out of date.

        A request for a chunk would show that the cached index is out of date. This is for reads that make no such
        request, because the index says that none of the wanted chunks is stored, or that one is impossibly long.
        """
        self._seen_shards.pop(key, None)  # so if the shard is gone, its chunks are the fill value, and no error
        return self._start_edge(key)()

    def expect_chunks(self, plan: ReadPlan) -> None:
        """Record which chunks will be requested, so that a shard that came whole is dropped with the last of them."""
        for number, key in enumerate(plan.keys):
            whole = self.whole.get(key)
            if whole is not None:
                is_in_shard = plan.object == number
                whole.expect(plan.offset[is_in_shard], plan.nbytes[is_in_shard])
                if not whole.remaining_nbytes:  # none of the wanted chunks is stored
                    del self.whole[key]

    def take_chunks(self, whole: WholeShard, requests: Sequence[Request]) -> list[memoryview | None]:
        """Return byte ranges of a shard that came whole, and drop the shard with the last of its chunks."""
        parts: list[memoryview | None] = [whole.take(byte_range) for _, byte_range in requests]
        if whole.remaining_nbytes <= 0:  # bytes that belong to several chunks may be counted more than once
            del self.whole[requests[0][0]]
        return parts

    def _start_edge(self, key: str) -> PendingIndex:
        """Request the bytes of a shard's index."""
        pending = self._source.start_edge(key, self._index_spec.location, self._index_spec.nbytes)
        return partial(self._finish, key, pending)

    def _start_whole(self, key: str) -> PendingIndex:
        """Request a whole shard."""
        self.whole[key] = whole = WholeShard(self._expected_nbytes())
        max_nbytes = NO_LIMIT if self._one_answer else max_whole_nbytes(self._spec, self._index_spec)
        pending = self._source.start_whole(key, max_nbytes)
        return partial(self._finish, key, pending, whole)

    def _should_come_whole(self, n_chunks: int) -> bool:
        """Whether one request for a whole shard is better than one for its index and then some for its chunks."""
        return self._one_answer or (self._source.is_remote and comes_whole(self._spec, n_chunks, self._source.rule))

    def _expected_nbytes(self) -> int:
        """Return the length in bytes that a whole shard is expected to have.

        It is that of the longest so far. Before the first one has arrived, it is the length without compression.
        """
        return self._longest_nbytes or uncompressed_shard_nbytes(self._spec, self._index_spec)

    def _has_room(self) -> bool:
        """Whether another shard may be requested as a whole."""
        held_nbytes = sum(whole.nbytes for whole in self.whole.values())
        return held_nbytes + self._expected_nbytes() <= MAX_WHOLE_NBYTES

    def _finish(self, key: str, pending: PendingEdge, whole: WholeShard | None = None) -> FetchedIndex:
        """Wait for the index of a shard and return it.

        If `whole` is given, `pending` waits for all bytes of the shard, and `whole` gets them. If the shard turns out
        to be too long to be sent as a whole, its index is requested by itself.
        """
        index_spec = self._index_spec
        with counters.stage("index" if whole is None else "fetch"):
            edge = pending()
        self.versions.pop(key, None)  # that of a cached index, which is replaced
        self.settled.discard(key)
        if edge is None:
            self.whole.pop(key, None)
            index_cache.cache.drop((self._identity, key, index_spec))
            if key in self._seen_shards and not self._was_removed_here(key):
                raise vanished_shard(self._spec, key)
            return FetchedIndex(index=None)
        self._seen_shards[key] = True
        encoded = edge.data
        shard_nbytes = edge.object_nbytes
        if self._ahead is not None:
            self._ahead.record_length(max(len(encoded), shard_nbytes or 0))
        if whole is not None:
            if len(encoded) < (shard_nbytes or 0):  # the source has sent the length only
                del self.whole[key]
                return self._start_edge(key)()
            encoded = index_spec.encoded_index(edge.data)
            shard_nbytes = len(edge.data)
        shard_name = f"'{key}' of array '{self._spec.path}'"
        index = decode_shard_index(encoded, index_spec, shard_nbytes=shard_nbytes, shard_name=shard_name)
        self._record_version(key, index, edge)
        if whole is not None:
            self._longest_nbytes = max(self._longest_nbytes, len(edge.data))
            whole.data = edge.data
        counters.add(read_nbytes=len(edge.data))
        return FetchedIndex(index=index)

    def _was_removed_here(self, key: str) -> bool:
        """Whether this process may itself have removed a shard before the read began. Its absence is then no error.

        The read must have had the shard's index from the cache only: an index from the store shows that the shard was
        there during the read.
        """
        return not self._seen_shards[key] and is_written(self._source, self._spec.path, key)

    def _record_version(self, key: str, index: ShardIndex, edge: Edge) -> None:
        """Record the version of a shard, and put its index into the cache if any later change will show."""
        if edge.version is None or not edge.settled:
            self.changes_are_visible = False
        if edge.version is None:
            self.versions[key] = UNTAGGED
            return
        self.versions[key] = edge.version
        # An index with an impossible length may be damaged, so the next read has to read it again.
        is_sound = int(index.nbytes.max(initial=0)) <= self._spec.max_encoded_nbytes
        if edge.settled and is_sound and self._identity is not None:
            self.settled.add(key)
            entry = CachedIndex(index=index, version=edge.version)
            index_cache.cache.put((self._identity, key, self._index_spec), entry, fetch_options().index_cache_nbytes)
