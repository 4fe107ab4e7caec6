"""Results that no machine has room for are refused before shards, chunks or pieces of them are listed."""

import subprocess
import sys

import numpy as np
import pytest
import zarr
from helpers.data.corpus import counting, write
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.plan.targets import BoxTarget

LAYOUTS = {
    "chunks": "((2**50,), (64,), None)",
    "shards": "((2**50,), (64,), (256,))",
    "grid of chunks": "((2**25, 2**25), (1, 64), None)",
    "grid of shards": "((2**25, 2**25), (1, 64), (2, 256))",
}
DOORS = {
    "read_array": "read_array(array, device='host')",
    "every third": "read_array(array, slice(1, None, 3), device='host')",
    "beside an index array": "read_array(array, (np.arange(2**20), ...) if array.ndim == 2 else (slice(1, None),))",
    "xarray": "xr.open_dataset(store, engine='gpuzarr', device='host', consolidated=False).v.values",
    "zarr-python": "piped(array)",
    "batches": "next(iter(batches(xr.open_dataset(store, engine='gpuzarr', device='host', consolidated=False), "
    "dict(zip('ab', array.shape, strict=False)), 1)))",
}
REFUSED = """
import resource, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, xarray as xr, zarr
from xarray_gpuzarr import batches, read_array, zarr_pipeline

def piped(_):
    with zarr_pipeline():
        return zarr.open_group(store, mode="r")["v"][...]

shape, chunks, shards = {layout}
store = zarr.storage.MemoryStore()
array = zarr.create_group(store).create_array(
    "v", shape=shape, chunks=chunks, shards=shards, dtype="u1", dimension_names=list("ab")[: len(shape)])
read_array(array, (0,) * len(shape), device="host")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (2**32, 2**32))
signal.alarm(60)
try:
    {door}
except MemoryError:
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print("refused", "at once" if grown < 200_000 else f"after {{grown}} KiB")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("door", DOORS)
def test_a_result_that_nothing_has_room_for_is_refused_at_once(door, layout):
    code = REFUSED.format(door=DOORS[door], layout=LAYOUTS[layout])

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stdout) == (0, "refused at once\n"), done.stderr


@pytest.mark.parametrize("shards", [None, (256, 2)])
@pytest.mark.parametrize("shape", [(2**50, 0), (0, 2**50)])
def test_a_result_without_elements_takes_nothing_however_long_its_axes(shape, shards):
    array = zarr.create_array(MemoryStore(), shape=shape, chunks=(64, 1), shards=shards, dtype="u1")

    for key in (..., (slice(None, None, 7), slice(None)), (slice(None, None, -1), [])):
        found = read_array(array, key, device="host")

        assert found.shape == np.broadcast_to(np.uint8(0), shape)[key].shape


def test_few_elements_of_a_long_axis_take_their_own_chunks():
    array = zarr.create_array(MemoryStore(), shape=(2**50,), chunks=(64,), shards=(256,), dtype="u1", fill_value=7)
    array[2**49] = 3

    found = read_array(array, slice(None, None, 2**48), device="host")

    assert found.tolist() == [7, 7, 3, 7]


def test_shards_of_a_long_axis_are_listed_one_by_one():
    shards = BoxTarget([(slice(2**45), 2**45, 1), (slice(1, 2**45, 3), 2**45, 1)], (4, 2)).shards()

    assert [next(shards), next(shards)] == [((0, range(4)), (0, range(1))), ((0, range(4)), (2, range(1, 2)))]


@pytest.mark.parametrize("layout", [{"chunks": (1, 1, 1)}, {"chunks": (1, 1, 1), "shards": (2, 3, 1)}])
def test_many_chunks_along_every_axis_are_read_as_few(layout):
    data = counting((9, 7, 8))
    array = write(MemoryStore(), data, **layout)

    for key in (..., (slice(None, None, 2), slice(1, None), slice(None, None, 3)), (slice(None), [6, 0, 2])):
        np.testing.assert_array_equal(read_array(array, key, device="host"), data[key])
