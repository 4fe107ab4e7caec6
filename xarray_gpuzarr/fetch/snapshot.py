"""One read's view of its shards: every chunk comes from the version of its shard that the index was read from.

`Snapshot` is the source that a decoder is given. It finds the index of each shard, in the cache or in the store, asks
for index and chunks of a small shard at once, and lets requests for chunks fail if the shard was replaced since. `read`
then takes another snapshot. Decodes nothing but indexes.

Where the store is several servers that tag one object differently (`mirrors`), requests are repeated until the tag is
that of the index, or each shard is asked for as a whole: one answer is of one version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import numpy as np

from xarray_gpuzarr.fetch import (
    UNTAGGED,
    AtHand,
    Edge,
    MemoryStream,
    ObjectSource,
    Pending,
    PendingEdge,
    PendingObjects,
    PendingStream,
    Version,
    index_cache,
)
from xarray_gpuzarr.fetch.counted import counted, counted_objects, counted_stream
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.fetch.mirrors import Care
from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, Target, plan_read
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec, decode_shard_index

PendingPlan = Callable[[], ReadPlan]
"""Wait for the index of a block's shard; return the plan of the block."""

_PARTS_AT_ONCE = 4
"""A shard that would take so many requests comes in one: that saves a round trip, and what each request costs."""
_WHOLE_NBYTES = 128 * 1024 * 1024
"""Most bytes of whole shards that are under way, or wait for their chunks to be asked for."""


class Snapshot:
    """The objects of one array during one read: a `ByteSource`.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    care : Care
        What is done to have all bytes of a shard from one version.
    use_cache : bool
        False after a read has shown that an index in the cache is out of date.
    """

    def __init__(
        self, source: ObjectSource, spec: ArraySpec, *, care: Care = Care.USUAL, use_cache: bool = True
    ) -> None:
        self._source = source.for_one_read(ask_again=True) if care else source.for_one_read()
        self._spec = spec
        self._one_answer = care is Care.ONE_ANSWER
        self._use_cache = use_cache and not self._one_answer
        self._options = fetch_options()
        self.rule: CoalesceRule = source.rule
        self.lookahead = source.lookahead
        self.is_remote = source.is_remote
        self.storage = source.storage
        self._versions: dict[str, Version] = {}
        self._whole: dict[str, _Whole] = {}
        self._longest_seen = 0

    def local_path(self, key: str) -> str:
        """Return the path of an object that is a local file."""
        return self._source.local_path(key)

    def check(self, key: str) -> None:
        """Raise if a local file is not of the version that its index was read from."""
        self._source.check(key, self._versions.get(key))

    def prefetch(self, key: str, wanted: ByteRange) -> bool:
        """Let the system read ahead; see `ByteSource.prefetch`."""
        return self._source.prefetch(key, wanted)

    def start(self, key: str, wanted: ByteRange) -> Pending:
        """Start reading a byte range of the version of an object that its index was read from."""
        data = self._take(key, wanted)
        if data is not None:
            return AtHand(data)
        return counted(self._source.start(key, wanted, self._versions.get(key)))

    def start_objects(self, keys: Sequence[str], nbytes: int) -> PendingObjects:
        """Start reading whole objects that are no shards."""
        return counted_objects(self._source.start_objects(keys, nbytes))

    def start_stream(self, key: str, wanted: ByteRange) -> PendingStream:
        """Start reading a byte range that is too large to be held at once."""
        data = self._take(key, wanted)
        if data is not None:
            return lambda: MemoryStream(data)
        return counted_stream(self._source.start_stream(key, wanted, self._versions.get(key)))

    def start_plan(self, target: Target, block: Block) -> PendingPlan:
        """Ask for the index of a block's shard, unless it is in the cache.

        Parameters
        ----------
        target : BoxTarget or PointTarget
        block : Block
            From `plan_blocks` with this target.

        Returns
        -------
        callable
            Raises StoreReadError or ShardIndexError if the shard cannot be read.
        """
        spec, key = self._spec.index, block.key
        if spec is None or key is None:
            return lambda: plan_read(self._spec, target, block, None)
        cached = index_cache.cache.get((self._source.identity, key, spec)) if self._use_cache else None
        if cached is not None:
            return lambda: self._plan_from_cache(target, block, spec, cached)
        if self._suits_one_request(block, spec) and self._has_room(spec):
            return self._start_whole(target, block, spec)
        if self._one_answer:  # too long to be under way beside others
            return partial(self._read_whole, target, block, spec)
        asked = self._ask(key, spec)
        return lambda: self._plan(target, block, spec, asked)

    def _read_whole(self, target: Target, block: Block, spec: ShardIndexSpec) -> ReadPlan:
        return self._start_whole(target, block, spec)()

    def _start_whole(self, target: Target, block: Block, spec: ShardIndexSpec) -> PendingPlan:
        key = str(block.key)
        self._whole[key] = whole = _Whole(self._expected(spec))
        asked = self._source.start_whole(key)
        return lambda: self._plan(target, block, spec, asked, whole)

    def should_wait(self, block: Block) -> bool:
        """Say whether a plan had better be started once earlier ones are carried out."""
        spec = self._spec.index
        return spec is not None and self._suits_one_request(block, spec) and not self._has_room(spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Give up requests that nobody waited for."""
        self._source.give_up()
        self._whole.clear()

    def _ask(self, key: str, spec: ShardIndexSpec) -> PendingEdge:
        return self._source.start_edge(key, spec.location, spec.nbytes)

    def _suits_one_request(self, block: Block, spec: ShardIndexSpec) -> bool:
        """Say whether one request for a shard beats one for its index and then some for chunks, or must do."""
        if self._one_answer:
            return True
        most_is_wanted = 2 * len(block.row) >= spec.n_chunks
        return self.is_remote and most_is_wanted and self._longest(spec) <= _PARTS_AT_ONCE * self.rule.max_nbytes

    def _longest(self, spec: ShardIndexSpec) -> int:
        """Return the bytes of a shard that nothing could be compressed of."""
        return spec.n_chunks * self._spec.chunk_nbytes + spec.nbytes

    def _expected(self, spec: ShardIndexSpec) -> int:
        """Return the bytes that a shard is expected to have."""
        return self._longest_seen or self._longest(spec)

    def _has_room(self, spec: ShardIndexSpec) -> bool:
        return sum(whole.nbytes for whole in self._whole.values()) + self._expected(spec) <= _WHOLE_NBYTES

    def _plan_from_cache(self, target: Target, block: Block, spec: ShardIndexSpec, cached: CachedIndex) -> ReadPlan:
        key = str(block.key)
        self._versions[key] = cached.version
        plan = plan_read(self._spec, target, block, cached.index)
        if len(plan.offset):
            return plan
        # No request for a chunk will show whether the shard has been replaced.
        return self._plan(target, block, spec, self._ask(key, spec))

    def _plan(
        self, target: Target, block: Block, spec: ShardIndexSpec, asked: PendingEdge, whole: _Whole | None = None
    ) -> ReadPlan:
        key, edge = str(block.key), asked()
        self._versions.pop(key, None)
        if edge is None:
            self._whole.pop(key, None)
            return plan_read(self._spec, target, block, None)
        encoded, shard_nbytes = edge.data, edge.object_nbytes
        if whole:
            encoded, shard_nbytes = _index_of(edge.data, spec), len(edge.data)
        where = f"'{key}' of array '{self._spec.path}'"
        index = decode_shard_index(encoded, spec, shard_nbytes=shard_nbytes, where=where)
        self._keep(key, spec, index, edge)
        plan = plan_read(self._spec, target, block, index)
        if whole is not None:
            self._longest_seen = max(self._longest_seen, len(edge.data))
            whole.arrived(edge.data, plan)
            if not whole.left_nbytes:
                del self._whole[key]
        counters.add(read_nbytes=len(edge.data))
        return plan

    def _keep(self, key: str, spec: ShardIndexSpec, index: ShardIndex, edge: Edge) -> None:
        """Remember which version an index is of, and the index itself if a change of the shard will show."""
        if edge.version is None:
            self._versions[key] = UNTAGGED
            return
        self._versions[key] = edge.version
        if edge.settled and self._source.identity is not None:
            entry = CachedIndex(index=index, version=edge.version)
            index_cache.cache.put((self._source.identity, key, spec), entry, self._options.index_cache_nbytes)

    def _take(self, key: str, wanted: ByteRange) -> memoryview | None:
        """Return bytes of a shard that came with its index; let go of the shard with the last of them."""
        whole = self._whole.get(key)
        if whole is None:
            return None
        data = whole.take(wanted)
        if whole.left_nbytes <= 0:
            del self._whole[key]
        return data


class _Whole:
    """A shard that is asked for together with its index."""

    __slots__ = ("_end", "_offset", "data", "left_nbytes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """Expected when it was asked for."""
        self.data = memoryview(b"")
        self.left_nbytes = 0
        """Bytes of chunks that have not been asked for."""

    def arrived(self, data: memoryview, plan: ReadPlan) -> None:
        """Hold the shard until all chunks of a plan have been taken."""
        self.data, self.left_nbytes = data, int(plan.nbytes.sum())
        self._offset, self._end = plan.offset, plan.offset + plan.nbytes

    def take(self, wanted: ByteRange) -> memoryview:
        """Return a range of bytes, and count those of it that are chunks' and not between two."""
        first, end = wanted.offset, wanted.offset + wanted.nbytes
        parts = np.minimum(self._end, end) - np.maximum(self._offset, first)
        self.left_nbytes -= int(parts.clip(0).sum())
        return self.data[first:end]


def _index_of(shard: memoryview, spec: ShardIndexSpec) -> memoryview:
    return shard[: spec.nbytes] if spec.location == "start" else shard[-spec.nbytes :]
