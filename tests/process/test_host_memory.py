"""Memory of large results begins at a line of the cache; in all else they are ordinary arrays."""

import numpy as np
import pytest
import zarr
from helpers.data.corpus import counting, write
from helpers.data.datasets import open_ours
from zarr.storage import MemoryStore

from xarray_gpuzarr.process import host_memory

LARGE = 2 * host_memory.ALIGNED_NBYTES


def begins_a_line(array):
    return array.__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, LARGE])
def test_memory_has_its_length_from_the_start_of_a_line_on(nbytes):
    several = [host_memory.aligned(nbytes) for _ in range(9)]

    assert all(begins_a_line(memory) for memory in several)
    assert [memory.shape for memory in several] == [(nbytes,)] * 9


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (LARGE,), (7, LARGE // 7 + 1)])
@pytest.mark.parametrize("dtype", ["u1", ">f8", "c16", "O", "M8[ns]"])
def test_arrays_are_what_numpy_would_give(shape, dtype):
    array = host_memory.empty(shape, np.dtype(dtype))
    expected = np.empty(shape, dtype)

    assert (array.shape, array.strides, array.dtype) == (expected.shape, expected.strides, expected.dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = expected


@pytest.fixture
def variable():
    """A function that opens a stored variable."""
    store = MemoryStore()
    zarr.create_group(store)
    write(store, counting((LARGE // 8, 4)), name="v", chunks=(LARGE // 32, 4), dimension_names=["y", "x"])
    return lambda **options: open_ours(store, consolidated=False, **options)["v"]


@pytest.mark.parametrize("options", [{}, {"chunks": {}}], ids=str)
def test_results_begin_a_line(variable, options):
    assert begins_a_line(variable(**options).load().values)


def test_blocks_begin_a_line(variable):
    flags = variable(chunks={}).data.map_blocks(lambda block: np.array([[begins_a_line(block)]]), dtype=bool)

    assert flags.compute().all()
