"""The one place that turns indexes into chunk tables: the next shards' are asked for while earlier ones are decoded."""

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
"""Most rows in a plan of several shards whose indexes are known: 100 us of planning, and milliseconds of decoding."""


class ChunkTables:
    """The plans of one read, made as they are drawn, by one thread at a time; `progress` is told of them."""

    def __init__(self, spec: ArraySpec, target: Target, snapshot: Snapshot, progress: ReadProgress | None) -> None:
        self._spec, self._target, self._snapshot, self._progress = spec, target, snapshot, progress
        self._blocks = plan_blocks(spec, target)
        self._block = next(self._blocks, None)
        """The next one whose index is to be asked for."""
        self._asked: deque[tuple[Block, FetchedIndex | PendingIndex]] = deque()
        self._left: tuple[Block, FetchedIndex] | None = None
        """Block that had no room in the last plan."""
        self.n_shards = 0
        """Number of shards in all plans so far, or of chunks where these are objects of their own."""
        self.decoded_nbytes = 0
        """Decoded bytes of all plans so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReadPlan:
        """Return the next plan; its seconds count as ``index``."""
        if self._block is None and self._left is None and not self._asked:
            raise StopIteration
        account = counters.local.account
        before = account.stage
        try:
            account.switch("index")
            plan = self._next()
        finally:
            try:
                account.switch(before)
            finally:  # whatever interrupts this
                account.stage = before
        if self._progress is not None:
            self._progress.begin_table(plan.n_chunks)
        self.n_shards += len(plan.keys)
        self.decoded_nbytes += plan.decoded_nbytes
        return plan

    def _next(self) -> ReadPlan:
        """Plan the next block; those whose indexes are in the cache together."""
        if self._spec.index is None:
            block, self._block = self._block, next(self._blocks, None)
            assert block is not None
            return plan_read(self._spec, self._target, [block], [None])
        known: list[tuple[Block, FetchedIndex]] = []
        n_rows = 0
        while (answered := self._left or self._answered()) is not None:
            self._left = None
            block, index = answered
            if known and n_rows + block.n_rows > _MOST_ROWS:
                self._left = answered
                break
            known.append(answered)
            n_rows += block.n_rows
            if not index.from_cache or (self._block is None and not self._asked):
                break
        return self._plan(known)

    def _answered(self) -> tuple[Block, FetchedIndex] | None:
        """Return the next block and the index of its shard; those of the next few have been asked for."""
        snapshot, asked = self._snapshot, self._asked
        while (block := self._block) is not None:
            if asked and (len(asked) > snapshot.lookahead or snapshot.should_wait(block.n_rows)):
                break
            answer = snapshot.start_index(str(block.key), block.n_rows)
            self._block = next(self._blocks, None)
            if isinstance(answer, FetchedIndex) and not asked:
                return block, answer
            asked.append((block, answer))
        if not asked:
            return None
        block, answer = asked.popleft()
        return block, answer if isinstance(answer, FetchedIndex) else answer()

    def _plan(self, known: list[tuple[Block, FetchedIndex]]) -> ReadPlan:
        spec, target, snapshot = self._spec, self._target, self._snapshot
        blocks = [block for block, _ in known]
        plan = plan_read(spec, target, blocks, [answer.index for _, answer in known])
        is_too_long = plan.most_nbytes > spec.most_nbytes  # as those of another array, which was there before, may be
        if is_too_long or plan.n_stored < plan.n_chunks:
            # No request for a chunk will show that a shard was replaced that holds nothing of what is wanted.
            n_used = set() if is_too_long else set(plan.object.tolist())
            doubtful = [n for n, (_, answer) in enumerate(known) if answer.from_cache and n not in n_used]
            for n in doubtful:
                known[n] = blocks[n], snapshot.ask_again(plan.keys[n])
            if doubtful:
                plan = plan_read(spec, target, blocks, [answer.index for _, answer in known])
        if plan.most_nbytes > spec.most_nbytes:
            row = int(plan.nbytes.argmax())
            raise too_long_chunk(plan, row, int(plan.nbytes[row]))
        snapshot.expect_chunks(plan)
        return plan
