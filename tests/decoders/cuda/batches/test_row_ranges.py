"""Plans -> segments and batches of them: every row once and in order, none longer than it may be, none shorter."""

from itertools import cycle, pairwise, repeat

import numpy as np
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.decoders.cuda.batches.row_ranges import ENDLESS, BatchLimits, Cutter, aligned, plan_row_ranges
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.read_plan import plan_blocks
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.process.device_options import N_AT_ONCE, ResourceOptions
from xarray_gpuzarr.stored.array_spec import ArraySpec, KeyEncoding
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.codec_json import parse_codecs
from xarray_gpuzarr.stored.shard_index import ShardIndex, ShardIndexSpec

RULE = CoalesceRule(max_gap_nbytes=20, max_nbytes=2**62, max_raw_nbytes=1)


@st.composite
def plans(draw):
    """A few shards, whose chunks lie anywhere behind each other."""
    shards = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90)), min_size=1, max_size=9)
    return [plan_of(table) for table in draw(st.lists(shards, max_size=4))]


def plan_of(table):
    """Plan a shard of chunks that lie (gap, nbytes) behind each other."""
    gap, nbytes = np.array(table, np.int64).T
    n = len(table)
    grid = ChunkGrid(shape=(4 * n,), chunk_shape=(4,), chunks_per_shard=(n,))
    spec = ArraySpec(
        path="/",
        dtype="<i4",
        grid=grid,
        codecs=parse_codecs([{"name": "bytes", "configuration": {"endian": "little"}}], np.dtype("<i4")),
        index=ShardIndexSpec(n_chunks=n, location="end", endian="little", checksum=True),
        fill=bytes(4),
        keys=KeyEncoding(prefix="", style="default", separator="/"),
        metadata="{}",
    )
    index = ShardIndex(offset=np.cumsum(gap) + np.cumsum(nbytes) - nbytes, nbytes=nbytes)
    target = box_target(outer_selection(..., grid.shape), grid)
    return plan_read(spec, target, list(plan_blocks(spec, target)), [index])


def rows_of(row_ranges):
    return [(id(p.plan), row) for p in row_ranges for row in range(p.lo, p.hi)]


def span(row_range, lo, hi):
    """Return how many bytes rows of a row range's plan take from first to last."""
    return int(row_range.plan.offset[hi - 1] + row_range.plan.nbytes[hi - 1] - row_range.plan.offset[lo])


def cuts_of(cutter, row_ranges):
    """Yield what each row range is cut into, and what is full before that."""
    for row_range in row_ranges:
        remaining = row_range
        while remaining is not None:
            head, full, remaining = cutter.cut(remaining)
            yield head, full


def batches_of(cutter, shards):
    batches = []
    for row_range, full in cuts_of(cutter, [row_range for plan in shards for row_range in plan_row_ranges(plan, RULE)]):
        if full == "batch" or not batches:
            batches.append([[]])
        elif full == "segment":
            batches[-1].append([])
        batches[-1][-1].append(row_range)
    return batches


def room_for(segment, following):
    """Return the bytes of a segment if it had the first chunk of what follows as well."""
    last, first = segment[-1], following[0]
    used = sum(aligned(p.nbytes) for p in segment[:-1])
    if last.plan is first.plan and first.first - last.first - last.nbytes <= RULE.max_gap_nbytes:
        return used + span(last, last.lo, last.hi + 1)
    return used + aligned(last.nbytes) + span(first, first.lo, first.lo + 1)


@many
@given(plans(), st.lists(st.integers(1, 12), min_size=1), st.integers(1, 400), st.integers(1, 300))
def test_every_row_comes_once_in_segments_and_batches_of_no_more_than_they_may_have(shards, sizes, nbytes, slot):
    cutter = Cutter(cycle(sizes), max_range_nbytes=nbytes, segment_nbytes=slot)

    batches = batches_of(cutter, shards)

    segments = [segment for batch in batches for segment in batch]
    row_ranges = [row_range for segment in segments for row_range in segment]
    assert rows_of(row_ranges) == [(id(plan), row) for plan in shards for row in range(len(plan.offset))]
    assert all((p.first, p.nbytes) == (int(p.plan.offset[p.lo]), span(p, p.lo, p.hi)) for p in row_ranges)
    for size, batch in zip(
        cycle(sizes), ([p for segment in batch for p in segment] for batch in batches), strict=False
    ):
        assert len(rows_of(batch)) <= size
        assert sum(p.nbytes for p in batch) <= nbytes or len(rows_of(batch)) == 1
    for segment in segments:
        used = sum(aligned(p.nbytes) for p in segment[:-1]) + segment[-1].nbytes
        assert used <= slot or len(rows_of(segment)) == 1


@many
@given(plans(), st.integers(1, 300))
def test_segments_are_full(shards, slot_nbytes):
    cutter = Cutter(repeat(ENDLESS), max_range_nbytes=ENDLESS, segment_nbytes=slot_nbytes)

    segments = [segment for batch in batches_of(cutter, shards) for segment in batch]

    assert all(room_for(segment, following) > slot_nbytes for segment, following in pairwise(segments))


@many
@given(plans(), st.integers(1, 12), st.integers(1, 400))
def test_batches_are_full(shards, size, nbytes):
    cutter = Cutter(repeat(size), max_range_nbytes=nbytes, segment_nbytes=ENDLESS)

    batches = [b[0] for b in batches_of(cutter, shards)]

    for batch, following in pairwise(batches):
        used, first = sum(p.nbytes for p in batch), following[0]
        assert len(rows_of(batch)) == size or used + span(first, first.lo, first.lo + 1) > nbytes


def limits(chunk_device_nbytes, budget_nbytes, chunk_nbytes=1 << 20, **options):
    return BatchLimits.for_budget(
        "/t",
        chunk_nbytes=chunk_nbytes,
        chunk_device_nbytes=chunk_device_nbytes,
        budget_nbytes=budget_nbytes,
        options=ResourceOptions(**options),
    )


@many
@given(
    st.integers(1, 1 << 24),
    st.integers(1, 1 << 36),
    st.integers(1, 1 << 24),
    st.integers(1, 1 << 30),
    st.integers(1, 5000),
)
def test_batches_under_way_fit_their_budget(needed, budget, chunk, batch_nbytes, batch_chunks):
    found = limits(needed, max(needed, budget), chunk, batch_nbytes=batch_nbytes, batch_chunks=batch_chunks)

    assert found.n_chunks >= 1 <= found.n_batches
    assert found.n_chunks * found.n_batches * needed <= max(needed, budget)
    assert found.n_chunks <= max(batch_chunks, batch_nbytes // chunk)


def test_batches_of_short_chunks_have_more_of_them():
    assert limits(1 << 22, 1 << 40).n_chunks == N_AT_ONCE
    assert limits(1 << 16, 1 << 40, 1 << 14).n_chunks == 15 * N_AT_ONCE


@many
@given(st.integers(1, 5000), st.integers(1, 600), st.integers(1, 6))
def test_batches_share_the_memory(fitting, wanted, n_batches):
    found = limits(1, fitting, batch_chunks=wanted, batch_nbytes=1, n_batches=n_batches)

    assert found.n_chunks == min(wanted, max(1, fitting // 2))
    assert found.n_batches == min(n_batches + 1, fitting // found.n_chunks)


@many
@given(plans(), st.integers(1, 60))
def test_requests_of_a_piece_bring_all_its_bytes(shards, max_nbytes):
    for row_range in (p for plan in shards for p in plan_row_ranges(plan, RULE)):
        ranges = [wanted for _, wanted in row_range.requests(max_nbytes)]

        assert ranges[0].offset == row_range.first
        assert all(a.offset + a.nbytes == b.offset for a, b in pairwise(ranges))
        assert sum(r.nbytes for r in ranges) == row_range.nbytes
        assert all(r.nbytes <= max_nbytes for r in ranges)
        assert row_range.requests() == [("c/0", (row_range.first, row_range.nbytes))]
