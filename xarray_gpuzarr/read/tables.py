"""`ChunkTables`: the plans of a read, from shard indexes that are requested ahead.

The indexes of the next shards are requested while earlier shards are decoded.
"""

from __future__ import annotations

from collections import deque
from typing import Self

from xarray_gpuzarr.fetch.shard_indexes import FetchedIndex, PendingIndex
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.plan.faults import too_long_chunk
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, plan_blocks
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.read_progress import ReadProgress
from xarray_gpuzarr.stored.array_spec import ArraySpec

_MOST_ROWS = 1024
"""Largest number of rows in a plan of several shards, whose indexes are cached. Planning so many takes 100 us, decoding
them milliseconds."""


class ChunkTables:
    """Iterator over the plans of one read, each made when it is drawn. Only one thread may draw at a time.

    `request_indexes` makes the first requests, before any plan is drawn. Drawing a plan waits for its indexes, if they
    are not in the cache, and requests the next ones.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    target : Target
        Requested elements.
    snapshot : Snapshot
        Reads the shard indexes.
    progress : ReadProgress or None
        Counts the chunks of the plans.
    """

    def __init__(self, spec: ArraySpec, target: Target, snapshot: Snapshot, progress: ReadProgress | None) -> None:
        self._spec, self._target, self._progress = spec, target, progress
        self._indexes = snapshot.indexes
        self._lookahead = snapshot.lookahead
        self._blocks = plan_blocks(spec, target)
        self._block = next(self._blocks, None)
        """Next block whose index is to be requested; None if there is none."""
        self._requested: deque[tuple[Block, FetchedIndex | PendingIndex]] = deque()
        """Blocks whose indexes have been requested or found in the cache, in the order in which they are planned."""
        self._held_back: tuple[Block, FetchedIndex] | None = None
        """Block that would have made the last plan too long, so it begins the next one; None if there is none."""
        self.n_shards = 0
        """Number of shards, or of unsharded chunks, in all plans so far."""
        self.chunk_nbytes = 0
        """Decoded bytes of the chunks of all plans so far, including chunks that the decoder finds in its cache."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadPlan:
        """Return the next plan. The time that this takes counts as ``index``."""
        if self._block is None and self._held_back is None and not self._requested:
            raise StopIteration
        with counters.stage("index"):
            plan = self._next_plan()
        if self._progress is not None:
            self._progress.begin_table(plan.n_chunks)
        self.n_shards += len(plan.keys)
        self.chunk_nbytes += plan.decoded_nbytes
        return plan

    def _next_plan(self) -> ReadPlan:
        """Return the plan of the next block, or of the next blocks whose indexes are in the cache."""
        if self._spec.index is None:
            next_block = self._block
            assert next_block is not None
            self._block = next(self._blocks, None)
            return plan_read(self._spec, self._target, [next_block], [None])
        indexed: list[tuple[Block, FetchedIndex]] = []
        n_rows = 0
        while True:
            entry = self._held_back or self._next_index()
            if entry is None:
                break
            self._held_back = None
            block, index = entry
            if indexed and n_rows + block.n_rows > _MOST_ROWS:
                self._held_back = entry
                break
            indexed.append(entry)
            n_rows += block.n_rows
            is_last = self._block is None and not self._requested
            # If the index had to be fetched, the read may have to wait for the next one, too, so chunks are fetched
            # first.
            if is_last or not index.from_cache:
                break
        return self._plan(indexed)

    def request_indexes(self) -> None:
        """Request the indexes of the next few shards, without waiting for them.

        Stops at an index that is in the cache if nothing else waits, since its shard can be planned at once.
        """
        indexes, requested = self._indexes, self._requested
        while self._block is not None and indexes is not None:
            block = self._block
            if requested and (len(requested) > self._lookahead or indexes.should_wait(block.n_rows)):
                break
            index = indexes.start(str(block.key), block.n_rows)
            self._block = next(self._blocks, None)
            requested.append((block, index))
            if self._only_cached_waits():
                break

    def _only_cached_waits(self) -> bool:
        """Whether a single block waits, whose index was in the cache. It can be planned before others are requested."""
        return len(self._requested) == 1 and isinstance(self._requested[0][1], FetchedIndex)

    def _next_index(self) -> tuple[Block, FetchedIndex] | None:
        """Return the next block and the index of its shard, after requesting the indexes of the next few blocks."""
        requested = self._requested
        if not self._only_cached_waits():
            self.request_indexes()
        if not requested:
            return None
        block, index = requested.popleft()
        if not isinstance(index, FetchedIndex):
            index = index()
        return block, index

    def _plan(self, indexed: list[tuple[Block, FetchedIndex]]) -> ReadPlan:
        """Return the plan of blocks with their indexes. Raises `CorruptChunkError` for a chunk that is too long."""
        spec, target, indexes = self._spec, self._target, self._indexes
        assert indexes is not None  # since the blocks are shards
        blocks = [block for block, _ in indexed]
        plan = plan_read(spec, target, blocks, [fetched.index for _, fetched in indexed])
        is_too_long = plan.longest_nbytes > spec.max_encoded_nbytes
        if is_too_long or plan.n_stored < plan.n_chunks:
            # If no chunk of a shard is stored, no request will show that the shard was replaced. So its cached index is
            # read again. If a chunk is too long, a cached index may be that of an earlier array: all are read again.
            requested_shards = set() if is_too_long else set(plan.object.tolist())
            doubtful = [n for n, (_, fetched) in enumerate(indexed) if fetched.from_cache and n not in requested_shards]
            for n in doubtful:
                indexed[n] = blocks[n], indexes.refetch(plan.keys[n])
            if doubtful:
                plan = plan_read(spec, target, blocks, [fetched.index for _, fetched in indexed])
        if plan.longest_nbytes > spec.max_encoded_nbytes:
            row = int(plan.nbytes.argmax())
            raise too_long_chunk(plan, row, int(plan.nbytes[row]))
        if indexes.whole:
            indexes.expect_chunks(plan)
        return plan
