"""The examples of ``docs/stores.md``, run as they stand, with servers on loopback in place of the servers they name."""

import re
from pathlib import Path

import icechunk
import numpy as np
import pytest
import xarray as xr
from helpers.codec_pipeline import settings_taken_back
from helpers.data.datasets import ENCODING, weather
from helpers.data.pyramids import CELLS, IMAGE, write_pyramid
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_s3
from helpers.stores.s3_server import BUCKET, S3Server
from zarr.storage import ZipStore

import xarray_gpuzarr

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]

PAGE = Path(__file__).parents[2] / "docs" / "stores.md"
IMAGES = {"image": IMAGE, "thumbnail": IMAGE[:, ::4, ::4].max(0), "crop": IMAGE[0, 64:128], "brightest": IMAGE.max()}
"""Arrays that examples make of the pyramids, by the names of their variables."""
HTTP, S3 = "http://localhost:8000", "http://localhost:9000"


def examples():
    """Return the code of every example, named by its heading."""
    heading = ""
    for part in re.split(r"(?m)^(?=###? )|(?=^```python$)", PAGE.read_text()):
        if part.startswith("#"):
            heading = part.splitlines()[0].strip("# ")
        for code in re.findall(r"(?ms)^```python\n(.*?)^```$", part):
            yield pytest.param(code, id=f"{heading}: {code.splitlines()[0][:40]}")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A folder with the dataset in every form that the page names, and servers of it."""
    folder = tmp_path_factory.mktemp("stores")
    dataset = weather().drop_vars("lead")
    dataset.to_zarr(folder / "era5.zarr", encoding=ENCODING)
    dataset.to_netcdf(folder / "era5.nc", engine="h5netcdf", encoding={"u10": {"zlib": True, "chunksizes": (4, 6, 8)}})
    with ZipStore(folder / "era5.zip", mode="w") as store:
        dataset.to_zarr(store, encoding=ENCODING, consolidated=False)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / "era5.icechunk")))
    session = repository.writable_session("main")
    dataset.to_zarr(session.store, encoding=ENCODING, consolidated=False)
    session.commit("era5")
    write_pyramid(folder / "image.zarr", "0.5")
    write_pyramid(folder / "image-0.4.zarr", "0.4")
    with RangeServer(folder) as http, S3Server() as s3:
        dataset.to_zarr(obstore_s3(s3.url, f"{BUCKET}/era5.zarr"), encoding=ENCODING)
        yield folder, {HTTP: http.url, S3: s3.url, "my-bucket": BUCKET}


@pytest.mark.parametrize("opens", [xr.open_dataset, xr.open_datatree])
@pytest.mark.parametrize(("name", "misfits"), [("image.zarr", ["1", "2"]), ("image-0.4.zarr", [])])
def test_errors_of_arrays_that_are_no_dataset_lead_to_the_page(stores, opens, name, misfits):
    with pytest.raises(xarray_gpuzarr.NoGroupError) as raised:
        opens(stores[0] / name, engine="gpuzarr", consolidated=False)

    assert (f"drop_variables={misfits}" in raised.value.do) == bool(misfits)
    page, heading = re.search('"(.*)", below "(.*)"', raised.value.do).groups()
    assert {f"# {page}", f"## {heading}"} <= set(PAGE.read_text().splitlines())


def test_a_tree_of_an_image_has_its_labels_at_the_same_level(stores):
    path = stores[0] / "image.zarr"

    tree = xr.open_datatree(path, engine="gpuzarr", consolidated=False, drop_variables=["1", "2"])

    np.testing.assert_array_equal(tree["0"], IMAGE)
    np.testing.assert_array_equal(tree["labels/cells/0"], CELLS)


@pytest.mark.parametrize("code", [*examples()])
def test_example(code, stores, monkeypatch):
    """An example runs, and the data that it reads are those of xarray's own engine, or those that were stored."""
    folder, addresses = stores
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, real in addresses.items():
        code = code.replace(name, real)
    names = {"xr": xr, "folder": folder}

    with settings_taken_back():
        exec(compile(code, str(PAGE), "exec"), names)  # the page is ours

    if "ds" in names:
        path, engine = ("era5.nc", "h5netcdf") if "era5.nc" in code else ("era5.zarr", "zarr")
        stock, loaded = xr.open_dataset(folder / path, engine=engine).load(), names["ds"].load()
        for name in ("u10", "t2m", "mask"):
            xr.testing.assert_identical(loaded[name].drop_attrs(), stock[name].drop_attrs())
            assert loaded[name].encoding["dtype"] == stock[name].encoding["dtype"]
    if "pair" in names:
        assert next(iter(names["batches"]))["image"].shape == (4, 2, 64, 64)
        np.testing.assert_array_equal(names["pair"]["cells"], CELLS)
    if "scales" in names:
        np.testing.assert_array_equal(names["image"].y, np.arange(256) * 0.5)
    for name, expected in IMAGES.items():
        np.testing.assert_array_equal(names.get(name, expected), expected)
    assert xarray_gpuzarr.configure()["max_requests"] == 64
