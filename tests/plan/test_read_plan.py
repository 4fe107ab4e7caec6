"""Plans: byte ranges, fill boxes and places, worked out by hand or by brute force."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import zarr
from helpers.data.corpus import counting, spec_of, write
from helpers.data.selections import outer_keys
from helpers.loops import require_loops, without_loops
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.read_plan import plan_blocks
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.plan.targets import PointTarget, box_target
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex, ShardIndexSpec

RULE = CoalesceRule(max_gap_nbytes=16, max_nbytes=1000, max_raw_nbytes=1000)
WHOLE = ByteRange(offset=0, nbytes=WHOLE_OBJECT)


@pytest.fixture(scope="module")
def compiled():
    return require_loops()


def column(*numbers):
    return np.asarray(numbers, np.int64)


@pytest.fixture
def sharded(memory):
    """Two shards of four chunks of two elements: 0 1 | 2 3 | 4 5 | 6 7 and 8 9 | 10 11 | - | -."""
    return spec_of(write(memory, counting((12,)), name="t", chunks=(2,), shards=(8,)))


@pytest.fixture
def unsharded(memory):
    """Six chunks of two elements."""
    return spec_of(write(memory, counting((12,)), name="t", chunks=(2,)))


INDEX = ShardIndex(offset=column(100, 0, 0, 110), nbytes=column(10, 20, MISSING, 30))


def plans(spec, selection, index=INDEX):
    target = box_target(outer_selection(selection, spec.grid.shape), spec.grid)
    return [plan_read(spec, target, [block], [index]) for block in plan_blocks(spec, target)]


def requests(plan):
    return [r for lo, hi in pairwise(plan.cut(RULE).tolist()) for r in plan.requests(lo, hi)]


def missing(plan):
    """Coordinates of the chunks of a 1-D plan that take the fill value."""
    return plan.target.pieces[0].chunk[plan.missing_piece_numbers[:, 0]].tolist()


def test_rows_stand_in_the_order_of_their_bytes_and_neighbours_are_one_request(sharded):
    (plan,) = plans(sharded, slice(0, 8))

    assert plan.chunk.tolist() == [[1], [0], [3]]
    assert plan.offset.tolist() == [0, 100, 110]
    assert plan.nbytes.tolist() == [20, 10, 30]
    assert plan.decoded_nbytes == 8 + 8 + 8
    assert requests(plan) == [
        ("t/c/0", ByteRange(offset=0, nbytes=20)),
        ("t/c/0", ByteRange(offset=100, nbytes=10 + 30)),
    ]


@pytest.mark.parametrize(
    ("selection", "index", "wanted", "filled"),
    [
        pytest.param(slice(6, 7), INDEX, [("t/c/0", ByteRange(offset=110, nbytes=30))], [], id="touched chunk"),
        pytest.param(slice(4, 6), INDEX, [], [2], id="missing chunk"),
        pytest.param(slice(8, 12), None, [], [4, 5], id="missing shard"),
    ],
)
def test_only_touched_chunks_that_are_stored_are_requested(sharded, selection, index, wanted, filled):
    (plan,) = plans(sharded, selection, index)

    assert (requests(plan), missing(plan)) == (wanted, filled)


@pytest.mark.parametrize(
    ("selection", "shards"), [(slice(7, 9), ["t/c/0", "t/c/1"]), (slice(8, 12), ["t/c/1"]), (slice(3, 3), [])]
)
def test_every_touched_shard_is_one_plan(sharded, selection, shards):
    assert [plan.keys for plan in plans(sharded, selection)] == [(key,) for key in shards]


def test_unsharded_chunks_are_whole_objects(unsharded):
    (plan,) = plans(unsharded, slice(3, 8))

    assert requests(plan) == [("t/c/1", WHOLE), ("t/c/2", WHOLE), ("t/c/3", WHOLE)]


def test_shards_whose_indexes_are_known_are_one_plan(sharded):
    target = box_target(outer_selection(slice(1, 11), sharded.grid.shape), sharded.grid)
    blocks = list(plan_blocks(sharded, target))

    plan = plan_read(sharded, target, blocks, [INDEX, INDEX])

    assert plan.keys == ("t/c/0", "t/c/1")
    assert plan.object.tolist() == [0, 0, 0, 1, 1]
    assert plan.chunk.tolist() == [[1], [0], [3], [5], [4]]
    assert (plan.offset.tolist(), plan.nbytes.tolist()) == ([0, 100, 110, 0, 100], [20, 10, 30, 20, 10])
    assert missing(plan) == [2]
    assert requests(plan) == [
        ("t/c/0", ByteRange(offset=0, nbytes=20)),
        ("t/c/0", ByteRange(offset=100, nbytes=10 + 30)),
        ("t/c/1", ByteRange(offset=0, nbytes=20)),
        ("t/c/1", ByteRange(offset=100, nbytes=10)),
    ]


@st.composite
def boxes_of_shards(draw):
    """A spec, a target of slices, and the index of each shard that it touches; one that does not exist is None."""
    ndim = draw(st.integers(0, 3))
    chunk_shape = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    per_shard = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shape = tuple(draw(st.integers(1, 40)) for _ in range(ndim))
    grid = ChunkGrid(shape=shape, chunk_shape=chunk_shape, chunks_per_shard=per_shard)
    n = math.prod(per_shard)
    index = ShardIndexSpec(n_chunks=n, location="end", endian="little", checksum=True)
    spec = replace(
        spec_of(zarr.create_array({}, shape=(8,), chunks=(2,), shards=(4,), dtype="i4")), grid=grid, index=index
    )
    selection = tuple(
        slice(draw(st.integers(0, n - 1)), draw(st.integers(0, n + 5)), draw(st.sampled_from([1, 2, 3, 7, 19, 2**40])))
        for n in shape
    )
    target = box_target(outer_selection(selection, shape), grid)
    blocks = list(plan_blocks(spec, target))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    indexes = []
    for _ in blocks:
        nbytes = np.where(rng.random(n) < draw(st.sampled_from([0, 0.3, 1])), MISSING, rng.integers(0, 3, n))
        offset = rng.permutation(3 * n)[:n] if draw(st.booleans()) else 2 * np.arange(n)
        indexes.append(
            ShardIndex(offset=np.where(nbytes == MISSING, 0, offset), nbytes=nbytes) if rng.random() < 0.8 else None
        )
    return spec, target, blocks, indexes


@many
@given(boxes_of_shards())
def test_the_loops_look_up_what_numpy_does(compiled, case):
    spec, target, blocks, indexes = case
    if not blocks:
        return
    with pytest.MonkeyPatch.context() as patch:
        by_loops = plan_read(spec, target, blocks, indexes)
        without_loops(patch)
        by_numpy = plan_read(spec, target, blocks, indexes)

    for name in ("keys", "n_chunks", "n_stored", "longest_nbytes"):
        assert getattr(by_loops, name) == getattr(by_numpy, name)
    np.testing.assert_array_equal(by_loops.piece_numbers, by_numpy.piece_numbers)
    np.testing.assert_array_equal(by_loops.missing_piece_numbers, by_numpy.missing_piece_numbers)
    for name in ("object", "offset", "nbytes"):
        np.testing.assert_array_equal(getattr(by_loops, name), getattr(by_numpy, name))
    entries = zip(by_loops.object, by_loops.offset, by_loops.nbytes, strict=True)
    found = dict(zip(map(tuple, by_loops.chunk.tolist()), map(list, entries), strict=True))
    for number, (block, index) in enumerate(zip(blocks, indexes, strict=True)):
        for chunk in target.chunk_coordinates(block.piece_numbers).tolist():
            at = 0
            for c, n in zip(chunk, spec.grid.chunks_per_shard, strict=True):
                at = at * n + c % n
            stored = index is not None and index.nbytes[at] != MISSING
            assert found.pop(tuple(chunk), None) == ([number, index.offset[at], index.nbytes[at]] if stored else None)
    assert not found


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda grid: PointTarget(groups=group_points([column(9, 0, 7, 1, 9)], grid)), id="points"),
        pytest.param(lambda grid: stack_target([Crops(start=column(7, 0, 7), count=2)], 3, grid), id="crops"),
    ],
)
def test_points_and_crops_of_one_shard_are_one_plan(sharded, make):
    target = make(sharded.grid)

    blocks = list(plan_blocks(sharded, target))

    assert [(b.key, target.chunk_coordinates(b.piece_numbers).tolist()) for b in blocks] == [
        ("t/c/0", [[0], [3]]),
        ("t/c/1", [[4]]),
    ]


def test_crops_of_one_shard_in_disorder_are_planned_in_the_order_of_bytes(sharded):
    target = stack_target([Crops(start=column(4, 0, 2, 1), count=3)], 4, sharded.grid)
    (block,) = plan_blocks(sharded, target)

    plan = plan_read(sharded, target, [block], [INDEX])

    assert plan.chunk.tolist() == [[1], [0], [3]]
    assert target.chunk_coordinates(plan.missing_piece_numbers).tolist() == [[2]]


def test_unsharded_chunks_that_crops_share_are_asked_for_once(unsharded):
    target = stack_target([Crops(start=column(3, 2, 3), count=4)], 3, unsharded.grid)
    (block,) = plan_blocks(unsharded, target)

    assert plan_read(unsharded, target, [block], [None]).keys == ("t/c/1", "t/c/2", "t/c/3")


@pytest.mark.parametrize(
    ("encoding", "coord", "key"),
    [
        pytest.param({"name": "default", "separator": "/"}, (1, 0), "g/t/c/1/0", id="v3 default"),
        pytest.param({"name": "default", "separator": "."}, (1, 0), "g/t/c.1.0", id="v3 default with dots"),
        pytest.param({"name": "v2", "separator": "."}, (1, 0), "g/t/1.0", id="v3 naming as v2"),
        pytest.param({"name": "v2", "separator": "/"}, (1, 0), "g/t/1/0", id="v3 naming as v2 with slashes"),
    ],
)
def test_chunk_key(memory, encoding, coord, key):
    spec = spec_of(write(memory, counting((4, 4)), name="g/t", chunks=(2, 2), chunk_key_encoding=encoding))

    assert spec.keys.key(coord) == key


@pytest.mark.parametrize(("zarr_format", "key"), [(2, "0"), (3, "c")])
def test_chunk_key_of_an_array_without_axes(memory, zarr_format, key):
    spec = spec_of(write(memory, np.array(1), zarr_format=zarr_format))

    assert spec.keys.key(()) == key


@many
@given(st.data())
def test_places_of_chunks_are_those_that_numpy_gives(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7))
    chunk_shape = data.draw(st.tuples(*(st.integers(1, 4) for _ in shape)))
    _, key = data.draw(outer_keys(shape))
    grid = ChunkGrid(shape=shape, chunk_shape=chunk_shape, chunks_per_shard=(1,) * len(shape))
    target = box_target(outer_selection(key, shape), grid)
    rows = np.stack([g.ravel() for g in np.indices([len(p.chunk) for p in target.pieces])], axis=1)

    flat = np.arange(np.prod(target.shape)).reshape(target.shape)

    places = OutputBoxes(target.pieces, chunk_shape, [stride // flat.itemsize for stride in flat.strides])
    placed = places.place(rows)

    out_keys = [pieces.out_keys() for pieces in target.pieces]
    boxes = [flat[tuple(keys[i] for keys, i in zip(out_keys, row, strict=True))] for row in rows]
    assert placed.out_offset.tolist() == [box.min() for box in boxes]
    assert placed.contiguous.tolist() == [box.max() - box.min() + 1 == box.size for box in boxes]
    assert places.may_be_contiguous or not (placed.contiguous & placed.whole).any()


@pytest.mark.parametrize(("selection", "whole"), [(slice(1, 6), [False, True, True]), (slice(0, 4, 2), [False, False])])
def test_whole_chunks_are_told_from_parts(sharded, selection, whole):
    target = box_target(outer_selection(selection, (12,)), sharded.grid)

    placed = OutputBoxes(target.pieces, (2,), (1,)).place(column(*range(len(whole)))[:, None])

    assert placed.whole.tolist() == whole


@pytest.mark.parametrize(
    "target_of",
    [
        pytest.param(lambda grid: box_target(outer_selection((slice(0, 4),), grid.shape), grid), id="box"),
        pytest.param(lambda grid: PointTarget(groups=group_points([column(0, 1)], grid)), id="points"),
    ],
)
def test_a_plan_of_no_chunks_has_the_columns_of_any_other(sharded, target_of):
    target = target_of(sharded.grid)
    (block,) = plan_blocks(sharded, target)
    plan = plan_read(sharded, target, [block], [INDEX])

    empty = plan.take(column(), plan.missing_piece_numbers[:0])

    assert empty.piece_numbers.shape == empty.missing_piece_numbers.shape == empty.chunk.shape == (0, 1)
    assert (empty.n_chunks, empty.longest_nbytes, empty.cut(RULE).tolist()) == (0, 0, [0])
