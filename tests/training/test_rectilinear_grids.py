"""Samples of arrays whose shards differ in length, which zarr-python reads."""

import numpy as np
import pytest
import zarr
from helpers.data.corpus import write
from helpers.data.datasets import open_ours
from helpers.older_versions import needs_rectilinear_grids
from zarr.storage import MemoryStore

from xarray_gpuzarr import batches


@needs_rectilinear_grids
@pytest.mark.parametrize(
    ("layout", "borders"),
    [({"chunks": [[2, 4, 6], [3]]}, [2, 6]), ({"chunks": (2, 3), "shards": [[4, 2, 6], [3]]}, [4, 6])],
    ids=["chunks", "shards"],
)
def test_windows_group_samples_by_shards_that_differ_in_length(layout, borders):
    data = np.arange(12 * 3, dtype="f4").reshape(12, 3)
    store = MemoryStore()
    with zarr.config.set({"array.rectilinear_chunks": True}):
        zarr.create_group(store)
        write(store, data, name="a", dimension_names=["time", "x"], **layout)
        ds = open_ours(store, consolidated=False)
        loader = batches(ds, {"time": 1}, 2, shuffle=True, window=2 * 3 * 4)

        rows = [batch.a.values[:, 0, 0] / 3 for batch in loader]

    shards = [np.searchsorted(borders, pair, side="right").tolist() for pair in rows]
    assert sorted(np.concatenate(rows)) == list(range(12))
    assert all(first == second for first, second in shards)
