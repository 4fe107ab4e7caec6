"""Lazy variables on slow stores are loaded together, in a few rounds of requests."""

import asyncio
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import xarray as xr
from helpers.compare import assert_same_dataset, assert_same_tree
from helpers.data.datasets import open_ours
from helpers.data.trees import many_variables, tree
from helpers.stores.fakes import ScriptedStore, Wrapper
from helpers.stores.rounds import RoundStore
from zarr.storage import MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr.decoders.host import HostDecoder

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Failed to open Zarr store with consolidated"),
    pytest.mark.usefixtures("usual_pipeline"),  # requests are counted where it makes them
]


def open_tree(store, **keywords):
    return xr.open_datatree(store, engine="gpuzarr", device="host", **keywords)


def open_array(store, **keywords):
    return open_ours(store, **keywords)["a"]


CASES = {
    "dataset": (open_ours, many_variables, 4, assert_same_dataset),
    "tree": (open_tree, tree, 4, assert_same_tree),
    "array and its coordinates": (open_array, many_variables, 2, xr.testing.assert_identical),
}


@pytest.mark.parametrize(("opens", "stores", "most", "assert_same"), CASES.values(), ids=CASES)
def test_lazy_variables_are_loaded_side_by_side(opens, stores, most, assert_same):
    stored = stores(3, consolidated=True)
    store = RoundStore(stored)
    lazy, eager = (opens(each, chunks=None) for each in (store, stored))
    n_before = len(store.rounds)

    loaded = lazy.gpuzarr.load()

    n_loaded = len(store.rounds)
    assert loaded is lazy
    assert n_loaded - n_before <= most
    assert_same(lazy, eager)
    assert len(store.rounds) == n_loaded


def test_lazy_variables_are_loaded_side_by_side_by_an_event_loop():
    stored = many_variables(3, consolidated=True)
    store = RoundStore(stored)
    names = [f"v{i}" for i in range(40)]
    lazy = open_ours(store, chunks=None)[names].reset_coords(drop=True)
    n_before = len(store.rounds)

    loaded = asyncio.run(lazy.load_async())

    assert len(store.rounds) - n_before <= 2
    assert_same_dataset(loaded, xr.open_dataset(stored, engine="zarr")[names].reset_coords(drop=True))


def test_what_dask_or_a_local_file_holds_is_loaded_by_xarray():
    stored = many_variables(3, consolidated=True)

    for ds in (open_ours(Wrapper(stored), chunks={}), open_ours(stored), open_ours(Wrapper(stored))[["v0"]]):
        loaded = ds.gpuzarr.load()
        assert not loaded.chunks
        xr.testing.assert_identical(loaded, xr.open_dataset(stored, engine="zarr")[list(loaded.data_vars)].load())


def test_a_read_that_fails_while_others_go_on_is_raised():
    def fail(key, byte_range, answer):
        if key.startswith("v7/c"):
            raise OSError(f"no access to {key}")
        return answer

    ds = open_ours(ScriptedStore(many_variables(3, consolidated=True), fail))

    for load in (ds.gpuzarr.load, ds["v7"].load):
        with pytest.raises(OSError, match="no access to v7/c/0"):
            load()


def test_threads_that_load_read_where_their_caller_would(monkeypatch):
    entered = []

    def as_caller(self, stream_of=None):
        caller = threading.get_ident()
        return lambda: entered.append(caller) or nullcontext()

    monkeypatch.setattr(HostDecoder, "as_caller", as_caller)

    open_ours(Wrapper(many_variables(3, consolidated=True)), chunks=None).gpuzarr.load()

    assert set(entered) == {threading.get_ident()}
    assert len(entered) > 1


def test_a_batch_of_many_variables_waits_as_for_one():
    store = MemoryStore()
    values = np.arange(64.0).reshape(8, 8)
    ds = xr.Dataset({f"v{i}": (("t", "x"), values + i) for i in range(8)})
    ds.to_zarr(store, zarr_format=3, encoding={name: {"chunks": (1, 4), "shards": (2, 8)} for name in ds})
    slow = RoundStore(store)
    opened = open_ours(slow, chunks=None)
    n_before = len(slow.rounds)

    (batch,) = xarray_gpuzarr.batches(opened, sizes={"t": 2}, batch=4)

    assert len(slow.rounds) - n_before <= 2
    for name in ds:
        np.testing.assert_array_equal(batch[name].to_numpy().reshape(8, 8), ds[name])
