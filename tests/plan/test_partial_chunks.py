"""Chunks of which a read takes a part, compared with counting their elements one by one."""

from collections import Counter
from itertools import product

from helpers.data.selections import all_axis_keys
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.plan.partial_chunks import PartialChunks, takes_part
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


@st.composite
def boxes(draw):
    """Draw a grid of chunks and a selection of its elements."""
    chunk_shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
    shape = tuple([draw(st.integers(1, 9)) for _ in chunk_shape])
    grid = ChunkGrid(shape=shape, chunk_shape=chunk_shape, chunks_per_shard=(1,) * len(shape))
    keys = draw(st.one_of(st.tuples(*map(st.slices, shape)), all_axis_keys(shape)))
    return grid, outer_selection(keys, shape)


def count_partial(grid, selection):
    """Return the numbers of touched chunks, and of those among them that are not taken as a whole.

    Along some axis, fewer elements of these are taken than lie in the array. Repeated elements count each time.
    """
    axes = []
    for key, length, n in zip(selection.selectors, grid.shape, grid.chunk_shape, strict=True):
        elements = range(length)[key] if isinstance(key, slice) else key.tolist()
        taken = Counter(element // n for element in elements)
        axes.append([n_taken < min(n, length - chunk * n) for chunk, n_taken in taken.items()])
    chunks = [any(are_partial) for are_partial in product(*axes)]
    return len(chunks), sum(chunks)


@many
@given(boxes())
def test_partial_chunks_are_those_with_elements_that_are_not_taken(box):
    grid, selection = box
    target = box_target(selection, grid)
    n_chunks, n_partial = count_partial(grid, selection)

    partial = PartialChunks(target, grid)

    if target.n_chunks:
        assert partial.n_partial == n_partial
        assert partial.none_is_partial == (n_partial == 0)
    if target.spans is not None and n_chunks:
        assert takes_part(target) == (n_partial > 0)
