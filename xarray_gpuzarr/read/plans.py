"""The one place that turns indexes into plans: the next shards' are asked for while earlier ones are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from xarray_gpuzarr.fetch.snapshot import PendingIndex, Snapshot
from xarray_gpuzarr.plan.read_plan import Block, ReadPlan, Target, plan_blocks, plan_read
from xarray_gpuzarr.stored.array_spec import ArraySpec


def draw_plans(spec: ArraySpec, target: Target, snapshot: Snapshot) -> Iterator[ReadPlan]:
    """Plan block after block, with the next blocks' indexes already asked for."""
    waiting: deque[tuple[Block, PendingIndex | None]] = deque()
    for block in plan_blocks(spec, target):
        n_wanted = len(block.row)
        while len(waiting) > snapshot.lookahead or (waiting and snapshot.should_wait(n_wanted)):
            yield _plan(spec, target, snapshot, *waiting.popleft())
        waiting.append((block, None if block.key is None else snapshot.start_index(block.key, n_wanted)))
    while waiting:
        yield _plan(spec, target, snapshot, *waiting.popleft())


def _plan(spec: ArraySpec, target: Target, snapshot: Snapshot, block: Block, asked: PendingIndex | None) -> ReadPlan:
    """Wait for the index of a block's shard, if it has one, and plan the block."""
    if block.key is None or asked is None:
        return plan_read(spec, target, block, None)
    found = asked()
    plan = plan_read(spec, target, block, found.index)
    if found.from_cache and not len(plan.offset):
        # No request for a chunk will show whether the shard has been replaced.
        found = snapshot.start_index(block.key, len(block.row), ask=True)()
        plan = plan_read(spec, target, block, found.index)
    snapshot.will_ask(block.key, plan.offset, plan.nbytes)
    return plan
