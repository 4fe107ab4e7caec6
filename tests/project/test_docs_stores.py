"""The examples of ``docs/stores.md``, run as they stand, against real servers on loopback where they name one."""

import re
from pathlib import Path

import icechunk
import pytest
import xarray as xr
from helpers.data.datasets import ENCODING, weather
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_s3
from helpers.stores.s3_server import BUCKET, S3Server
from zarr.storage import ZipStore

import xarray_gpuzarr

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]

PAGE = Path(__file__).parents[2] / "docs" / "stores.md"
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
    with RangeServer(folder) as http, S3Server() as s3:
        dataset.to_zarr(obstore_s3(s3.url, f"{BUCKET}/era5.zarr"), encoding=ENCODING)
        yield folder, {HTTP: http.url, S3: s3.url, "my-bucket": BUCKET}


def test_page_has_an_example_for_every_store():
    assert len(list(examples())) >= 11


@pytest.mark.parametrize("code", [*examples()])
def test_example(code, stores, monkeypatch):
    folder, addresses = stores
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, real in addresses.items():
        code = code.replace(name, real)
    names = {"xr": xr, "folder": folder}

    exec(compile(code, str(PAGE), "exec"), names)  # the page is ours

    if "ds" in names:
        of_file = "era5.nc" in code
        path, engine = ("era5.nc", "h5netcdf") if of_file else ("era5.zarr", "zarr")
        stock, loaded = xr.open_dataset(folder / path, engine=engine).load(), names["ds"].load()
        for name in ("u10", "t2m", "mask"):
            xr.testing.assert_identical(loaded[name].drop_attrs(), stock[name].drop_attrs())
    assert xarray_gpuzarr.configure()["max_requests"] == 64
