"""Selections with numbers that int64 has no place for, beside every other kind of index, against NumPy's own."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.corpus import counting, write
from helpers.data.selections import numpy_outer
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array, zarr_pipeline

SHAPES = {(7, 5, 4): (4, 3, 4), (7, 0, 4): None}
"""Shapes of arrays and of their shards."""
NEAR = [None, 0, 1, 3, -1, -2, -7]
FAR = [sign * 2**power + offset for sign in (1, -1) for power in (31, 62, 63, 64, 70) for offset in (-1, 0)]


@pytest.fixture(scope="module")
def stores():
    found = {}
    for shape, shards in SHAPES.items():
        found[shape] = MemoryStore()
        zarr.create_group(found[shape])
        write(found[shape], counting(shape), name="t", chunks=(2, 1, 2), shards=shards, dimension_names=("z", "y", "x"))
    return found


def _keys_of_axis(length, steps):
    ends = st.sampled_from([*NEAR, *FAR])
    flags = st.lists(st.booleans(), min_size=length, max_size=length).map(lambda flags: np.array(flags, bool))
    slices = st.builds(slice, ends, ends, st.sampled_from(steps))
    if not length:
        return slices  # zarr-python takes no booleans here
    indices = st.integers(-length, length - 1)
    return slices | flags | indices | st.lists(indices, max_size=3).map(lambda index: np.array(index, np.int64))


def _keys(steps):
    """Return a strategy of shapes, each with one index per axis, whose slices have one of these steps."""
    return st.sampled_from(list(SHAPES)).flatmap(
        lambda shape: st.tuples(st.just(shape), st.tuples(*(_keys_of_axis(length, steps) for length in shape)))
    )


BACK_AND_FORTH = [number for number in [*NEAR, *FAR] if number != 0]
FORTH = [number for number in BACK_AND_FORTH if number is None or number > 0]


@given(_keys(BACK_AND_FORTH))
@example(((7, 5, 4), (slice(None, None, 2**63), np.array([1, 0]), slice(None, None, -(2**63)))))
@example(((7, 0, 4), (slice(None), slice(None), slice(None, None, 2**63))))
def test_arrays_take_numbers_beyond_int64(stores, shape_and_key):
    shape, key = shape_and_key
    expected = numpy_outer(counting(shape), key)

    array = zarr.open_array(stores[shape], path="t", mode="r")
    np.testing.assert_array_equal(read_array(array, key, device="host"), expected, strict=True)


@given(_keys(FORTH))
@example(((7, 5, 4), (slice(None, None, 2**63), np.array([1, 0]), slice(1, 2**64, 2**70))))
@example(((7, 0, 4), (slice(None), slice(None), slice(None, None, 2**63))))
def test_lazy_variables_and_zarr_python_take_numbers_beyond_int64(stores, shape_and_key):
    shape, key = shape_and_key
    expected = numpy_outer(counting(shape), key)

    lazy = xr.open_dataset(stores[shape], engine="gpuzarr", device="host", consolidated=False, mask_and_scale=False)[
        "t"
    ]
    np.testing.assert_array_equal(lazy.isel(dict(zip("zyx", key, strict=True))).values, expected, strict=True)
    with zarr_pipeline():
        array = zarr.open_array(stores[shape], path="t", mode="r")
        np.testing.assert_array_equal(array.oindex[key], expected)
