"""Clients with threads of their own do not survive a fork, and say so, also if they have only opened a store."""

import multiprocessing

import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from helpers.fresh_process import in_fresh_process
from helpers.linux import needs_linux
from zarr.storage import LocalStore, ObjectStore

from xarray_gpuzarr import StoreReadError, zarr_pipeline

pytestmark = [pytest.mark.timeout(120), needs_linux]

DS = xr.Dataset({"x": ("t", np.arange(6.0))})


def outcome(action):
    """Return the names of the errors that an action raises in a forked process; "none" if there is none."""

    def run(answers):
        try:
            action()
            answers.put("none")
        except StoreReadError as error:
            answers.put(f"{type(error).__name__}: {error.do}")

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=run, args=(answers,))
    child.start()
    child.join(20)
    if child.exitcode is None:
        child.kill()
        child.join()
        return "hangs"
    return answers.get()


def outcomes(path, kind):
    """Open a store in this process, and return what reads and writes do in forked ones."""
    DS.to_zarr(path, consolidated=False)
    stores = {"obstore": lambda: ObjectStore(obstore.store.LocalStore(path)), "zarr": lambda: LocalStore(path)}
    store = stores[kind]()
    keywords = {"engine": "gpuzarr", "device": "host", "consolidated": False}
    opened = xr.open_dataset(store, **keywords)
    with zarr_pipeline():
        array = zarr.open_array(store, path="x", mode="r+")
    actions = {
        "read": opened.x.to_numpy,
        "open": lambda: xr.open_dataset(store, **keywords),
        "open anew": lambda: xr.open_dataset(stores[kind](), **keywords),
        "write": lambda: array.__setitem__(0, 1.0),
        "to_zarr": lambda: DS.gpuzarr.to_zarr(store, group="new", consolidated=False),
    }
    return {name: outcome(action) for name, action in actions.items()}


@pytest.mark.parametrize("kind", ["obstore", "zarr"])
def test_a_client_that_has_opened_a_store_is_refused_in_a_forked_process(kind, tmp_path):
    found = in_fresh_process(outcomes, str(tmp_path / "a.zarr"), kind, seconds=110)

    refused = 'StoreReadError: start processes with "spawn" or "forkserver", or open the store for the first time'
    expected = {"obstore": refused, "zarr": "none"}[kind]
    assert {name: text[: len(refused)] for name, text in found.items()} == dict.fromkeys(found, expected)
