"""Crops that are stacked: each chunk once, with every box that it gives, by brute force."""

import numpy as np
import pytest
from helpers.data.stacks import numpy_stack, stacks
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xarray_gpuzarr import SelectionError
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid


def column(*numbers):
    return np.asarray(numbers, np.int64)


@st.composite
def stacked(draw):
    """(shape, chunk shape, what samples want along each axis, number of samples)."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))
    chunk_shape = draw(st.tuples(*(st.integers(1, 4) for _ in shape)))
    return shape, chunk_shape, *draw(stacks(shape))


def grid_of(shape, chunk_shape, chunks_per_shard=None):
    return ChunkGrid(shape=shape, chunk_shape=chunk_shape, chunks_per_shard=chunks_per_shard or (1,) * len(shape))


def boxes_of(target):
    """(chunk coordinate, index into the chunk, index into the output) of every box."""
    in_keys = [pieces.in_keys() for pieces in target.pieces[1:]]
    out_keys = [pieces.out_keys() for pieces in target.pieces]
    for group in range(target.n_chunks):
        for numbers in target.boxes(column([group])).tolist():
            picked = [keys[i] for keys, i in zip(in_keys, numbers[1:], strict=True)]
            yield (
                target.groups.chunk[group].tolist(),
                picked,
                tuple(keys[i] for keys, i in zip(out_keys, numbers, strict=True)),
            )


def part_of(data, chunk_shape, at, picked):
    """Elements of a chunk, as an array with a leading axis of one."""
    firsts = [i * n for i, n in zip(at, chunk_shape, strict=True)]
    keys = [first + np.arange(n)[key] for first, n, key in zip(firsts, chunk_shape, picked, strict=True)]
    return data[np.ix_(*keys)][None]


@many
@given(stacked())
def test_boxes_bring_every_element_to_its_place_once(case):
    shape, chunk_shape, axes, n_samples = case
    data = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = numpy_stack(data, axes, n_samples)

    target = stack_target(axes, n_samples, grid_of(shape, chunk_shape))

    out, n_written = np.zeros_like(expected), np.zeros(expected.shape, int)
    for chunk, picked, place in boxes_of(target):
        out[place] = part_of(data, chunk_shape, chunk, picked)
        n_written[place] += 1
    assert target.shape == expected.shape
    np.testing.assert_array_equal(n_written, 1)
    np.testing.assert_array_equal(out, expected)


@many
@given(stacked())
def test_every_touched_chunk_is_there_once_in_c_order(case):
    shape, chunk_shape, axes, n_samples = case
    coordinates = np.indices(shape).reshape((len(shape), *shape)) // np.reshape(
        chunk_shape, (len(shape), *[1] * len(shape))
    )
    touched = np.stack([numpy_stack(axis, axes, n_samples).ravel() for axis in coordinates]) if shape else None

    target = stack_target(axes, n_samples, grid_of(shape, chunk_shape))

    expected = [[]] * min(n_samples, 1) if touched is None else sorted(set(map(tuple, touched.T.tolist())))
    assert target.groups.chunk.tolist() == [list(chunk) for chunk in expected]
    assert target.n_chunks == len(expected)


@many
@given(stacked())
def test_places_of_boxes_are_those_that_numpy_gives(case):
    shape, chunk_shape, axes, n_samples = case
    target = stack_target(axes, n_samples, grid_of(shape, chunk_shape))

    flat = np.arange(np.prod(target.shape, dtype=int)).reshape(target.shape)
    strides = [stride // flat.itemsize for stride in flat.strides]

    placed = OutputBoxes(target.pieces, (1, *chunk_shape), strides).place(target.groups.boxes)

    boxes = [flat[place] for _, _, place in boxes_of(target)]
    assert placed.out_offset.tolist() == [box.min() for box in boxes]
    assert placed.contiguous.tolist() == [box.max() - box.min() + 1 == box.size for box in boxes]


def test_chunks_of_a_grid_beyond_what_int64_counts():
    grid = grid_of((2**62, 2**62), (1, 1))
    start = column(2**62 - 1, 0, 2**62 - 1)

    target = stack_target([Crops(start=start, count=1), Crops(start=start, count=1)], 3, grid)

    assert target.groups.chunk.tolist() == [[0, 0], [2**62 - 1, 2**62 - 1]]
    assert np.diff(target.groups.bounds).tolist() == [1, 2]


@pytest.mark.parametrize(("n", "chunk_length"), [(2**14, 1), (2**61, 1), (2**61, 2**10)])
def test_more_boxes_than_can_be_counted_are_a_lack_of_memory(n, chunk_length):
    each = Crops(start=column(0, 1), count=n)

    with pytest.raises(MemoryError, match="of a stack"):
        stack_target([each, slice(None), slice(None)], 2, grid_of((n + 1, 2**17, 2**17), (chunk_length, 1, 1)))


@pytest.mark.parametrize(
    ("axis", "found"),
    [
        pytest.param(Crops(start=column(0, 9), count=4), "index 9 and 3 elements behind it", id="beyond the end"),
        pytest.param(Crops(start=column(0, 1), count=4, step=4), "index 0 and 12 elements behind it", id="wide steps"),
        pytest.param(Crops(start=column(0, -1), count=1), "index -1", id="before the start"),
        pytest.param(Crops(start=column(0), count=1), "1 elements each", id="too few starts"),
        pytest.param(Crops(start=column(0, 1), count=1, step=0), "0 apart", id="no step"),
        pytest.param(Crops(start=column(0, 1), count=-1), "-1 elements each", id="fewer than no elements"),
        pytest.param(Crops(start=np.array([0.0, 1.0]), count=1), "dtype float64", id="starts of float64"),
        pytest.param(
            Crops(start=column(0, 1), count=np.int64(2**62), step=np.int64(4)), "elements behind it", id="beyond int64"
        ),
        pytest.param(slice(5, 0, -1), "slice(5, 0, -1)", id="backwards"),
        pytest.param(column(0, 12), "index 12", id="index beyond the end"),
        pytest.param(column(-1, 0), "index -1", id="index before the start"),
        pytest.param(column(1, 0), "decrease", id="indices that decrease"),
        pytest.param(column([0, 3, 4], [0, 2, 1]), "decrease", id="a row that decreases"),
        pytest.param(column([0, 1]), "shape (1, 2)", id="too few rows"),
        pytest.param(np.array([[True], [False]]), "dtype bool", id="masks"),
        pytest.param(np.zeros((2, 1, 1), np.int64), "shape (2, 1, 1)", id="too many axes"),
    ],
)
def test_crops_that_do_not_fit_are_refused(axis, found):
    with pytest.raises(SelectionError) as caught:
        stack_target([axis], 2, grid_of((12,), (2,)))

    assert found in caught.value.found
