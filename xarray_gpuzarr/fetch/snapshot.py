"""One read's view of its shards: every chunk comes from the version of its shard that the index was read from.

`Snapshot` is asked for the index of each shard, which it finds in the cache or in the store, and is then the source of
chunks that a decoder is given. It asks for index and chunks of a small shard at once, and lets requests for chunks fail
if the shard was replaced since: `read` then takes another snapshot. It decodes nothing but indexes, and plans nothing.

Where tags differ from answer to answer, or a shard is replaced again and again (`mirrors`), requests are repeated until
the tag is that of the index, or each shard is asked for as a whole: one answer is of one version.
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
    AtHand,
    ChunkVersions,
    Edge,
    LocalFile,
    ObjectSource,
    ObjectTooLongError,
    Pending,
    PendingEdge,
    Request,
    Storage,
    Version,
    changed,
)
from xarray_gpuzarr.fetch.strict import StrictSource, missing_keys
from xarray_gpuzarr.fetch.version_conflicts import Care
from xarray_gpuzarr.fetch.whole_objects import WholeObjects
from xarray_gpuzarr.fetch.whole_shard import WholeShard
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.faults import corrupt_chunk_at, too_long, vanished_shard
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import NO_LIMIT
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec, decode_shard_index


@record
class FoundIndex:
    """What was found out about a shard."""

    index: ShardIndex | None
    """None if there is no such shard."""
    from_cache: bool = False
    """Whether only requests for chunks will show that the shard was replaced since."""


PendingIndex = Callable[[], FoundIndex]
"""Wait for the index of a shard."""

PARTS_AT_ONCE = 4
"""A shard that would take so many requests comes in one: that saves a round trip, and what each request costs."""
WHOLE_NBYTES = 128 * 1024 * 1024
"""Most bytes of whole shards that are under way, or wait for their chunks to be asked for."""


_WHOLE = ByteRange(offset=0, nbytes=WHOLE_OBJECT)


def longest_shard(spec: ArraySpec, index: ShardIndexSpec) -> int:
    """Return the bytes of a shard that nothing could be compressed of."""
    return index.n_chunks * spec.chunk_nbytes + index.nbytes


def comes_whole(spec: ArraySpec, n_wanted: int, rule: CoalesceRule) -> bool:
    """Say whether a shard behind a network comes in one request, if a read wants `n_wanted` of its chunks."""
    index = spec.index
    assert index is not None
    return 2 * n_wanted >= index.n_chunks and longest_shard(spec, index) <= PARTS_AT_ONCE * rule.max_raw_nbytes


class Snapshot:
    """The objects of one array during one read: a `ByteSource`.

    `care` says what is done to have all bytes of a shard from one version. `use_cache` is False after a read has shown
    that a cached index is out of date, and `cuts_objects` after pieces of an object did not fit each other.
    `seen_shards` has the keys of shards whose index the read has seen, in any of its attempts, and whether it has read
    the index itself. What was asked for ahead of this read (`ahead`) is taken by its first attempt. With `cuts_short`,
    no request is longer than `rule.max_nbytes` and a chunk, so that more of them may be under way.
    """

    def __init__(  # noqa: PLR0913  # each is a choice of one attempt
        self,
        source: ObjectSource,
        spec: ArraySpec,
        *,
        care: Care = Care.USUAL,
        use_cache: bool = True,
        cuts_objects: bool = True,
        seen_shards: dict[str, bool] | None = None,
        cuts_short: bool = False,
    ) -> None:
        bounds: dict[str, int] = {}
        if spec.index is None:
            bounds = {"expected_nbytes": spec.expected_nbytes, "most_nbytes": spec.most_nbytes}
        elif cuts_short and source.is_remote and not comes_whole(spec, spec.index.n_chunks, source.rule):
            bounds = {"expected_nbytes": max(source.rule.max_nbytes, spec.expected_nbytes)}
        self._source = source.for_one_read(ask_again=bool(care), **bounds)
        self.identity = source.identity
        """What the source reads from; None if that cannot be told."""
        self._spec = spec
        self._one_answer = care is Care.ONE_ANSWER
        self._use_cache = use_cache and not self._one_answer
        self._ahead = ahead.objects_for(source) if self._use_cache and care is Care.USUAL else None
        self.lookahead, self.prefetch = self._source.lookahead, self._source.prefetch
        self.is_remote = source.is_remote
        self.cuts_objects = cuts_objects and source.cuts_objects and care is Care.USUAL
        self.is_local = source.is_local and not self._one_answer  # files are not read past what came in one answer
        self.storage: Storage = "posix" if self._one_answer else source.storage
        self._pieces = ObjectPieces(self._source)
        self._seen_shards = {} if seen_shards is None else seen_shards
        self._versions: dict[str, Version] = {}
        self._settled: set[str] = set()
        """Keys of shards whose index is in the cache, or might be."""
        self._whole: dict[str, WholeShard] = {}
        self._longest_seen = 0

    @property
    def chunk_versions(self) -> ChunkVersions | None:
        """Itself, if chunks that were decoded before are of use."""
        return self if self._use_cache and self.identity is not None else None

    @property
    def rule(self) -> CoalesceRule:
        """That of the store."""
        return self._source.rule

    def local_file(self, key: str) -> LocalFile:
        """Return where a local file lies, and of which version it must be: that which its index was read from."""
        return self._source.local_file(key, self._versions.get(key))

    def start(self, requests: Sequence[Request]) -> Pending:
        """Start reading byte ranges of the version of a shard that its index was read from, objects, or a piece of one.

        All pieces of an object are of one version: that of the first one that arrives.
        """
        key = requests[0][0]
        if self._spec.index is None and requests[0][1] != _WHOLE:
            return self._pieces.start(*requests[0])
        if self._spec.index is None and self._ahead is not None:
            return self._counted(WholeObjects(self._ahead, requests, self._source))
        whole = self._whole.get(key)
        if whole is not None:  # it came with its index, and is let go of with the last of its chunks
            taken: list[memoryview | None] = [whole.take(byte_range) for _, byte_range in requests]
            if whole.left_nbytes <= 0:
                del self._whole[key]
            return AtHand(taken)
        return self._counted(self._source.start(requests, self._versions.get(key)))

    def _counted(self, pending: Pending) -> Pending:
        """Return a `Pending` that counts seconds and bytes, and says which chunk is too long."""

        def finish(allocate: Allocate) -> list[memoryview | None]:
            with counters.stage("fetch"):
                try:
                    parts = pending(allocate)
                except ObjectTooLongError as err:
                    spec = self._spec
                    chunk = spec.keys.coord(err.key, spec.grid.ndim)
                    raise corrupt_chunk_at(spec, chunk, f"'{err.key}', whole", too_long(spec, err.nbytes)) from err
            counters.add(read_nbytes=sum([len(data) for data in parts if data is not None]))
            return parts

        return finish

    def start_index(self, key: str, n_wanted: int) -> FoundIndex | PendingIndex:
        """Return the index of a shard from the cache, or ask for it.

        If most chunks of a small shard will be asked for (`n_wanted`), the whole shard comes in one request. The
        callable that is returned raises StoreReadError or ShardIndexError if the shard cannot be read.
        """
        assert self._spec.index is not None
        spec = self._spec.index
        asked = None if self._ahead is None else self._ahead.take(key)
        if asked is not None:
            whole = None
            if asked.is_whole:
                self._whole[key] = whole = WholeShard(self._expected(spec))
            return partial(self._arrived, key, spec, asked.answer, whole)
        known = index_cache.cache.get((self.identity, key, spec)) if self._use_cache else None
        if known is not None:
            self._seen_shards.setdefault(key, False)
            self._versions[key] = known.version
            self._settled.add(key)
            return FoundIndex(index=known.index, from_cache=True)
        if self._suits_one_request(n_wanted) and self._has_room(spec):
            return self._start_whole(key, spec)
        if self._one_answer:  # too long to be under way beside others
            return lambda: self._start_whole(key, spec)()  # noqa: PLW0108  # nor begin before it is waited for
        return self._ask(key, spec)

    def will_ask(self, plan: ReadPlan) -> None:
        """Hear which chunks will be asked for: a shard that came whole is let go of with the last of its own."""
        for number, key in enumerate(plan.keys if self._whole else ()):
            whole = self._whole.get(key)
            if whole is not None:
                rows = plan.object == number
                whole.wait_for(plan.offset[rows], plan.nbytes[rows])
                if not whole.left_nbytes:
                    del self._whole[key]

    def settled_version(self, key: str) -> Version:
        """Return the version of an object of which decoded chunks may be kept; see `ChunkVersions`."""
        if self._spec.index is None:
            return self._source.settled_version(key)
        return self._versions[key] if key in self._settled else None

    def check_versions(self, places: Sequence[tuple[str, int]]) -> None:
        """Raise `ObjectChangedError` unless shards are of the versions that their indexes were read from.

        Files are asked for their times; other stores for a byte of each shard, all at once.
        """
        asked = []
        for key, offset in places:
            version = self._versions[key]
            if self._source.settled_version(key) == version:
                continue
            asked.append((key, version, self._source.start([(key, ByteRange(offset, 1))], version)))
        for key, version, pending in asked:
            (data,) = pending(lambda nbytes: memoryview(bytearray(nbytes)))
            if data is None:
                raise changed(f"{self._source.name}/{key}", version, None, key)

    def should_wait(self, n_wanted: int) -> bool:
        """Say whether an index had better be asked for once chunks of earlier shards have been."""
        spec = self._spec.index
        return spec is not None and self._suits_one_request(n_wanted) and not self._has_room(spec)

    def check_all_there(self) -> None:
        """Raise `MissingChunkError` if objects were not there, and the array's settings do not allow that."""
        if isinstance(self._source, StrictSource) and self._source.missing:
            raise missing_keys(self._spec.path, self._source.missing)

    def give_up(self) -> None:
        """Give up requests that have not been answered; whoever waits for one hears of it."""
        self._source.give_up()

    def end(self) -> None:
        """Give up what nobody waited for, and let go of shards that came whole."""
        self._source.give_up()
        self._whole.clear()

    def ask_again(self, key: str) -> FoundIndex:
        """Return the index of a shard as the store has it now: the one in the cache has none of the wanted chunks.

        These take the fill value whether the shard is still there or not.
        """
        assert self._spec.index is not None
        self._seen_shards.pop(key, None)
        return self._ask(key, self._spec.index)()

    def _ask(self, key: str, spec: ShardIndexSpec) -> PendingIndex:
        asked = self._source.start_edge(key, spec.location, spec.nbytes)
        return partial(self._arrived, key, spec, asked)

    def _start_whole(self, key: str, spec: ShardIndexSpec) -> PendingIndex:
        self._whole[key] = whole = WholeShard(self._expected(spec))
        most = NO_LIMIT if self._one_answer else spec.n_chunks * self._spec.expected_nbytes + spec.nbytes
        asked = self._source.start_whole(key, most)
        return partial(self._arrived, key, spec, asked, whole)

    def _suits_one_request(self, n_wanted: int) -> bool:
        """Say whether one request for a shard beats one for its index and then some for chunks, or must do."""
        return self._one_answer or (self.is_remote and comes_whole(self._spec, n_wanted, self.rule))

    def _expected(self, spec: ShardIndexSpec) -> int:
        """Return the bytes that a shard is expected to have."""
        return self._longest_seen or longest_shard(self._spec, spec)

    def _has_room(self, spec: ShardIndexSpec) -> bool:
        return sum(whole.nbytes for whole in self._whole.values()) + self._expected(spec) <= WHOLE_NBYTES

    def _arrived(
        self, key: str, spec: ShardIndexSpec, asked: PendingEdge, whole: WholeShard | None = None
    ) -> FoundIndex:
        edge = asked()
        self._versions.pop(key, None)
        self._settled.discard(key)
        if edge is None:
            self._whole.pop(key, None)
            index_cache.cache.drop((self.identity, key, spec))
            if key in self._seen_shards and not self._may_be_gone(key):
                raise vanished_shard(self._spec, key)
            return FoundIndex(index=None)
        self._seen_shards[key] = True
        encoded, shard_nbytes = edge.data, edge.object_nbytes
        if self._ahead is not None:
            self._ahead.see(max(len(encoded), shard_nbytes or 0))
        if whole is not None and len(encoded) < (shard_nbytes or 0):  # longer than its chunks should be, with gaps
            del self._whole[key]
            return self._ask(key, spec)()
        if whole is not None:
            encoded, shard_nbytes = spec.encoded_index(edge.data), len(edge.data)
        where = f"'{key}' of array '{self._spec.path}'"
        index = decode_shard_index(encoded, spec, shard_nbytes=shard_nbytes, shard_name=where)
        self._keep(key, spec, index, edge)
        if whole is not None:
            self._longest_seen = max(self._longest_seen, len(edge.data))
            whole.data = edge.data
        counters.add(read_nbytes=len(edge.data))
        return FoundIndex(index=index)

    def _may_be_gone(self, key: str) -> bool:
        """Whether this process may have removed a shard itself since an earlier read has read its index."""
        return not self._seen_shards[key] and is_written(self._source, self._spec.path, key)

    def _keep(self, key: str, spec: ShardIndexSpec, index: ShardIndex, edge: Edge) -> None:
        """Remember which version an index is of, and the index itself if a change of the shard will show."""
        if edge.version is None or not edge.settled:
            self.cuts_objects = False  # two answers for one chunk may be of two versions
        if edge.version is None:
            self._versions[key] = UNTAGGED
            return
        self._versions[key] = edge.version
        is_sound = int(index.nbytes.max(initial=0)) <= self._spec.most_nbytes  # else it is looked at anew next time
        if edge.settled and is_sound and self.identity is not None:
            self._settled.add(key)
            entry = CachedIndex(index=index, version=edge.version)
            index_cache.cache.put((self.identity, key, spec), entry, fetch_options().index_cache_nbytes)
