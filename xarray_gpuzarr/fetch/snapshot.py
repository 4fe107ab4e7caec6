"""`Snapshot`: the objects of one array as one read sees them, each in a single version.

All chunks of a shard come from the version from which its index was read. A `Snapshot` returns the index of each shard,
from the cache or the store, and is then the decoder's source of encoded chunks. Index and chunks of a small shard share
a request. A request for chunks fails if the shard was replaced since, and `read` begins again with a new `Snapshot`. If
the versions of a store's answers differ, or a shard is replaced again and again, requests are repeated until the
version is that of the index, or each shard is requested as a whole (`version_conflicts`). A `Snapshot` decodes nothing
but indexes, and plans nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from xarray_gpuzarr.fetch import ahead, index_cache
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.fetch.object_names import is_written
from xarray_gpuzarr.fetch.object_pieces import ObjectPieces
from xarray_gpuzarr.fetch.source import (
    UNTAGGED,
    Allocate,
    ChunkVersions,
    Edge,
    FetchedBytes,
    LocalFile,
    ObjectSource,
    Pending,
    PendingCheck,
    PendingEdge,
    Request,
    Storage,
    Version,
)
from xarray_gpuzarr.fetch.store_errors import ObjectTooLongError, changed_error
from xarray_gpuzarr.fetch.strict import StrictSource, missing_keys_error
from xarray_gpuzarr.fetch.version_conflicts import Care
from xarray_gpuzarr.fetch.whole_objects import WholeObjects
from xarray_gpuzarr.fetch.whole_shard import WholeShard, comes_whole, max_whole_nbytes, uncompressed_shard_nbytes
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.faults import corrupt_chunk_at, too_long_text, vanished_shard
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import NO_LIMIT
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec, decode_shard_index


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


_WHOLE = ByteRange(offset=0, nbytes=WHOLE_OBJECT)


class Snapshot:
    """The objects of one array during one attempt to read it. A `ByteSource`.

    It takes requests that were made ahead of the read (`ahead`), unless an earlier attempt has met a changed object.

    Parameters
    ----------
    source : ObjectSource
        The array's source.
    spec : ArraySpec
        The array.
    care : Care
        What is done to get all bytes of a shard from one version.
    use_cache : bool
        Whether cached indexes and cached decoded chunks are used. False after a cached index was out of date.
    cuts_objects : bool
        Whether long chunks may be requested in pieces. False after pieces were of several versions.
    seen_shards : dict of str to bool, optional
        The shards whose index this read has had, in any attempt: by key, True if the index came from the store, and
        False if it came from the cache only. The dictionary is updated.
    short_requests : bool
        Whether no request is longer than a chunk or ``rule.max_nbytes``, whichever is larger. Then more requests may be
        outstanding at once.
    """

    def __init__(  # noqa: PLR0913  # an attempt chooses each of them
        self,
        source: ObjectSource,
        spec: ArraySpec,
        *,
        care: Care = Care.USUAL,
        use_cache: bool = True,
        cuts_objects: bool = True,
        seen_shards: dict[str, bool] | None = None,
        short_requests: bool = False,
    ) -> None:
        request_lengths: dict[str, int] = {}
        if spec.index is None:
            request_lengths = {"expected_nbytes": spec.expected_nbytes, "most_nbytes": spec.max_encoded_nbytes}
        elif short_requests and source.is_remote and not comes_whole(spec, spec.index.n_chunks, source.rule):
            # If shards were so short that this read may request some as a whole, these requests would be longer.
            request_lengths = {"expected_nbytes": max(source.rule.max_nbytes, spec.expected_nbytes)}
        self._source = source.for_one_read(ask_again=care is not Care.USUAL, **request_lengths)
        self.identity = source.identity
        """What the source reads from; None if it is unknown."""
        self._spec = spec
        self._one_answer = care is Care.ONE_ANSWER
        # With one answer for index and chunks, neither is taken from elsewhere.
        self._use_cache = use_cache and not self._one_answer
        self._ahead = ahead.requests_for(source) if self._use_cache and care is Care.USUAL else None
        self.lookahead = self._source.lookahead
        self.prefetch = self._source.prefetch
        self.is_remote = source.is_remote
        # More care means that answers have several versions, so pieces would differ.
        self.cuts_objects = cuts_objects and source.cuts_objects and care is Care.USUAL
        # A decoder that reads files itself, or with GPUDirect Storage, reads a shard in several parts.
        self.is_local = source.is_local and not self._one_answer
        self.storage: Storage = "posix" if self._one_answer else source.storage
        self.cached_nbytes = 0
        """Decoded bytes of the chunks that the decoder has found in its cache of decoded chunks."""
        self._pieces = ObjectPieces(self._source)
        self._seen_shards = {} if seen_shards is None else seen_shards
        self._versions: dict[str, Version] = {}
        """By key, the version of each shard from which its index was read."""
        self._settled: set[str] = set()
        """Keys of shards whose index may be cached, since any later change gives them another version."""
        self._whole: dict[str, WholeShard] = {}
        """By key, shards that were requested as a whole, until all their requested chunks have been taken."""
        self._longest_nbytes = 0
        """Length in bytes of the longest whole shard that has arrived; 0 before the first one."""

    @property
    def chunk_versions(self) -> ChunkVersions | None:
        """The snapshot itself, if decoded chunks may be cached; else None."""
        return self if self._use_cache and self.identity is not None else None

    @property
    def rule(self) -> CoalesceRule:
        """Rule of the source that decides which neighbouring chunks share a request."""
        return self._source.rule

    def local_file(self, key: str) -> LocalFile:
        """Return the path of a local file, and the version from which its index was read."""
        return self._source.local_file(key, self._versions.get(key))

    def start(self, requests: Sequence[Request]) -> Pending:
        """Start reading byte ranges of a shard, whole unsharded chunks, or one piece of one; see `ByteSource.start`.

        The bytes of a shard are of the version from which its index was read. The pieces of an unsharded chunk are of
        the version of the first that arrives.
        """
        key = requests[0][0]
        if self._spec.index is None and requests[0][1] != _WHOLE:
            return self._pieces.start(*requests[0])
        if self._spec.index is None and self._ahead is not None:
            return self._counted(WholeObjects(self._ahead, requests, self._source))
        whole = self._whole.get(key)
        if whole is not None:  # the shard came with its index, and is dropped with the last of its chunks
            parts: list[memoryview | None] = [whole.take(byte_range) for _, byte_range in requests]
            if whole.remaining_nbytes <= 0:  # bytes that belong to several chunks may be counted more than once
                del self._whole[key]
            return FetchedBytes(parts)
        return self._counted(self._source.start(requests, self._versions.get(key)))

    def _counted(self, pending: Pending) -> Pending:
        """Return `pending` with its time and bytes counted.

        It raises `CorruptChunkError` if the object of an unsharded chunk is too long.
        """

        def finish(allocate: Allocate) -> list[memoryview | None]:
            with counters.stage("fetch"):
                try:
                    parts = pending(allocate)
                except ObjectTooLongError as err:
                    spec = self._spec
                    chunk = spec.keys.coord(err.key, spec.grid.ndim)
                    raise corrupt_chunk_at(spec, chunk, f"'{err.key}', whole", too_long_text(spec, err.nbytes)) from err
            counters.add(read_nbytes=sum([len(data) for data in parts if data is not None]))
            return parts

        return finish

    def start_index(self, key: str, n_chunks: int) -> FetchedIndex | PendingIndex:
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
        assert self._spec.index is not None
        index_spec = self._spec.index
        request_ahead = None if self._ahead is None else self._ahead.take(key)
        if request_ahead is not None:  # whether there is room or not, since the bytes are under way
            whole = None
            if request_ahead.is_whole:
                self._whole[key] = whole = WholeShard(self._expected_nbytes(index_spec))
            return partial(self._finish_index, key, index_spec, request_ahead.answer, whole)
        cached = index_cache.cache.get((self.identity, key, index_spec)) if self._use_cache else None
        if cached is not None:
            self._seen_shards.setdefault(key, False)
            self._versions[key] = cached.version
            self._settled.add(key)
            return FetchedIndex(index=cached.index, from_cache=True)
        if self._should_come_whole(n_chunks) and self._has_room(index_spec):
            return self._start_whole(key, index_spec)
        if self._one_answer:  # there is no room for another whole shard: the request starts when its answer is needed
            return lambda: self._start_whole(key, index_spec)()  # noqa: PLW0108  # the call must not be made yet
        return self._start_edge(key, index_spec)

    def expect_chunks(self, plan: ReadPlan) -> None:
        """Record which chunks will be requested, so that a shard that came whole is dropped with the last of them."""
        if not self._whole:
            return
        for number, key in enumerate(plan.keys):
            whole = self._whole.get(key)
            if whole is not None:
                rows = plan.object == number
                whole.expect(plan.offset[rows], plan.nbytes[rows])
                if not whole.remaining_nbytes:
                    del self._whole[key]

    def settled_version(self, key: str) -> Version:
        """Return the version of an object whose decoded chunks may be cached; see `ChunkVersions`."""
        if self._spec.index is None:
            return self._source.settled_version(key)
        return self._versions[key] if key in self._settled else None

    def start_check(self, places: Sequence[tuple[str, int]]) -> PendingCheck:
        """Start requests for the current versions of shards; see `ChunkVersions.start_check`.

        A local file that has that version needs no request. From any other shard, one byte is requested.
        """
        requests = []
        for key, offset in places:
            version = self._versions[key]
            if self._source.settled_version(key) == version:  # only local files tell it without a request
                continue
            requests.append((key, version, self._source.start([(key, ByteRange(offset, 1))], version)))
        return partial(self._end_check, requests)

    def _end_check(self, requests: Sequence[tuple[str, Version, Pending]]) -> None:
        """Wait for the requests of `start_check`. The first answer of another version raises `ObjectChangedError`."""
        for key, version, pending in requests:
            (data,) = pending(lambda nbytes: memoryview(bytearray(nbytes)))
            if data is None:
                raise changed_error(f"{self._source.name}/{key}", version, None, key)

    def should_wait(self, n_chunks: int) -> bool:
        """Whether the request for the next index should wait until there is room for another whole shard.

        `n_chunks` is the number of the next shard's chunks that the read will take.
        """
        index_spec = self._spec.index
        return index_spec is not None and self._should_come_whole(n_chunks) and not self._has_room(index_spec)

    def check_all_there(self) -> None:
        """Raise `MissingChunkError` if objects were missing, and the array is opened so that this is an error."""
        if isinstance(self._source, StrictSource) and self._source.missing:
            raise missing_keys_error(self._spec.path, self._source.missing)

    def give_up(self) -> None:
        """Cancel requests that have not been answered. Threads that wait for one get an error."""
        self._source.give_up()

    def end(self) -> None:
        """Cancel requests that have not been answered, and drop shards that came whole."""
        self._source.give_up()
        self._whole.clear()

    def refetch_index(self, key: str) -> FetchedIndex:
        """Return the index of a shard as the store has it now, in the place of a cached one that may be out of date.

        It is called where no request for chunks would show that the cached one is out of date.
        """
        assert self._spec.index is not None
        self._seen_shards.pop(key, None)  # so if the shard is gone, its chunks are the fill value, and no error
        return self._start_edge(key, self._spec.index)()

    def _start_edge(self, key: str, index_spec: ShardIndexSpec) -> PendingIndex:
        """Request the bytes of a shard's index."""
        pending = self._source.start_edge(key, index_spec.location, index_spec.nbytes)
        return partial(self._finish_index, key, index_spec, pending)

    def _start_whole(self, key: str, index_spec: ShardIndexSpec) -> PendingIndex:
        """Request a whole shard."""
        self._whole[key] = whole = WholeShard(self._expected_nbytes(index_spec))
        max_nbytes = NO_LIMIT if self._one_answer else max_whole_nbytes(self._spec, index_spec)
        pending = self._source.start_whole(key, max_nbytes)
        return partial(self._finish_index, key, index_spec, pending, whole)

    def _should_come_whole(self, n_chunks: int) -> bool:
        """Whether one request for a whole shard is better than one for its index and then some for its chunks."""
        return self._one_answer or (self.is_remote and comes_whole(self._spec, n_chunks, self.rule))

    def _expected_nbytes(self, index_spec: ShardIndexSpec) -> int:
        """Return the length in bytes that a whole shard is expected to have.

        It is that of the longest so far. Before the first one has arrived, it is the length without compression.
        """
        return self._longest_nbytes or uncompressed_shard_nbytes(self._spec, index_spec)

    def _has_room(self, index_spec: ShardIndexSpec) -> bool:
        """Whether another shard may be requested as a whole."""
        held_nbytes = sum(whole.nbytes for whole in self._whole.values())
        return held_nbytes + self._expected_nbytes(index_spec) <= MAX_WHOLE_NBYTES

    def _finish_index(
        self, key: str, index_spec: ShardIndexSpec, pending: PendingEdge, whole: WholeShard | None = None
    ) -> FetchedIndex:
        """Wait for the index of a shard and return it.

        If `whole` is given, `pending` waits for all bytes of the shard, and `whole` gets them. If the shard turns out
        to be too long to be sent as a whole, its index is requested by itself.
        """
        with counters.stage("index" if whole is None else "fetch"):
            edge = pending()
        self._versions.pop(key, None)
        self._settled.discard(key)
        if edge is None:
            self._whole.pop(key, None)
            index_cache.cache.drop((self.identity, key, index_spec))
            if key in self._seen_shards and not self._may_be_gone(key):
                raise vanished_shard(self._spec, key)
            return FetchedIndex(index=None)
        self._seen_shards[key] = True
        encoded = edge.data
        shard_nbytes = edge.object_nbytes
        if self._ahead is not None:
            self._ahead.record_length(max(len(encoded), shard_nbytes or 0))
        if whole is not None:
            if len(encoded) < (shard_nbytes or 0):  # the source has sent the length only
                del self._whole[key]
                return self._start_edge(key, index_spec)()
            encoded = index_spec.encoded_index(edge.data)
            shard_nbytes = len(edge.data)
        shard_name = f"'{key}' of array '{self._spec.path}'"
        index = decode_shard_index(encoded, index_spec, shard_nbytes=shard_nbytes, shard_name=shard_name)
        self._record_version(key, index_spec, index, edge)
        if whole is not None:
            self._longest_nbytes = max(self._longest_nbytes, len(edge.data))
            whole.data = edge.data
        counters.add(read_nbytes=len(edge.data))
        return FetchedIndex(index=index)

    def _may_be_gone(self, key: str) -> bool:
        """Whether this process may itself have removed a shard whose index this read has had from the cache only."""
        return not self._seen_shards[key] and is_written(self._source, self._spec.path, key)

    def _record_version(self, key: str, index_spec: ShardIndexSpec, index: ShardIndex, edge: Edge) -> None:
        """Record the version of a shard, and put its index into the cache if any later change will show."""
        if edge.version is None or not edge.settled:
            self.cuts_objects = False  # two pieces of a chunk might be of two versions
        if edge.version is None:
            self._versions[key] = UNTAGGED
            return
        self._versions[key] = edge.version
        # An index with an impossible length may be damaged, so the next read has to read it again.
        is_sound = int(index.nbytes.max(initial=0)) <= self._spec.max_encoded_nbytes
        if edge.settled and is_sound and self.identity is not None:
            self._settled.add(key)
            entry = CachedIndex(index=index, version=edge.version)
            index_cache.cache.put((self.identity, key, index_spec), entry, fetch_options().index_cache_nbytes)
