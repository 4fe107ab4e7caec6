"""`Snapshot`: the objects of one array as one read sees them, each in a single version.

All chunks of a shard come from the version from which its index was read. `Snapshot.indexes` returns the index of each
shard, from the cache or the store (`shard_indexes`), and the `Snapshot` is then the decoder's source of encoded chunks.
A request for chunks fails if the shard was replaced since, and `read` begins again with a new `Snapshot`. If that
happens again and again, or a store's answers are of several versions, later attempts take more `Care`
(`version_conflicts`): each request is repeated until the version is that of the index, or each shard is requested as a
whole. A `Snapshot` decodes nothing but indexes, and plans nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xarray_gpuzarr.fetch import ahead
from xarray_gpuzarr.fetch.object_pieces import ObjectPieces
from xarray_gpuzarr.fetch.shard_indexes import ShardIndexes
from xarray_gpuzarr.fetch.source import (
    Allocate,
    ChunkVersions,
    FetchedBytes,
    LocalFile,
    ObjectSource,
    Pending,
    PendingCheck,
    Request,
    Storage,
    Version,
)
from xarray_gpuzarr.fetch.store_errors import ObjectTooLongError, changed_error
from xarray_gpuzarr.fetch.strict import StrictSource, missing_keys_error
from xarray_gpuzarr.fetch.version_conflicts import Care
from xarray_gpuzarr.fetch.whole_objects import WholeObjects
from xarray_gpuzarr.fetch.whole_shard import comes_whole
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.faults import corrupt_chunk_at, too_long_text
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.stored.array_spec import ArraySpec

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
        self._source = _source_for_one_read(source, spec, care, short_requests=short_requests)
        self.identity = source.identity
        """What the source reads from; None if it is unknown."""
        self._spec = spec
        # With this care, index and chunks must come in one answer. So neither is taken from a cache or from requests
        # made ahead.
        one_answer = care is Care.ONE_ANSWER
        self._use_cache = use_cache and not one_answer
        self._ahead = ahead.requests_for(source) if self._use_cache and care is Care.USUAL else None
        self.lookahead = self._source.lookahead
        self.prefetch = self._source.prefetch
        self.is_remote = source.is_remote
        # More care is taken after answers had several versions, and then pieces would have several, too.
        self._cuts_objects = cuts_objects and source.cuts_objects and care is Care.USUAL
        # A decoder that reads files itself, or with GPUDirect Storage, would read a shard in several parts, whose
        # versions may differ. So with `Care.ONE_ANSWER`, decoders are told that no file is local, and bytes reach a GPU
        # through host memory (`posix`).
        self.is_local = source.is_local and not one_answer
        self.storage: Storage = "posix" if one_answer else source.storage
        self.cached_nbytes = 0
        """Decoded bytes of the chunks that the decoder has found in its cache of decoded chunks."""
        self._pieces = ObjectPieces(self._source) if spec.index is None else None
        """Pieces of unsharded chunks; None if the array is sharded."""
        self.indexes: ShardIndexes | None = None
        """The array's shard indexes; None if it is unsharded."""
        if spec.index is not None:
            self.indexes = ShardIndexes(
                self._source, spec, self.identity, seen_shards, care=care, use_cache=self._use_cache, ahead=self._ahead
            )

    @property
    def chunk_versions(self) -> ChunkVersions | None:
        """The snapshot itself, if decoded chunks may be cached; else None."""
        return self if self._use_cache and self.identity is not None else None

    @property
    def cuts_objects(self) -> bool:
        """Whether long chunks may be requested in pieces. False if two pieces might be of two versions of a shard."""
        return self._cuts_objects and (self.indexes is None or self.indexes.changes_are_visible)

    @property
    def rule(self) -> CoalesceRule:
        """Rule of the source that decides which neighbouring chunks share a request."""
        return self._source.rule

    def local_file(self, key: str) -> LocalFile:
        """Return the path of a local file, and the version from which its index was read."""
        version = None if self.indexes is None else self.indexes.versions.get(key)
        return self._source.local_file(key, version)

    def start(self, requests: Sequence[Request]) -> Pending:
        """Start reading byte ranges of a shard, whole unsharded chunks, or one piece of one; see `ByteSource.start`.

        The bytes of a shard are of the version from which its index was read. The pieces of an unsharded chunk are of
        the version of the first that arrives.
        """
        key = requests[0][0]
        if self._pieces is not None and requests[0][1] != _WHOLE:
            return self._pieces.start(*requests[0])
        if self.indexes is None and self._ahead is not None:
            # This takes the objects that were requested ahead, and requests the others.
            return self._counted(WholeObjects(self._ahead, requests, self._source))
        version = None
        if self.indexes is not None:
            whole = self.indexes.whole.get(key)
            if whole is not None:  # the shard came with its index
                return FetchedBytes(self.indexes.take_chunks(whole, requests))
            version = self.indexes.versions.get(key)
        return self._counted(self._source.start(requests, version))

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

    def settled_version(self, key: str) -> Version:
        """Return the version of an object; None if its decoded chunks must not be cached. See `ChunkVersions`."""
        if self.indexes is None:
            return self._source.settled_version(key)
        return self.indexes.versions[key] if key in self.indexes.settled else None

    def start_check(self, byte_positions: Sequence[tuple[str, int]]) -> PendingCheck:
        """Start requests for the current versions of shards; see `ChunkVersions.start_check`.

        A local file that still has the version of its index needs no request. For other shards, one byte is requested.
        """
        assert self.indexes is not None  # only the chunks of shards are checked
        requests = []
        for key, offset in byte_positions:
            version = self.indexes.versions[key]
            if self._source.settled_version(key) == version:  # only local files tell it without a request
                continue
            requests.append((key, version, self._source.start([(key, ByteRange(offset, 1))], version)))
        return partial(self._end_check, requests)

    def _end_check(self, requests: Sequence[tuple[str, Version, Pending]]) -> None:
        """Wait for the requests of `start_check`. The first answer of another version raises `ObjectChangedError`."""
        for key, version, pending in requests:
            (data,) = pending(lambda nbytes: memoryview(bytearray(nbytes)))  # raises the error for another version
            if data is None:  # there is no object any more
                raise changed_error(f"{self._source.name}/{key}", version, None, key)

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
        if self.indexes is not None:
            self.indexes.whole.clear()


def _source_for_one_read(source: ObjectSource, spec: ArraySpec, care: Care, *, short_requests: bool) -> ObjectSource:
    """Return the source of an array for one read, with what is known of the lengths of requests and objects."""
    request_lengths: dict[str, int] = {}
    if spec.index is None:
        request_lengths = {"expected_nbytes": spec.expected_nbytes, "most_nbytes": spec.max_encoded_nbytes}
    elif short_requests and source.is_remote and not comes_whole(spec, spec.index.n_chunks, source.rule):
        # Not even a read of all chunks requests such a shard as a whole. So the longest request is that of one chunk,
        # or of several that are read together.
        request_lengths = {"expected_nbytes": max(source.rule.max_nbytes, spec.expected_nbytes)}
    return source.for_one_read(ask_again=care is not Care.USUAL, **request_lengths)
