"""Plans -> batches -> segments: every row once and in order, none larger than it may be, none smaller than it must."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.effort import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.byte_range import CoalesceRule
from xarray_gpuzarr.codec_json import parse_codecs
from xarray_gpuzarr.decoders.cuda.batches import Piece, aligned, cut_batches, cut_segments
from xarray_gpuzarr.grid import ChunkGrid, outer_selection
from xarray_gpuzarr.metadata import ArraySpec, KeyEncoding
from xarray_gpuzarr.plan import Block, box_target, plan_read
from xarray_gpuzarr.shard_index import ShardIndex, ShardIndexSpec

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
    return plan_read(spec, target, Block(key="c/0", row=np.arange(n)[:, None]), index)


def rows_of(pieces):
    """Return (plan, row) of all chunks, in order."""
    return [(id(p.plan), row) for p in pieces for row in range(p.lo, p.hi)]


def span(piece, lo, hi):
    """Return how many bytes rows of a piece's plan take from first to last."""
    return int(piece.plan.offset[hi - 1] + piece.plan.nbytes[hi - 1] - piece.plan.offset[lo])


@many
@given(plans(), st.integers(1, 12), st.integers(1, 400))
def test_batches_hold_every_row_once_and_no_more_than_they_may(shards, most, most_nbytes):
    batches = list(cut_batches(iter(shards), most, most_nbytes, RULE))

    pieces = [piece for batch in batches for piece in batch.pieces]
    assert rows_of(pieces) == [(id(plan), row) for plan in shards for row in range(len(plan.offset))]
    assert all(batch.n_chunks <= most for batch in batches)
    assert all(sum(p.nbytes for p in b.pieces) <= most_nbytes or b.n_chunks == 1 for b in batches)
    assert all((p.first, p.nbytes) == (int(p.plan.offset[p.lo]), span(p, p.lo, p.hi)) for p in pieces)


@many
@given(plans(), st.integers(1, 300))
def test_segments_fill_slots(shards, slot_nbytes):
    pieces = [p for batch in cut_batches(iter(shards), 2**62, 2**62, RULE) for p in batch.pieces]

    segments = cut_segments(pieces, slot_nbytes)

    assert rows_of([p for s in segments for p in s]) == rows_of(pieces)
    for segment, following in pairwise([*segments, []]):
        used = sum(aligned(p.nbytes) for p in segment[:-1])
        assert used + segment[-1].nbytes <= slot_nbytes or len(rows_of(segment)) == 1
        if following:
            last, first = segment[-1], following[0]
            if last.plan is first.plan and first.first - last.first - last.nbytes <= RULE.max_gap_nbytes:
                more = used + span(last, last.lo, last.hi + 1)
            else:
                more = used + aligned(last.nbytes) + span(first, first.lo, first.lo + 1)
            assert more > slot_nbytes


@many
@given(plans(), st.integers(1, 60))
def test_requests_of_a_piece_bring_all_its_bytes(shards, most_nbytes):
    for piece in (p for batch in cut_batches(iter(shards), 5, 2**62, RULE) for p in batch.pieces):
        ranges = [wanted for _, wanted in piece.requests(most_nbytes)]

        assert ranges[0].offset == piece.first
        assert all(a.offset + a.nbytes == b.offset for a, b in pairwise(ranges))
        assert sum(r.nbytes for r in ranges) == piece.nbytes
        assert all(r.nbytes <= most_nbytes for r in ranges)
        assert piece.requests() == [("c/0", (piece.first, piece.nbytes))]


@pytest.mark.parametrize(
    ("room", "at_least", "n"), [(0, False, 0), (9, False, 0), (10, False, 1), (24, False, 2), (9, True, 1)]
)
def test_piece_is_split_where_room_ends(room, at_least, n):
    piece = Piece.of(plan_of([(7, 10), (0, 10), (5, 10)]), 0, 3)

    head, left = piece.split(room, at_least=at_least)

    assert (head.hi if head else 0, left.lo) == (n, n)
    assert piece.split(35, at_least=False) == (piece, None)
