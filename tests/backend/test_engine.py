"""The backend: what engine="zarr" opens, with the same values, dtypes, attributes and encoding."""

import asyncio
import pickle

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.corpus import counting, write
from helpers.data.datasets import open_ours, open_stock, write_weather
from helpers.older_versions import needs_rectilinear_grids
from helpers.stores.fakes import RecordingStore
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import DeviceUnavailableError
from xarray_gpuzarr.backend import GpuZarrBackendEntrypoint
from xarray_gpuzarr.backend.lazy_array import find_lazy_array
from xarray_gpuzarr.cuda import driver
from xarray_gpuzarr.decoders.choice import missing_for_cuda

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    path = tmp_path_factory.mktemp("v2") / "weather.zarr"
    write_weather(path, zarr_format=2)
    return path


@pytest.fixture(params=["v2", "path"], ids=["v2", "v3"])
def weather_path(request):
    return request.getfixturevalue(request.param)


KEYWORDS = [
    pytest.param({}, id="defaults"),
    pytest.param({"mask_and_scale": False}, id="stored values"),
    pytest.param({"mask_and_scale": {"t2m": False}}, id="stored values of one variable"),
    pytest.param({"decode_times": False}, id="no times"),
    pytest.param({"decode_times": {"valid": False}}, id="no times in one variable"),
    pytest.param({"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)}, id="cftime"),
    pytest.param({"decode_times": xr.coders.CFDatetimeCoder(time_unit="s")}, id="times in seconds"),
    pytest.param({"use_cftime": True}, id="use_cftime"),
    pytest.param({"decode_timedelta": False}, id="no timedeltas"),
    pytest.param({"decode_timedelta": True}, id="timedeltas"),
    pytest.param({"decode_timedelta": {"lead": True}}, id="timedeltas in one variable"),
    pytest.param({"decode_timedelta": xr.coders.CFTimedeltaCoder(time_unit="s")}, id="timedeltas in seconds"),
    pytest.param({"concat_characters": False}, id="no text"),
    pytest.param({"decode_coords": False}, id="no coordinates"),
    pytest.param({"decode_coords": "coordinates"}, id="coordinates"),
    pytest.param({"decode_coords": "all"}, id="all coordinates"),
    pytest.param({"decode_cf": False}, id="no CF"),
    pytest.param({"drop_variables": "t2m"}, id="drop one"),
    pytest.param({"drop_variables": ["t2m", "lat", "nothing"]}, id="drop several"),
    pytest.param({"drop_variables": "time"}, id="drop the coordinate whose units its bounds need"),
    pytest.param({"drop_variables": "crs", "decode_coords": "all"}, id="drop a coordinate that another names"),
    pytest.param({"drop_variables": "height"}, id="drop a coordinate that is not an index"),
    pytest.param({"cache": False}, id="no cache"),
    pytest.param({"consolidated": False}, id="not consolidated"),
    pytest.param({"consolidated": True}, id="consolidated"),
    pytest.param({"cache_members": False}, id="members fetched on demand"),
    pytest.param({"create_default_indexes": False}, id="no indexes"),
]


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("keywords", KEYWORDS)
def test_dataset_is_that_of_the_zarr_engine(weather_path, keywords, chunks):
    ours, stock = (opens(weather_path, chunks=chunks, **keywords) for opens in (open_ours, open_stock))

    assert_same_dataset(ours, stock)


def unwrapped(variable):
    """Return the data below xarray's caching layers."""
    data = variable._data
    while isinstance(data, xr.core.indexing.MemoryCachedArray | xr.core.indexing.CopyOnWriteArray):
        data = data.array
    return data


@pytest.mark.parametrize("name", ["a.zarr", "a.zarr/", "a.nc", "s3://a/b.zarr"])
def test_engine_never_volunteers(name):
    assert not GpuZarrBackendEntrypoint().guess_can_open(name)


@pytest.mark.skipif(not missing_for_cuda(), reason="this machine can use CUDA")
def test_cuda_without_what_it_needs_says_what_is_missing(path):
    with pytest.raises(DeviceUnavailableError) as caught:
        open_ours(path, device="cuda")

    assert all(part in caught.value.found for part in missing_for_cuda())
    assert "pip install" in caught.value.do
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("visible", "n_gpus", "usable"),
    [(None, 1, True), (None, None, True), (None, 0, False), ("0", 1, True), ("", 1, False), ("-1", 1, False)],
)
def test_driver_without_a_gpu_to_use_is_not_enough(monkeypatch, visible, n_gpus, usable):
    monkeypatch.setattr(driver, "has_driver", lambda: True)
    monkeypatch.setattr(driver, "n_gpus", lambda: n_gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert ("a GPU that this process may use" not in missing_for_cuda()) is usable


def test_pickle_does_not_grow_with_attributes_or_shape(tmp_path):
    zarr.create_group(tmp_path)
    zarr.create_array(
        tmp_path, name="v", shape=(10**9, 10**9), chunks=(10, 10), shards=(1000, 1000), dtype="f4",
        attributes={"history": "x" * 10**6}, dimension_names=["y", "x"],
    )  # fmt: skip
    ds = open_ours(tmp_path, consolidated=False)

    assert len(pickle.dumps(find_lazy_array(unwrapped(ds["v"].variable)))) < 4096


def test_load_async_of_selections(path):
    points = {"lat": ("p", [0, 5, 2]), "lon": ("p", [7, 0, 3])}
    ds, stock = open_ours(path), open_stock(path)

    async def load_all():
        picks = [ds.isel(time=slice(None, None, -3)), ds.isel(points), ds.isel(time=[3, 1])]
        return await asyncio.gather(*(pick.load_async() for pick in picks))

    reversed_, picked, chosen = asyncio.run(load_all())

    assert_same_dataset(reversed_, stock.isel(time=slice(None, None, -3)).load())
    assert_same_dataset(picked, stock.isel(points).load())
    assert_same_dataset(chosen, stock.isel(time=[3, 1]).load())


def test_closing_the_dataset_closes_what_it_opened(path, monkeypatch):
    closed = []
    monkeypatch.setattr(LocalStore, "close", lambda self: closed.append(str(self.root)))

    with open_ours(path) as ds:
        assert closed == []
        assert ds["level"].item() == 500

    assert closed == [str(path)]


def test_closing_the_dataset_leaves_the_users_store_open(monkeypatch):
    store, closed = MemoryStore(), []
    write_weather(store)
    monkeypatch.setattr(MemoryStore, "close", lambda self: closed.append(self))  # noqa: PLW0108  # a method

    open_ours(store).close()

    assert all(other is not store for other in closed)


def test_closed_dataset_of_files_opens_again(path):
    ds = open_ours(path)
    ds.close()

    assert_same_values(ds["u10"].values, open_stock(path)["u10"].values)


def test_variable_is_read_once_then_cached():
    stored = MemoryStore()
    write_weather(stored)
    store = RecordingStore(stored)
    ds = open_ours(store)
    ds["u10"].load()
    store.requests.clear()

    assert_same_values(ds["u10"].values, open_stock(stored)["u10"].values)
    assert store.requests == []


def test_lazy_variable_may_be_written_to(path):
    ds = open_ours(path)

    ds["u10"][0, 0, 0] = 42

    assert ds["u10"].values[0, 0, 0] == 42
    assert open_ours(path)["u10"].values[0, 0, 0] != 42


def test_coordinates_attribute_makes_coordinates(memory):
    zarr.create_group(memory, attributes={"coordinates": "extra"})
    write(memory, counting((4,)), name="v", chunks=(2,), dimension_names=["x"], attributes={"coordinates": "c gone"})
    write(memory, counting((4,)), name="c", chunks=(2,), dimension_names=["x"])
    write(memory, counting((4,)), name="extra", chunks=(2,), dimension_names=["x"])

    ours, stock = open_ours(memory, consolidated=False), open_stock(memory, consolidated=False)

    assert set(ours.coords) == {"c", "extra"}
    assert_same_dataset(ours, stock)


@needs_rectilinear_grids
def test_rectilinear_grids_open(memory):
    data = counting((12, 15))
    with zarr.config.set({"array.rectilinear_chunks": True}):
        zarr.create_group(memory)
        write(memory, data, name="chunks", chunks=[[2, 4, 6], [6, 9]], dimension_names=["y", "x"])
        write(memory, data, name="shards", chunks=(2, 3), shards=[[4, 2, 6], [6, 9]], dimension_names=["y", "x"])

        ours, stock = open_ours(memory, consolidated=False), open_stock(memory, consolidated=False)

        assert_same_dataset(ours, stock)


def test_zero_length_and_scalar_variables(memory):
    zarr.create_group(memory)
    write(memory, np.zeros((0, 3), "i2"), name="none", chunks=(1, 3), dimension_names=["a", "b"])
    write(memory, np.array(2.5), name="one", dimension_names=[])

    for chunks in (None, {}):
        ours = open_ours(memory, consolidated=False, chunks=chunks)
        assert_same_dataset(ours, open_stock(memory, consolidated=False, chunks=chunks))
