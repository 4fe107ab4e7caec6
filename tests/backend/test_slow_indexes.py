"""Indexes and times on slow stores: they are read at opening, with others, once, and are those of engine="zarr"."""

import copy
import gc
import pickle
import pickletools
import weakref
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.datasets import open_ours, open_stock, weather
from helpers.data.trees import many_variables
from helpers.outcome import outcome
from helpers.stores.fakes import RecordingStore, ScriptedStore, Wrapper, drop, put
from zarr.storage import MemoryStore

from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.backend import caching_store, values_ahead
from xarray_gpuzarr.errors import CorruptChunkError, SelectionError, StoreReadError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open Zarr store with consolidated"),
    pytest.mark.usefixtures("usual_pipeline"),  # requests are counted where it makes them
]


@pytest.mark.parametrize("name", ["x", "name"])
def test_values_that_were_fetched_for_indexes_do_not_outlive_opening(zarr_format, name):
    stored = MemoryStore()
    # Without "at", all would be indexes, which this opening does not make, and nothing would be fetched.
    ds = xr.Dataset(coords={"x": [1, 2, 3], "name": ("name", ["a", "bb", "c"]), "at": pd.Timestamp("2000")})
    ds.to_zarr(stored, zarr_format=zarr_format)
    store = RecordingStore(stored)
    opened = open_ours(store, create_default_indexes=False, cache=False)
    assert [key for key, _ in store.requests if key.startswith(f"{name}/")]

    for changed in {"x": ([7, 8, 9], [3, 2, 1]), "name": (["d", "e", "f"], ["g", "h", "i"])}[name]:
        zarr.open_group(stored, mode="r+")[name][:] = np.array(changed)

        again = pickle.loads(pickle.dumps(opened)), copy.deepcopy(opened)
        for each in (opened, *again):
            assert each[name].to_numpy().tolist() == changed


OPENED = {
    "dataset": lambda store, chunks: open_ours(store, chunks=chunks),
    "dataset without indexes": lambda store, chunks: open_ours(store, chunks=chunks, create_default_indexes=False),
    "array": lambda store, chunks: open_ours(store, chunks=chunks)["valid"],
    "index that was not made": lambda store, chunks: open_ours(store, chunks=chunks, create_default_indexes=False)["x"],
    "tree": lambda store, chunks: xr.open_datatree(store, engine="gpuzarr", device="host", chunks=chunks),
}


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("opens", OPENED.values(), ids=OPENED)
def test_what_is_pickled_leaves_the_cache_of_its_opening_behind(zarr_format, opens, chunks):
    store = Wrapper(many_variables(zarr_format, consolidated=True))
    opened = opens(store, chunks)

    pickled = pickle.dumps(opened)

    named = {text for opcode, text, _ in pickletools.genops(pickled) if isinstance(text, str)}
    assert not {values_ahead.__name__, caching_store.__name__} & named
    xr.testing.assert_identical(pickle.loads(pickled).load(), opened.load())


@pytest.fixture
def caches(monkeypatch):
    """Weak references to all caches of openings that the test makes."""
    references, init = [], caching_store.CachingStore.__init__

    def record(self, store):
        references.append(weakref.ref(self))
        init(self, store)

    monkeypatch.setattr(caching_store.CachingStore, "__init__", record)
    return references


@pytest.mark.parametrize("kind", ["dataset", "array", "tree"])
def test_what_was_opened_does_not_keep_the_cache_of_its_opening(kind, caches):
    opened = OPENED[kind](Wrapper(many_variables(3, consolidated=True)), None)
    gc.collect()

    assert [cache() for cache in caches] == [None, None]  # of metadata, of values
    assert opened.sizes["x"] == 3


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_text_that_was_opened_with_the_pipeline_is_pickled_and_keeps_no_cache(zarr_format, chunks, caches):
    stored = MemoryStore()
    ds = xr.Dataset({"name": ("x", ["a", "bb", "c"])})
    ds.to_zarr(stored, zarr_format=zarr_format)
    with zarr_pipeline():
        opened = open_ours(Wrapper(stored), chunks=chunks)

    again = pickle.loads(pickle.dumps(opened))

    assert again["name"].to_numpy().tolist() == ["a", "bb", "c"]
    gc.collect()
    assert {cache() for cache in caches} == {None}
    zarr.open_group(stored, mode="r+")["name"][0] = "z"
    assert opened["name"].to_numpy().tolist() == ["z", "bb", "c"]


def test_an_index_that_was_not_made_keeps_no_cache_once_it_is_read(caches):
    opened = open_ours(Wrapper(many_variables(3, consolidated=True)), create_default_indexes=False, cache=False)

    for name in ("x", "time"):
        opened[name].to_numpy()
    gc.collect()

    assert [cache() for cache in caches] == [None, None]


def test_each_chunk_of_an_index_is_asked_for_once_also_if_it_is_missing(zarr_format):
    stored, times = MemoryStore(), pd.date_range("2000-01-01", periods=300, freq="h")
    xr.Dataset(coords={"time": times}).to_zarr(stored, zarr_format=zarr_format, encoding={"time": {"chunks": (1,)}})
    prefix = {2: "time/", 3: "time/c/"}[zarr_format]
    drop(stored, f"{prefix}7")
    store = RecordingStore(stored)

    ds = open_ours(store)

    assert Counter(key for key, _ in store.requests) == Counter(f"{prefix}{i}" for i in range(300))
    assert ds.indexes["time"].equals(xr.open_dataset(stored, engine="zarr").indexes["time"])


@pytest.mark.parametrize("keywords", [{}, {"decode_times": False}, {"create_default_indexes": False}])
def test_zarr_reads_no_numbers_of_local_files(tmp_path, zarr_format, keywords, monkeypatch):
    weather().drop_vars("station").to_zarr(tmp_path, zarr_format=zarr_format)
    expected = xr.open_dataset(tmp_path, engine="zarr", **keywords).load()
    monkeypatch.setattr(zarr.AsyncArray, "getitem", None)
    monkeypatch.setattr(zarr.Array, "__getitem__", None)

    ours = open_ours(tmp_path, **keywords)

    assert_same_dataset(ours, expected)


@pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])
@pytest.mark.parametrize("name", ["time", "x"])
def test_a_damaged_index_is_named_where_it_is_read(zarr_format, kind, name):
    stored, middle = MemoryStore(), {2: f"{name}/1", 3: f"{name}/c/1"}[zarr_format]
    ds = xr.Dataset(coords={"time": pd.date_range("2000", periods=40), "x": np.arange(40.0)})
    ds.to_zarr(stored, zarr_format=zarr_format, encoding={name: {"chunks": (10,)}})
    put(stored, middle, b"no frame")
    lazy = {"create_default_indexes": False}

    with pytest.raises(CorruptChunkError, match=rf"chunk \(1,\) of array '/{name}'"):
        open_ours(kind(stored))

    assert_same_dataset(*(opens(kind(stored), **lazy).isel({name: [0, -1]}) for opens in (open_ours, open_stock)))


@pytest.mark.parametrize("name", ["time", "x"])
def test_an_index_that_could_not_be_fetched_with_others_is_an_error_at_once(zarr_format, name):
    """Its client has spent its retries, and would spend them again."""
    n_failures = Counter()

    def fail_once(key, byte_range, answer):
        if key.startswith(f"{name}/") and not n_failures[name]:
            n_failures[name] += 1
            raise OSError(f"no access to {key}")
        return answer

    with pytest.raises(StoreReadError, match=f"no access to {name}/"):
        open_ours(ScriptedStore(many_variables(zarr_format, consolidated=True), fail_once))


def test_a_long_index_is_not_read_with_others(monkeypatch):
    monkeypatch.setattr(values_ahead, "_MOST_NBYTES", 16)
    encoding = {"valid": {"chunks": (2, 3), "shards": (8, 3)}, "time": {"dtype": "i4"}}
    stored = many_variables(3, consolidated=True, **encoding)
    store = RecordingStore(stored)

    ds = open_ours(store, create_default_indexes=False)

    assert not [key for key, _ in store.requests if key.startswith("x/c")]
    assert_same_dataset(ds.set_xindex("x").set_xindex("time"), xr.open_dataset(stored, engine="zarr"))


def test_times_that_are_not_decoded_are_not_read():
    store = RecordingStore(many_variables(3, consolidated=True))

    open_ours(store, decode_times=False)

    assert {key for key, _ in store.requests} == {"time/c/0", "x/c/0"}


@pytest.mark.parametrize("dtype", [str, "S2"])
def test_text_with_units_of_time_is_left_to_xarray(zarr_format, dtype):
    stored = MemoryStore()
    group = zarr.open_group(stored, zarr_format=zarr_format)
    dims = {"dimension_names": ()} if zarr_format == 3 else {}
    array = group.create_array("v", data=np.array("5", dtype), **dims)
    array.attrs.update({"units": "days since 2000-01-01", "calendar": "360_day", "_ARRAY_DIMENSIONS": []})

    ours, stock = (outcome(lambda opens=opens: opens(Wrapper(stored)).load())[0] for opens in (open_ours, open_stock))

    if isinstance(stock, tuple):
        assert ours == stock
    else:
        assert_same_dataset(ours, stock)


@pytest.mark.parametrize("key", [0, -1, 2, 3, -4, slice(None, None, -1), [0, 2], np.int64(1)])
def test_an_index_that_was_not_made_is_selected_from_as_by_the_stock_engine(zarr_format, key):
    stored = MemoryStore()
    # Without "at", all would be indexes, which this opening does not make, and nothing would be fetched.
    ds = xr.Dataset(coords={"x": [1, 2, 3], "name": ("name", ["a", "bb", "c"]), "at": pd.Timestamp("2000")})
    ds.to_zarr(stored, zarr_format=zarr_format)
    zarr.open_group(stored).create_array("o", shape=(3,), dtype=str, attributes={"_ARRAY_DIMENSIONS": ["o"]},
                                         **({"dimension_names": ("o",)} if zarr_format == 3 else {}))  # fmt: skip

    def chosen(name, engine):
        opened = xr.open_dataset(Wrapper(stored), engine=engine, create_default_indexes=False, consolidated=False)
        return outcome(lambda: opened.variables[name][key].to_numpy())[0]  # noqa: PLW0108  # selecting may raise

    for name in ("x", "name", "o"):
        ours, stock = chosen(name, "gpuzarr"), chosen(name, "zarr")
        if isinstance(stock, tuple) and name == "x":
            assert issubclass(ours[0], SelectionError)
            assert issubclass(stock[0], IndexError)
        elif isinstance(stock, tuple):
            assert ours == stock
        else:
            assert_same_values(ours, stock)
