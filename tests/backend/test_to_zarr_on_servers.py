"""`to_zarr` to a server: the same objects as xarray stores, few requests one after another, and its errors."""

import warnings
from itertools import count

import numpy as np
import pytest
import xarray as xr
from helpers.data.random_datasets import Write
from helpers.same_writes import by_accessor, by_xarray
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import fsspec_s3, obstore_s3, s3fs_options
from zarr.storage import MemoryStore

from xarray_gpuzarr import StoreWriteError

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

CLIENTS = {"obstore": obstore_s3, "fsspec": fsspec_s3}
NUMBERED = count()
CHUNKS, SHARDS = {"time": 2, "x": 3}, {"time": 4, "x": 6}


def dataset(offset=0.0):
    """Numbers, packed and not, of dask and of NumPy, times and text."""
    values = offset + np.arange(16 * 12, dtype="f8").reshape(16, 12)
    packed = {"dtype": "i2", "scale_factor": 0.5, "add_offset": offset, "_FillValue": -1}
    return xr.Dataset(
        {
            "t2m": (("time", "x"), values, {"units": "K"}, packed),
            "lazy": xr.Variable(("time", "x"), values.astype("f4")).chunk({"time": 4, "x": 6}),
            "name": ("x", np.array([f"station {i}" for i in range(12)])),
            "number": ((), 7),
        },
        coords={
            "time": np.datetime64("2000-01-01", "ns") + np.arange(16) * np.timedelta64(1, "D"),
            "x": np.arange(12.0),
        },
        attrs={"title": "of a server"},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "bucket").mkdir()
    with RangeServer(folder) as running:
        yield running


@pytest.fixture
def path(server):
    """A new path in the bucket."""
    server.requests()
    yield f"bucket/{next(NUMBERED)}.zarr"
    server.spoil()
    server.set(latency_s=0.0)


def stored(server, path):
    root = server.directory / path
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("group", [None, "a/b"])
@pytest.mark.parametrize("consolidated", [None, False])
def test_a_server_gets_the_objects_that_xarray_stores(server, path, client, zarr_format, group, consolidated):
    options = {"zarr_format": zarr_format, "group": group, "consolidated": consolidated}
    store, expected = CLIENTS[client](server.url, path), MemoryStore()
    shards = SHARDS if zarr_format == 3 else None
    # Once where nothing is, beside what another write left, and over it.
    for offset, changes in ((0.0, {}), (1.0, {"mode": "w"}), (2.0, {"mode": "w-", "group": "beside"})):
        write = Write(dataset(offset), options | changes, CHUNKS, shards)
        by_xarray(expected, write, zarr_format)
        by_accessor(store, write)
        found = stored(server, path)
        assert found == {key: value.to_bytes() for key, value in expected._store_dict.items()}


@pytest.mark.parametrize("group", [None, "a"])
def test_what_is_there_already_is_the_error_of_xarray(server, path, group):
    store = obstore_s3(server.url, path)
    dataset().gpuzarr.to_zarr(store, CHUNKS, SHARDS, group=group)
    before = stored(server, path)
    with pytest.raises(FileExistsError) as expected:
        dataset(1.0).to_zarr(store, group=group)
    with pytest.raises(FileExistsError) as caught:
        dataset(1.0).gpuzarr.to_zarr(store, CHUNKS, SHARDS, group=group)
    assert str(caught.value) == str(expected.value)
    assert stored(server, path) == before


def test_an_address_is_written_to_with_its_options(server, path):
    options = s3fs_options(server.url)
    dataset().gpuzarr.to_zarr(f"s3://{path}", CHUNKS, SHARDS, storage_options=options)
    with xr.open_zarr(f"s3://{path}", storage_options=options) as back:
        xr.testing.assert_identical(back.compute(), dataset().compute())


def test_options_of_a_store_that_is_no_address_are_refused_as_by_xarray(server, path):
    store = obstore_s3(server.url, path)
    with pytest.raises((TypeError, ValueError)) as expected:
        dataset().to_zarr(store, storage_options={"anon": True})
    with pytest.raises(type(expected.value)) as caught:
        dataset().gpuzarr.to_zarr(store, CHUNKS, SHARDS, storage_options={"anon": True})
    assert str(caught.value) == str(expected.value)


def test_metadata_are_stored_once_and_nothing_is_asked_but_whether_the_place_is_empty(server, path):
    dataset().gpuzarr.to_zarr(obstore_s3(server.url, path), CHUNKS, SHARDS)
    requests = [(each["method"], each["path"].removeprefix(f"/{path}/")) for each in server.requests()]
    documents = [request for request in requests if request[1].endswith(".json") or request[0] != "PUT"]
    names = ("t2m", "lazy", "name", "number", "time", "x")
    assert documents[:2] == [("GET", "/bucket"), ("PUT", "zarr.json")]
    assert {*documents[2:-1]} == {("PUT", f"{name}/zarr.json") for name in names}
    assert documents[-1] == ("PUT", "zarr.json")
    assert len(documents) == len(names) + 3


def test_documents_are_under_way_together_and_so_are_objects(server, path):
    server.set(latency_s=0.3, most_at_once=0)
    dataset().gpuzarr.to_zarr(obstore_s3(server.url, path), CHUNKS, SHARDS)
    assert server.most_at_once() >= 6


@pytest.mark.parametrize("n_mebibytes", [4, 8, 24])
def test_an_object_of_up_to_16_mebibytes_is_one_request(server, path, n_mebibytes):
    data = np.random.default_rng(0).integers(0, 256, n_mebibytes << 20, np.uint8)
    ds = xr.Dataset({"a": ("x", data)})
    ds.gpuzarr.to_zarr(obstore_s3(server.url, path), {"x": 1 << 20}, {"x": -1})
    requests = [each for each in server.requests() if "/a/c/" in each["path"]]
    assert (len(requests) == 1) == (n_mebibytes <= 16)
    assert np.array_equal(xr.open_zarr(server.directory / path).a.values, data)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_an_object_that_is_not_taken_is_named(server, path, kind):
    ds = dataset()[["t2m"] if kind == "numpy" else ["lazy"]]
    server.spoil({"kind": "status", "value": 403, "method": "PUT", "path": "/c/"})
    with pytest.raises(StoreWriteError, match=r"cannot write (shard|chunk) '.*/c/"):
        ds.gpuzarr.to_zarr(obstore_s3(server.url, path), CHUNKS, SHARDS)


def test_a_store_that_takes_nothing_is_the_error_of_the_client(server, path):
    server.spoil({"kind": "status", "value": 403, "method": "PUT"})
    store = obstore_s3(server.url, path)
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever the client says
        dataset().to_zarr(store)
    with pytest.raises(type(expected.value)):
        dataset().gpuzarr.to_zarr(store, CHUNKS, SHARDS)
    assert not stored(server, path)


def test_blocks_of_a_numpy_array_are_not_copied(server, path, monkeypatch):
    copied = []
    monkeypatch.setattr("xarray_gpuzarr.backend.accessor.whole_shards._SMALL_NBYTES", 0)

    class Watched(np.ndarray):
        def copy(self, *args, **kwargs):
            copied.append(self.nbytes)
            return super().copy(*args, **kwargs)

    ds = dataset()[["t2m"]].drop_vars(["time", "x"])
    data = ds.t2m.values.view(Watched)
    ds["t2m"] = xr.Variable(ds.t2m.dims, data, encoding=ds.t2m.encoding)
    with warnings.catch_warnings():
        ds.gpuzarr.to_zarr(obstore_s3(server.url, path), CHUNKS, SHARDS)
    assert max(copied, default=0) < data.nbytes
    assert np.array_equal(xr.open_zarr(server.directory / path).t2m.values, np.asarray(data))
