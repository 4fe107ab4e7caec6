"""The one place that turns indexes into plans: the next shards' are asked for while earlier ones are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from xarray_gpuzarr.decoders.faults import too_long_chunk
from xarray_gpuzarr.fetch.snapshot import FoundIndex, PendingIndex, Snapshot
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, Target, plan_blocks
from xarray_gpuzarr.stored.array_spec import ArraySpec

_MOST_ROWS = 1024
"""Of a plan of several shards, whose indexes are known: 100 us of planning against milliseconds of decoding."""


def draw_plans(spec: ArraySpec, target: Target, snapshot: Snapshot) -> Iterator[ReadPlan]:
    """Plan block after block, those whose indexes are in the cache together."""
    if spec.index is None:
        for block in plan_blocks(spec, target):
            yield plan_read(spec, target, [block], [None])
        return
    known: list[tuple[Block, FoundIndex]] = []
    n_rows = 0
    for block, found in _answered(spec, target, snapshot):
        if known and n_rows + block.n_rows > _MOST_ROWS:
            yield _plan(spec, target, snapshot, known)
            known, n_rows = [], 0
        known.append((block, found))
        n_rows += block.n_rows
        if not found.from_cache:
            yield _plan(spec, target, snapshot, known)
            known, n_rows = [], 0
    if known:
        yield _plan(spec, target, snapshot, known)


def _answered(spec: ArraySpec, target: Target, snapshot: Snapshot) -> Iterator[tuple[Block, FoundIndex]]:
    """Yield blocks with the indexes of their shards; those of the next few have been asked for."""
    waiting: deque[tuple[Block, PendingIndex]] = deque()
    for block in plan_blocks(spec, target):
        n_wanted = block.n_rows
        known = None if waiting else snapshot.known_index(str(block.key))
        if known is not None:
            yield block, known
            continue
        while len(waiting) > snapshot.lookahead or (waiting and snapshot.should_wait(n_wanted)):
            first, asked = waiting.popleft()
            yield first, asked()
        waiting.append((block, snapshot.start_index(str(block.key), n_wanted)))
    while waiting:
        first, asked = waiting.popleft()
        yield first, asked()


def _plan(spec: ArraySpec, target: Target, snapshot: Snapshot, known: list[tuple[Block, FoundIndex]]) -> ReadPlan:
    blocks = [block for block, _ in known]
    plan = plan_read(spec, target, blocks, [found.index for _, found in known])
    if plan.n_stored < plan.n_chunks:
        # Of a shard that holds nothing of what is wanted, no request for a chunk will show that it has been replaced.
        wanted = set(plan.object.tolist())
        doubtful = [n for n, (_, found) in enumerate(known) if found.from_cache and n not in wanted]
        for n in doubtful:
            known[n] = blocks[n], snapshot.start_index(plan.keys[n], blocks[n].n_rows, ask=True)()
        if doubtful:
            plan = plan_read(spec, target, blocks, [found.index for _, found in known])
    if plan.most_nbytes > spec.most_nbytes:
        row = int(plan.nbytes.argmax())
        raise too_long_chunk(plan, row, int(plan.nbytes[row]))
    snapshot.will_ask(plan)
    return plan
