"""Integers of selections and grids, against NumPy's own indexing."""

from itertools import groupby, product
from math import prod

import numpy as np
import pytest
from helpers.data.selections import increasing_wanted, numpy_outer, outer_keys, wanted_indices
from helpers.profiles import many
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xarray_gpuzarr import SelectionError
from xarray_gpuzarr.plan.axis_pieces import (
    cached_shards_of_span,
    intersect_axis,
    runs_of_pieces,
    shards_of_pieces,
    shards_of_span,
    span_of_slice,
)
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import BoxTarget
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

GRID = ChunkGrid(shape=(7, 5), chunk_shape=(2, 3), chunks_per_shard=(2, 1))


def rebuilt(pieces, chunk_length: int) -> np.ndarray:
    """Fill the selection piece by piece, as a decoder does, with element numbers of the whole axis."""
    out = np.full(pieces.length, -1)
    for chunk, out_key, in_key in zip(pieces.chunk.tolist(), pieces.out_keys(), pieces.in_keys(), strict=True):
        elements = chunk * chunk_length + np.arange(chunk_length)
        out[out_key] = elements[in_key]
    return out


@many
@given(increasing_wanted(), st.integers(1, 12))
@example((slice(1, 40, 9), 40), 2)
def test_pieces_of_an_axis_are_its_touched_chunks_and_rebuild_the_selection(wanted_and_length, chunk_length):
    wanted, length = wanted_and_length
    elements = np.arange(length)[wanted]

    pieces = intersect_axis(wanted, length, chunk_length)

    np.testing.assert_array_equal(rebuilt(pieces, chunk_length), elements)
    np.testing.assert_array_equal(pieces.chunk, np.unique(elements // chunk_length))
    assert pieces.count.sum() == pieces.length == len(elements)
    assert (pieces.count > 0).all()


def test_huge_axis_costs_what_is_touched():
    pieces = intersect_axis(slice(10**15, 10**15 + 10), 10**16, 10**6)

    assert pieces.chunk.tolist() == [10**9]
    assert pieces.in_start.tolist() == [0]


@many
@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6).flatmap(outer_keys))
def test_outer_selection_is_numpy_indexing_axis_by_axis(shape_and_key):
    shape, key = shape_and_key
    data = np.arange(np.prod(shape)).reshape(shape)

    outer = outer_selection(key, shape)

    indices = wanted_indices(outer.selectors, shape)
    assert all((np.diff(index) >= 0).all() for index in indices)
    np.testing.assert_array_equal(outer.restore(data[np.ix_(*indices)]), numpy_outer(data, key), strict=True)
    assert outer.shape == numpy_outer(data, key).shape


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        pytest.param(..., (slice(0, 4, 1), slice(0, 5, 1)), id="everything"),
        pytest.param((), (slice(0, 4, 1), slice(0, 5, 1)), id="nothing said"),
        pytest.param(2, (slice(2, 3), slice(0, 5, 1)), id="int"),
        pytest.param(-1, (slice(3, 4), slice(0, 5, 1)), id="negative int"),
        pytest.param((..., np.int8(1)), (slice(0, 4, 1), slice(1, 2)), id="NumPy int after an ellipsis"),
        pytest.param(slice(None, None, -1), (slice(0, 4, 1), slice(0, 5, 1)), id="reversed"),
        pytest.param(slice(3, 1), (slice(3, 3, 1), slice(0, 5, 1)), id="empty"),
        pytest.param(slice(-100, 100, 3), (slice(0, 4, 3), slice(0, 5, 1)), id="clipped"),
    ],
)
def test_slices_are_brought_to_increasing_order(selection, wanted):
    assert outer_selection(selection, (4, 5)).selectors == wanted


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param((0, 0, 0), id="too many indices"),
        pytest.param((..., 0, ...), id="two ellipses"),
        pytest.param(4, id="int past the end"),
        pytest.param(-5, id="int before the start"),
        pytest.param([0, 4], id="list past the end"),
        pytest.param(np.array([-5]), id="array before the start"),
        pytest.param(np.uint64(2**64 - 1), id="unsigned int that would wrap to -1"),
        pytest.param(np.array([2**64 - 1], np.uint64), id="unsigned array that would wrap to -1"),
        pytest.param(2**70, id="int beyond 64 bits"),
        pytest.param(1.0, id="float"),
        pytest.param([0.0, 1.0], id="floats"),
        pytest.param("a", id="text"),
        pytest.param(None, id="new axis"),
        pytest.param(True, id="one boolean"),
        pytest.param([True, False], id="too few booleans"),
        pytest.param(np.ones((4, 5), bool), id="mask of two dimensions"),
        pytest.param(np.zeros((2, 2), int), id="indices of two dimensions"),
        pytest.param([[0], [1, 2]], id="ragged list"),
        pytest.param(slice(0, 4, 0), id="step of zero"),
        pytest.param(slice("a", "b"), id="slice of text"),
        pytest.param(slice(0.5, 2), id="slice of floats"),
    ],
)
def test_selection_that_does_not_fit_is_refused(selection):
    with pytest.raises(SelectionError) as caught:
        outer_selection(selection, (4, 5))

    assert isinstance(caught.value, IndexError)


@many
@given(st.data())
def test_points_are_found_again_in_groups_of_touched_chunks(data):
    n = data.draw(st.integers(0, 30))
    points = [data.draw(hnp.arrays(np.int64, n, elements=st.integers(-size, size - 1))) for size in GRID.shape]
    array = np.arange(35).reshape(7, 5)

    groups = group_points(points, GRID)

    chunks = np.stack([p % size for p, size in zip(points, GRID.shape, strict=True)], axis=1) // GRID.chunk_shape
    np.testing.assert_array_equal(groups.chunk, np.unique(chunks, axis=0))
    group_of = np.repeat(np.arange(len(groups.chunk)), np.diff(groups.bounds))
    element = groups.chunk[group_of] * GRID.chunk_shape + groups.chunk_offset
    out = np.full(n, -1)
    out[groups.position] = array[tuple(element.T)]
    np.testing.assert_array_equal(out, array[tuple(points)])


@pytest.mark.parametrize("points", [([7], [0]), ([0], [-6]), ([2**64 - 1], [0])])
def test_point_outside_the_array_is_refused(points):
    with pytest.raises(SelectionError):
        group_points([np.asarray(p) for p in points], GRID)


@pytest.mark.parametrize(
    ("grid", "shards", "chunks", "shard_shape"),
    [
        (GRID, (2, 2), (4, 2), (4, 3)),
        (ChunkGrid(shape=(8,), chunk_shape=(2,), chunks_per_shard=(2,)), (2,), (4,), (4,)),
        (ChunkGrid(shape=(0,), chunk_shape=(2,), chunks_per_shard=(2,)), (0,), (0,), (4,)),
        (ChunkGrid(shape=(), chunk_shape=(), chunks_per_shard=()), (), (), ()),
    ],
)
def test_grid_counts_include_what_stands_over(grid, shards, chunks, shard_shape):
    assert (grid.n_shards, grid.n_chunks, grid.shard_shape) == (shards, chunks, shard_shape)


SPANS = st.tuples(
    st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(0, 59), st.integers(1, 70), st.integers(1, 30)
)


@many
@given(SPANS)
def test_shards_of_a_slice(numbers):
    length, chunk_length, per_shard, start, stop, step = numbers
    along = span_of_slice(*slice(start, stop, step).indices(length), chunk_length)
    elements = range(start, min(stop, length), step)
    if not elements:
        assert along is None
        return
    chunks = list(dict.fromkeys(i // chunk_length for i in elements))

    found = list(shards_of_span(along, per_shard))

    assert along.n_pieces == len(chunks)
    assert [(at, chunks[which.start : which.stop]) for at, which in found] == [
        (at, list(group)) for at, group in groupby(chunks, lambda chunk: chunk // per_shard)
    ]
    pieces = intersect_axis(slice(start, stop, step), length, chunk_length)
    assert shards_of_pieces(pieces, per_shard) == found


def test_shards_of_few_chunks_alone_are_kept():
    cached_shards_of_span.cache_clear()

    kept = [
        BoxTarget([(slice(n), 600, 1)], (1,)).shards() and cached_shards_of_span.cache_info().currsize for n in (300, 9)
    ]

    assert kept == [0, 1]


@many
@given(st.lists(st.integers(0, 20), max_size=3), st.integers(1, 7))
def test_runs_cover_every_piece_once(n_pieces, most):
    runs = list(runs_of_pieces(n_pieces, most))

    covered = [numbers for run in runs for numbers in product(*run)]

    assert sorted(covered) == sorted(product(*map(range, n_pieces)))
    assert all(prod(map(len, run)) <= most for run in runs)
