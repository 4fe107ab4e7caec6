"""Trees and groups on real stores: servers on loopback through each client, and zip files."""

import warnings

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.compare import assert_same_dataset, assert_same_tree
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from zarr.storage import ZipStore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open Zarr store with consolidated")

N_PARTS = 12


def part(i):
    """A dataset that follows those of smaller numbers in time."""
    times = pd.date_range("2000-01-01", periods=2) + pd.Timedelta(days=2 * i)
    return xr.Dataset(
        {f"v{j}": (("time", "x"), np.full((2, 3), i + j, "f4")) for j in range(3)},
        coords={"time": times, "x": np.arange(3.0), "name": ("x", list("abc"))},
    )


def tree():
    return xr.DataTree.from_dict({f"/g{i}/h{j}": part(i + j) for i in range(3) for j in range(2)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Trees of each kind, ``bucket/2-True`` for format 2 and consolidated, and parts of one dataset."""
    directory = tmp_path_factory.mktemp("served")
    with warnings.catch_warnings(action="ignore"):
        for zarr_format in (2, 3):
            for consolidated in (True, False):
                path = directory / "bucket" / f"{zarr_format}-{consolidated}"
                tree().to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
        for i in range(N_PARTS):
            part(i).to_zarr(directory / "bucket" / f"part{i:02}", zarr_format=3)
    return directory


@pytest.fixture(scope="module")
def server(folder):
    with RangeServer(folder) as running:
        yield running


@pytest.mark.every_value
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_a_tree_is_opened_with_each_object_asked_for_once(server, folder, client, zarr_format, consolidated):
    if "http" in client and not consolidated:
        pytest.skip("a web server cannot list")
    path = f"bucket/{zarr_format}-{consolidated}"
    server.requests()

    ours = xr.open_datatree(CLIENTS[client](server.url, path), engine="gpuzarr", device="host")

    asked = [r["path"] for r in server.requests() if r["method"] == "GET" and r["path"] != "/bucket"]  # a listing
    assert len(asked) == len(set(asked)), sorted(asked)
    expected = xr.open_datatree(folder / path, engine="zarr")
    for name in expected.groups:
        mine, theirs = (each[name].to_dataset(inherit=False) for each in (ours, expected))
        theirs.encoding = mine.encoding  # which has the address
        assert_same_dataset(mine, theirs)


@pytest.mark.parametrize("client", ["obstore http", "fsspec http"])
def test_what_a_web_server_cannot_list_is_opened_as_by_the_stock_engine(server, client):
    """obstore's client says so; fsspec's looks for links in the answer, and finds no group."""
    outcomes = []
    for engine in ("zarr", "gpuzarr"):
        try:
            outcomes.append(xr.open_datatree(CLIENTS[client](server.url, "bucket/3-False"), engine=engine).groups)
        except Exception as err:  # noqa: BLE001  # of each client's own kind
            outcomes.append(type(err))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zip_file_is_opened(tmp_path, zarr_format):
    with ZipStore(tmp_path / "t.zip", mode="w") as store, warnings.catch_warnings(action="ignore"):
        tree().to_zarr(store, zarr_format=zarr_format, consolidated=False)

    with ZipStore(tmp_path / "t.zip", mode="r") as ours, ZipStore(tmp_path / "t.zip", mode="r") as stock:
        opened = xr.open_datatree(ours, engine="gpuzarr", device="host", consolidated=False)
        assert_same_tree(opened, xr.open_datatree(stock, engine="zarr", consolidated=False))


@pytest.mark.parametrize("parallel", [False, True])
def test_many_stores_are_opened_as_one(server, folder, parallel):
    stores = [CLIENTS["obstore s3"](server.url, f"bucket/part{i:02}") for i in range(N_PARTS)]
    paths = [folder / f"bucket/part{i:02}" for i in range(N_PARTS)]

    with dask.config.set(scheduler="threads", num_workers=8):
        ours = xr.open_mfdataset(
            stores, engine="gpuzarr", device="host", parallel=parallel, combine="nested", concat_dim="time"
        )

    stock = xr.open_mfdataset(paths, engine="zarr", combine="nested", concat_dim="time")
    xr.testing.assert_identical(ours.load(), stock.load())
