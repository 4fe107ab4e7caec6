"""Common work from end to end on one machine: dask's own schedulers, writing back, random crops without dask."""

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.datasets import COMMON_WORK, open_ours, open_stock

pytestmark = [pytest.mark.every_decoder, pytest.mark.filterwarnings("ignore:Consolidated")]


@pytest.mark.every_value
@pytest.mark.host_decoder
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
@pytest.mark.parametrize("work", COMMON_WORK)
def test_common_work(path, work, scheduler):
    with dask.config.set(scheduler=scheduler):
        computed, expected = (COMMON_WORK[work](ds).compute() for ds in (open_ours(path, chunks={}), open_stock(path)))

    xr.testing.assert_allclose(computed, expected, rtol=1e-5)


def test_results_are_written_back_in_whole_shards(path, tmp_path):
    anomaly = (open_ours(path, chunks={}).u10 - 1).drop_vars("height").gpuzarr.to_host().drop_encoding()
    encoding = {"u10": {"chunks": (2, 3, 4), "shards": (4, 6, 8)}}

    anomaly.to_dataset(name="u10").to_zarr(tmp_path / "out.zarr", encoding=encoding, consolidated=False)

    assert zarr.open_array(tmp_path / "out.zarr" / "u10").shards == (4, 6, 8)
    np.testing.assert_array_equal(open_ours(tmp_path / "out.zarr").u10.values, open_stock(path).u10.values - 1)
