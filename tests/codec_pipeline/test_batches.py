"""Pieces of a selection become that selection again, or nothing: what is odd is zarr-python's to read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.codec_pipeline.batches import join_batch


def ask(pieces, out_shape, shard_shape=(4, 3), drop_axes=()):
    """Put pieces, (shard, what is wanted of it, where that goes), together."""
    batch = [(None, None, inside, place, False) for _, inside, place in pieces]
    return join_batch([coord for coord, _, _ in pieces], batch, shard_shape, out_shape, drop_axes)


@given(data=st.data())
def test_slices_of_one_shard_are_the_same_selection(data):
    shard_shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    coord = tuple(data.draw(st.integers(0, 3)) for _ in shard_shape)
    inside = tuple(slice(data.draw(st.integers(0, n - 1)), n, data.draw(st.integers(1, 4))) for n in shard_shape)
    out_shape = tuple(len(range(*one.indices(n))) for one, n in zip(inside, shard_shape, strict=True))
    place = tuple(map(slice, out_shape))

    found = ask([(coord, inside, place)], out_shape, shard_shape)

    stored = np.arange(4 * max(shard_shape))
    for at, n, one, wanted in zip(coord, shard_shape, inside, found.outer.selectors, strict=True):
        np.testing.assert_array_equal(stored[at * n : (at + 1) * n][one], stored[wanted])
    assert found.outer.undo == ()
    assert found.bounds == tuple((at + 1) * n for at, n in zip(coord, shard_shape, strict=True))


whole = (slice(0, 4), slice(0, 3))
ODD = {
    "a shard twice": ([((0, 0), whole, whole), ((0, 0), whole, whole)], (4, 3)),
    "a shard of a product is missing": (
        [((0, 0), whole, whole), ((0, 1), whole, (whole[0], slice(3, 6))), ((1, 0), whole, (slice(4, 8), whole[1]))],
        (8, 6),
    ),
    "shards of an axis differ": (
        [((0, 0), whole, whole), ((0, 1), (slice(0, 2), slice(0, 3)), (slice(0, 4), slice(3, 6)))],
        (4, 6),
    ),
    "a part of the output is left": ([((0, 0), whole, whole)], (5, 3)),
    "places overlap": ([((0, 0), whole, whole), ((1, 0), whole, (slice(2, 6), slice(0, 3)))], (8, 3)),
    "steps change": (
        [
            ((0, 0), (slice(0, 4, 2), slice(0, 3)), (slice(0, 2), slice(0, 3))),
            ((1, 0), whole, (slice(2, 6), slice(0, 3))),
        ],
        (6, 3),
    ),
    "backwards": ([((0, 0), (slice(3, None, -1), slice(0, 3)), whole)], (4, 3)),
    "backwards in the output": ([((0, 0), whole, (slice(3, None, -1), slice(0, 3)))], (4, 3)),
    "beside the output": ([((0, 0), whole, (slice(1, 5), slice(0, 3)))], (4, 3)),
    "other numbers of axes": ([((0, 0), whole, whole)], (4, 3, 1)),
    "lists": ([((0, 0), ([0, 1], slice(0, 3)), (slice(0, 2), slice(0, 3)))], (2, 3)),
    "no index": ([((0, 0), (None, slice(0, 3)), (slice(0, 1), slice(0, 3)))], (1, 3)),
    "outside the shard": ([((0, 0), (np.array([4]), slice(0, 3)), (slice(0, 1), slice(0, 3)))], (1, 3)),
    "from the end": ([((0, 0), (np.array([-1]), slice(0, 3)), (slice(0, 1), slice(0, 3)))], (1, 3)),
    "a place twice": ([((0, 0), (np.array([0, 1]), slice(0, 3)), (np.array([0, 0]), slice(0, 3)))], (2, 3)),
    "all at once": ([((0, 0), Ellipsis, (slice(0, 4), slice(0, 3)))], (4, 3)),
    "points that are left": ([((0, 0), (np.array([0]), np.array([0])), slice(0, 1))], (2,)),
    "points outside": ([((0, 0), (np.array([4]), np.array([0])), slice(0, 1))], (1,)),
    "points that are slices": ([((0, 0), whole, slice(0, 4))], (4,)),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_odd_is_nothing(kind):
    pieces, out_shape = ODD[kind]

    assert ask(pieces, out_shape) is None
