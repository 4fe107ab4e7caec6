"""Arrays of which hardly anything is stored: a read holds no plans of shards that are not there."""

import tracemalloc

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import read_array

N_SHARDS = 4096
MOST_NBYTES = 2 * 1024**2
"""A quarter of what the plans of all shards take together."""


@pytest.mark.parametrize("make", [LocalStore, lambda _: MemoryStore()], ids=["files", "memory"])
def test_shards_that_are_not_there_take_no_memory(tmp_path, make):
    array = zarr.create_array(make(tmp_path), shape=4 * N_SHARDS, chunks=1, shards=4, dtype="u1", fill_value=7)
    array[:4] = np.arange(4)
    read_array(array, slice(64), device="host")

    tracemalloc.start()
    try:
        values = read_array(array, device="host")
        _, most_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert values.tolist() == [0, 1, 2, 3, *[7] * (4 * N_SHARDS - 4)]
    assert most_nbytes < MOST_NBYTES
