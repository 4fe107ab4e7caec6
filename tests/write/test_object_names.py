"""Writes through two names of one array: they take turns, so that none loses what another has written."""

import threading

import numpy as np
import pytest
import zarr
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.fetch.object_names import place_of

LENGTH, N_NAMES = 48, 8


def names_of(folder):
    """Stores of local files, with the path of one array in each."""
    whole = str(folder / "g/arr").lstrip("/")
    return [
        (LocalStore(folder), "g/arr"),
        (ObjectStore(ObstoreLocal(folder / "g/arr")), ""),
        (ObjectStore(ObstoreLocal(folder)), "g/arr"),
        (ObjectStore(ObstoreLocal()), whole),
        (ObjectStore(ObstoreLocal("/")), whole),
        (LocalStore(folder), "link/arr"),
        (FsspecStore.from_url(f"file://{folder}"), "g/arr"),
        (LocalStore("/"), whole),
    ]


@pytest.mark.filterwarnings("ignore")
def test_writes_through_all_names_of_an_array_lose_nothing(tmp_path):
    zarr.create_array(tmp_path, name="g/arr", shape=LENGTH, chunks=2, shards=LENGTH, dtype="i4")
    (tmp_path / "link").symlink_to(tmp_path / "g")
    with zarr_pipeline():
        arrays = [zarr.open_array(store, path=path) for store, path in names_of(tmp_path)]
    n = LENGTH // N_NAMES

    def write(number):
        for position in range(n * number, n * number + n):
            arrays[number][position : position + 1] = number + 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(N_NAMES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert arrays[0][:].tolist() == np.repeat(np.arange(1, N_NAMES + 1), n).tolist()


def test_all_names_of_an_array_are_of_one_place(tmp_path):
    (tmp_path / "g/arr").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "g")

    found = {place_of(store, path).names([f"{path}/c/0".lstrip("/")])[0] for store, path in names_of(tmp_path)}

    assert len(found) == 1


def test_arrays_of_the_same_path_in_two_memories_are_of_two_places():
    stores = [ObjectStore(ObstoreMemory()) for _ in range(2)]
    places = [place_of(store, "g/arr") for store in stores]
    assert places[0].names(["g/arr/c/0"]) != places[1].names(["g/arr/c/0"])


@pytest.mark.parametrize(
    ("path", "is_below"), [("a.zarr/v", True), ("a.zarr", True), ("a.zarr2/v", False), ("", False), ("b/a.zarr", False)]
)
def test_a_node_is_below_a_group_whichever_directory_its_store_has(tmp_path, path, is_below):
    group = place_of(LocalStore(tmp_path / "a.zarr"), "")

    assert place_of(str(tmp_path), path).is_below(group) == is_below
    assert place_of(str(tmp_path), path).is_below(place_of("/", ""))
    assert not place_of(MemoryStore(), path).is_below(group)
