"""xarray and dask on top of this engine: one task per shard, blocks of the decoder's array type; and what of
xarray's internals all of this rests on."""

import warnings

import dask
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.datasets import DIMS, open_ours, open_stock, write_weather
from helpers.older_versions import needs_lazy_scalar_coordinates
from helpers.stores.fakes import RecordingStore
from helpers.strict_duck import StrictArray
from zarr.storage import MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated", "ignore:In a future version")

SHARD_CHUNKS = ((4, 4, 2), (6,), (8,))
IN_SHARDS = ["t2m", "u10", "count"]


@pytest.fixture
def recording():
    store = RecordingStore(MemoryStore())
    write_weather(store)
    store.requests.clear()
    return store


def open_u10(path, **keywords):
    """Open one variable and its dimensions: chunk sizes that suit it would split others."""
    others = [name for name in open_stock(path).variables if name not in ("u10", *DIMS)]
    return open_ours(path, drop_variables=others, **keywords)["u10"]


def test_one_task_per_shard(path):
    array = open_ours(path, chunks={})["u10"].data
    tasks = []

    with Callback(pretask=lambda key, _graph, _state: tasks.append(key)):
        array.compute(scheduler="synchronous")

    reads = [key for key in tasks if isinstance(key, tuple) and key[0].startswith(array.name)]
    assert sorted(key[1:] for key in reads) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert len(tasks) == len(reads) + 2  # the result they are read into, and dask's own "finalize"


@needs_lazy_scalar_coordinates
def test_building_the_graph_reads_nothing(recording):
    ds = open_ours(recording, chunks={}, drop_variables=["time", "lat", "lon", "time_bounds"])
    recording.requests.clear()

    (ds["t2m"].mean("time") + ds["u10"].isel(time=slice(3))).chunk(lat=3)

    assert recording.requests == []


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        pytest.param("900 B", SHARD_CHUNKS, id="one shard"),
        pytest.param("1600 B", ((8, 2), (6,), (8,)), id="two shards"),
        pytest.param("1 MB", ((10,), (6,), (8,)), id="everything"),
    ],
)
def test_auto_gives_multiples_of_the_shard(path, nbytes, expected):
    with dask.config.set({"array.chunk-size": nbytes}), warnings.catch_warnings(action="error"):
        chunks = open_u10(path, chunks="auto").chunks

    assert chunks == expected


@pytest.mark.parametrize("chunks", [{"time": 3}, {"lat": 4, "lon": 5}])
def test_request_that_splits_shards_works_and_warns_once(path, chunks):
    with pytest.warns(UserWarning, match="separate the stored chunks") as caught:
        array = open_u10(path, chunks=chunks)

    assert len(caught) == len(chunks)  # xarray's own, one per axis
    assert_same_values(array.values, open_stock(path)["u10"].values)


@pytest.mark.parametrize(
    ("indexers", "shards"),
    [
        pytest.param({}, ["u10/c/0/0/0", "u10/c/1/0/0", "u10/c/2/0/0"], id="everything"),
        pytest.param({"time": 5}, ["u10/c/1/0/0"], id="int"),
        pytest.param({"time": slice(8, 10)}, ["u10/c/2/0/0"], id="slice"),
        pytest.param({"time": [0, 9]}, ["u10/c/0/0/0", "u10/c/2/0/0"], id="list"),
    ],
)
def test_selection_after_chunking_reads_only_its_shards(recording, indexers, shards):
    ds = open_ours(recording, chunks={})
    recording.requests.clear()

    picked = ds["u10"].isel(indexers).compute(scheduler="synchronous")

    assert_same_values(picked.values, open_stock(recording._store)["u10"].isel(indexers).values)
    assert sorted(key for key in recording.opened if key.startswith("u10")) == shards


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_schedulers(path, scheduler):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        assert_same_dataset(open_ours(path, chunks={}).compute(), open_stock(path).compute())


def test_selection_after_chunking_is_pushed_into_the_read(recording):
    ds = open_ours(recording, chunks={})
    ds["u10"].isel(time=slice(0, 2), lat=0, lon=0).compute(scheduler="synchronous")
    recording.requests.clear()
    one_chunk = open_ours(recording)["u10"].isel(time=slice(0, 2), lat=0, lon=0)
    recording.requests.clear()
    one_chunk.load()
    expected = list(recording.requests)
    recording.requests.clear()

    ds["u10"].isel(time=slice(0, 2), lat=0, lon=0).compute(scheduler="synchronous")

    assert [r for r in recording.requests if r[0].startswith("u10")] == [r for r in expected if r[0].startswith("u10")]


@pytest.mark.usefixtures("strict_device")
class TestStrictDuckArray:
    """Blocks and their meta are the decoder's own arrays, which refuse to become NumPy arrays."""

    def test_stand_in_is_as_strict_as_cupy(self):
        array = StrictArray(np.arange(3))

        for refused in (np.asarray, np.array, lambda a: a + np.arange(3), lambda a: np.concatenate([a, np.arange(3)])):
            with pytest.raises(TypeError):
                refused(array)

    @pytest.mark.filterwarnings("ignore:The specified chunks separate")  # of the bounds, which are not sharded
    @pytest.mark.parametrize("chunks", [{}, "auto", {"time": 8}, -1], ids=str)
    @pytest.mark.parametrize("name", [*IN_SHARDS, "mask", "height"])
    def test_blocks_and_meta(self, path, chunks, name):
        array = open_ours(path, chunks=chunks)[name].data

        assert isinstance(array._meta, StrictArray)
        assert array._meta.dtype == array.dtype
        assert all(isinstance(block, StrictArray) for block in dask.compute(*array.to_delayed().ravel()))

    @pytest.mark.parametrize("name", [*IN_SHARDS, "mask", "scalar"])
    def test_loaded_array(self, path, name):
        loaded = open_ours(path)[name].load()

        assert isinstance(loaded.data, StrictArray)
        assert_same_values(loaded.data.get(), open_stock(path)[name].values)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda a: a.isel(time=slice(None, None, -2)), id="slice"),
            pytest.param(lambda a: a.isel(time=[5, 0, 0]), id="outer"),
            pytest.param(lambda a: a.isel(lat=("p", [0, 5]), lon=("p", [1, 7])), id="points"),
            pytest.param(lambda a: a.transpose("lon", "time", "lat"), id="transpose"),
            pytest.param(lambda a: a.isel(time=3), id="int"),
            pytest.param(lambda a: a.isel(time=slice(1, 7)).isel(time=[2, 0]), id="twice"),
        ],
    )
    @pytest.mark.parametrize("name", ["u10", "t2m"])
    def test_chunking_after_a_lazy_selection(self, path, change, name):
        chunked = change(open_ours(path)[name]).chunk()

        assert isinstance(chunked.data._meta, StrictArray)
        assert isinstance(chunked.data.compute(scheduler="synchronous"), StrictArray)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda a: a.isel(time=5), id="isel"),
            pytest.param(lambda a: a.isel(time=[5, 0]), id="outer"),
            pytest.param(lambda a: a + 1, id="arithmetic"),
            pytest.param(lambda a: a.where(a > 0), id="where"),
            pytest.param(lambda a: a.sum("time"), id="sum"),
            pytest.param(lambda a: a.mean("time"), id="mean"),
            pytest.param(lambda a: a.max(), id="max"),
            pytest.param(lambda a: xr.concat([a, a], "run"), id="concat"),
            pytest.param(lambda a: a.astype("f4"), id="astype"),
            pytest.param(lambda a: a.chunk(time=5), id="rechunk"),
        ],
    )
    def test_operations_stay_with_the_array_type(self, path, change):
        ds = open_ours(path, chunks={})

        changed = change(ds["t2m"]).compute(scheduler="synchronous")

        assert isinstance(changed.data, StrictArray)
        np.testing.assert_allclose(changed.data.get(), change(open_stock(path)["t2m"]).values, rtol=1e-12)

    def test_coordinates_and_times_stay_on_the_host(self, path):
        ds = open_ours(path, chunks={})

        hosted = {
            name for name, v in ds.variables.items() if not isinstance(getattr(v.data, "_meta", v.data), StrictArray)
        }

        assert hosted >= {"time", "lat", "lon", "time_bounds", "valid", "lead", "station"}
        assert not hosted & {"t2m", "u10", "count", "mask", "height"}
