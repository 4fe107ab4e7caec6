"""What samples of dtypes are that only pandas has."""

import numpy as np
import pandas as pd
import xarray as xr

from xarray_gpuzarr import batches


def test_values_of_dtypes_of_pandas_become_numpys():
    categories, intervals = pd.Categorical(list("aabb")), pd.interval_range(0, 4)
    ds = xr.Dataset({"a": ("i", np.arange(4.0)), "b": ("i", categories)}, coords={"i": intervals})

    (batch,) = batches(ds, {"i": 2}, 2)

    assert batch.b.to_numpy().tolist() == [["a", "a"], ["b", "b"]]
    assert batch.i.to_numpy().reshape(-1).tolist() == intervals.tolist()


def test_levels_of_a_stacked_dimension_come_along():
    ds = xr.Dataset({"a": (("t", "x"), np.arange(6.0).reshape(2, 3))}, coords={"t": [5, 6], "x": list("abc")})

    (batch,) = batches(ds.stack(place=("t", "x")), {"place": 3}, 2)  # noqa: PD013

    assert batch.t.to_numpy().tolist() == [[5, 5, 5], [6, 6, 6]]
    assert batch.x.to_numpy().tolist() == [["a", "b", "c"]] * 2
