"""`ChunkTables`: the plans of a read, from shard indexes that are requested ahead.

The indexes of the next shards are requested while earlier shards are decoded.
"""

from __future__ import annotations

from collections import deque
from typing import Self

from xarray_gpuzarr.fetch.snapshot import FetchedIndex, PendingIndex, Snapshot
from xarray_gpuzarr.plan.faults import too_long_chunk
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, plan_blocks
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.read_progress import ReadProgress
from xarray_gpuzarr.stored.array_spec import ArraySpec

_MOST_ROWS = 1024
"""Most rows in a plan of several shards whose indexes are cached. Planning them takes 100 us, decoding milliseconds."""


class ChunkTables:
    """Iterator over the plans of one read, each made when it is drawn. Only one thread may draw at a time.

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
        self._spec, self._target, self._snapshot, self._progress = spec, target, snapshot, progress
        self._blocks = plan_blocks(spec, target)
        self._block = next(self._blocks, None)
        """Next block whose index is to be requested; None if there is none."""
        self._requested: deque[tuple[Block, FetchedIndex | PendingIndex]] = deque()
        """Blocks whose indexes have been requested, or found in the cache behind such blocks."""
        self._held_back: tuple[Block, FetchedIndex] | None = None
        """Block that would have made the last plan too long."""
        self.n_shards = 0
        """Number of shards, or of unsharded chunks, in all plans so far."""
        self.decoded_nbytes = 0
        """Decoded bytes of all plans so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadPlan:
        """Return the next plan. The time that this takes counts as ``index``."""
        if self._block is None and self._held_back is None and not self._requested:
            raise StopIteration
        account = counters.local.account
        before = account.stage
        try:
            account.switch("index")
            plan = self._next_plan()
        finally:
            try:
                account.switch(before)
            finally:  # even if a signal interrupts the line above
                account.stage = before
        if self._progress is not None:
            self._progress.begin_table(plan.n_chunks)
        self.n_shards += len(plan.keys)
        self.decoded_nbytes += plan.decoded_nbytes
        return plan

    def _next_plan(self) -> ReadPlan:
        """Return the plan of the next block, or of the next blocks whose indexes are in the cache."""
        if self._spec.index is None:
            block, self._block = self._block, next(self._blocks, None)
            assert block is not None
            return plan_read(self._spec, self._target, [block], [None])
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
            if not index.from_cache or (self._block is None and not self._requested):
                break
        return self._plan(indexed)

    def _next_index(self) -> tuple[Block, FetchedIndex] | None:
        """Return the next block and the index of its shard, after requesting the indexes of the next few blocks."""
        snapshot, requested = self._snapshot, self._requested
        while self._block is not None:
            block = self._block
            if requested and (len(requested) > snapshot.lookahead or snapshot.should_wait(block.n_rows)):
                break
            index = snapshot.start_index(str(block.key), block.n_rows)
            self._block = next(self._blocks, None)
            if isinstance(index, FetchedIndex) and not requested:
                return block, index
            requested.append((block, index))
        if not requested:
            return None
        block, index = requested.popleft()
        return block, index if isinstance(index, FetchedIndex) else index()

    def _plan(self, indexed: list[tuple[Block, FetchedIndex]]) -> ReadPlan:
        """Return the plan of blocks with their indexes. Raises `CorruptChunkError` for a chunk that is too long."""
        spec, target, snapshot = self._spec, self._target, self._snapshot
        blocks = [block for block, _ in indexed]
        plan = plan_read(spec, target, blocks, [found.index for _, found in indexed])
        # A chunk that is too long may mean that the cached index is that of an earlier array.
        is_too_long = plan.longest_nbytes > spec.max_encoded_nbytes
        if is_too_long or plan.n_stored < plan.n_chunks:
            # No request for chunks will show that a shard was replaced if none of its chunks is requested. Its cached
            # index is read again.
            used = set() if is_too_long else set(plan.object.tolist())
            doubtful = [n for n, (_, found) in enumerate(indexed) if found.from_cache and n not in used]
            for n in doubtful:
                indexed[n] = blocks[n], snapshot.refetch_index(plan.keys[n])
            if doubtful:
                plan = plan_read(spec, target, blocks, [found.index for _, found in indexed])
        if plan.longest_nbytes > spec.max_encoded_nbytes:
            row = int(plan.nbytes.argmax())
            raise too_long_chunk(plan, row, int(plan.nbytes[row]))
        snapshot.expect_chunks(plan)
        return plan
