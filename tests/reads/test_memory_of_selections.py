"""What a selection takes beside its result and one chunk is by the selection, not by the axes of the array."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.loops import without_loops
from helpers.traced import takes_less_than
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import batches, read_array

N = 1 << 23
LAYOUTS = {
    "one axis": ((N,), (N,), {"compressors": ZstdCodec()}),
    "one axis, raw": ((N,), (N,), {"compressors": None}),
    "one axis in a shard": ((N,), (N // 4,), {"shards": (N,)}),
    "long rows": ((2, N // 2), (2, N // 2), {}),
    "short rows": ((N // 2, 2), (N // 2, 2), {}),
}
ONE_AXIS = [[0, 5, 100], [N - 1, 0, 0], slice(0, N, N // 3), slice(5, 9), [7]]
TWO_AXES = [([0], [0, 5, 100]), ([1, 0], slice(0, 3)), ([1], slice(5, 900)), (slice(None), [7])]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    store = LocalStore(tmp_path_factory.mktemp("long"))
    for name, (shape, chunks, keywords) in LAYOUTS.items():
        array = zarr.create_array(store, name=name, shape=shape, chunks=chunks, dtype="u1", **keywords)
        array[...] = np.resize(np.arange(251, dtype="u1"), shape)
    return {name: zarr.open_array(store, path=name, mode="r") for name in LAYOUTS}


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_few_elements_of_a_long_chunk_take_its_bytes_and_no_more(arrays, monkeypatch, name, loops):
    if not loops:
        without_loops(monkeypatch)
    array = arrays[name]
    for selection in ONE_AXIS if array.ndim == 1 else TWO_AXES:
        swapped = selection[::-1] if name == "short rows" else selection
        if name == "short rows":
            swapped = tuple([0, 1] if part == slice(None) else part for part in swapped)

        with takes_less_than(2.5 * N):  # the encoded chunk, and the decoded one
            found = read_array(array, swapped, device="host")

        np.testing.assert_array_equal(found, array.oindex[swapped])


def test_batches_of_a_long_axis_that_was_indexed(tmp_path):
    """Selections of what lies in several stores are followed without a number for each element."""
    n = 1 << 20
    for name in "ab":
        xr.Dataset({"v": ("x", np.resize(np.arange(251, dtype="u1"), n))}).to_zarr(tmp_path / name, consolidated=False)
    opened = [
        xr.open_dataset(tmp_path / name, engine="gpuzarr", device="host", consolidated=False, chunks={})
        for name in "ab"
    ]
    whole = xr.concat(opened, "x")
    index = np.array([0, n - 1, n, 2 * n - 1, -1, -2 * n])

    (batch,) = batches(whole.isel(x=index), {"x": 6}, 1)

    np.testing.assert_array_equal(batch.v.data[0], np.resize(np.arange(251), n)[index % n])
