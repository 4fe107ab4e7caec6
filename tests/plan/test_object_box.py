"""Boxes of single objects: together they are the selection, each element once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.plan.object_box import object_boxes
from xarray_gpuzarr.plan.read_plan import box_target
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@st.composite
def grids(draw):
    chunks = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    per_shard = tuple(draw(st.integers(1, 3)) for _ in chunks)
    shape = tuple(draw(st.integers(1, 20)) for _ in chunks)
    return ChunkGrid(shape=shape, chunk_shape=chunks, chunks_per_shard=per_shard)


@given(grid=grids(), data=st.data())
def test_boxes_are_the_selection(grid, data):
    numbers = np.arange(np.prod(grid.shape)).reshape(grid.shape)
    selection = tuple(slice(data.draw(st.integers(0, n)), n, data.draw(st.integers(1, 25))) for n in grid.shape)
    target = box_target(outer_selection(selection, grid.shape), grid)
    found = np.full(target.shape, -1)

    for box, at in object_boxes(target, grid):
        start = [c * n + first for c, n, first in zip(box.coord, grid.shard_shape, box.first, strict=True)]
        inside = tuple(slice(s, s + (n - 1) * k + 1, k) for s, n, k in zip(start, box.count, box.step, strict=True))
        place = tuple(slice(a, a + n) for a, n in zip(at, box.count, strict=True))
        assert (found[place] == -1).all()
        found[place] = numbers[inside]
        touched = [
            len(set((np.arange(n)[k] // c).tolist()))
            for k, n, c in zip(inside, grid.shape, grid.chunk_shape, strict=True)
        ]
        assert np.prod(touched) <= box.most_chunks(grid.chunk_shape) <= np.prod(box.count)

    np.testing.assert_array_equal(found, numbers[selection])
