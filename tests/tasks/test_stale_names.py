"""What is read anew after a store has changed: names of tasks change, however it was opened."""

import os
import shutil

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.corpus import checked_shards
from helpers.data.datasets import open_ours
from helpers.stores.fakes import Wrapper
from obstore.store import LocalStore as ObstoreLocal
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, ZipStore

from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.tasks.names import file_marks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated"),
    pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated"),
    pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning"),
]

LAYOUTS = {
    "v2": (2, {"chunks": (2, 3)}),
    "v3": (3, {"chunks": (2, 3)}),
    "sharded": (3, {"chunks": (1, 3), "shards": (2, 3)}),
}
FIRST_CHUNK = {"v2": "v/0.0", "v3": "v/c/0/0", "sharded": "v/c/0/0"}


def dataset(first=0.0):
    data = first + np.arange(24.0).reshape(4, 6)
    return xr.Dataset({"v": (("t", "x"), data, {"units": "m"}), "w": ("t", data[:, 0])}, attrs={"title": "one"})


def write(path, layout, *, first=0.0, consolidated=True):
    zarr_format, encoding = LAYOUTS[layout]
    dataset(first).to_zarr(path, mode="w", zarr_format=zarr_format, encoding={"v": encoding}, consolidated=consolidated)


def in_place(path, layout):
    """Change bytes of a chunk's file without another file, as a program that is no Zarr library may do."""
    chunk = path / FIRST_CHUNK[layout]
    with chunk.open("r+b") as file:
        file.write(chunk.read_bytes())


def swap(path, layout):
    """Put another store in place of one, with the same times of all files."""
    write(path.with_name("other.zarr"), layout, first=100.0)
    for name in ("v", FIRST_CHUNK[layout], ""):
        found = (path / name).stat()
        os.utime(path.with_name("other.zarr") / name, ns=(found.st_atime_ns, found.st_mtime_ns))
    shutil.rmtree(path)
    path.with_name("other.zarr").rename(path)


def touch_group(path, layout):
    (path / (".zattrs" if layout == "v2" else "zarr.json")).touch()
    for consolidated in path.glob(".zmetadata"):
        consolidated.touch()


def zarr_writes(path, _layout):
    zarr.open_group(path, mode="r+", use_consolidated=False)["v"][2:, 3:] = -1


CHANGES = {
    "written anew": lambda path, layout: write(path, layout, first=100.0),
    "written over": lambda path, _: dataset(100.0)[["v"]].to_zarr(path, mode="a"),
    "written over, not consolidated": lambda path, _: dataset(100.0)[["v"]].to_zarr(path, mode="a", consolidated=False),
    "appended": lambda path, _: dataset(100.0).to_zarr(path, append_dim="t"),
    "a region": lambda path, _: dataset(100.0).isel(t=[2, 3]).to_zarr(path, region={"t": slice(2, 4)}),
    "all as a region": lambda path, _: dataset(100.0).to_zarr(path, region={"t": slice(0, 4)}),
    "another variable": lambda path, _: dataset().rename(v="z", w="y").to_zarr(path, mode="a"),
    "zarr writes": zarr_writes,
    "chunk deleted": lambda path, layout: (path / FIRST_CHUNK[layout]).unlink(),
    "chunk in place": in_place,
    "attributes": lambda path, _: zarr.open_group(path, mode="r+")["v"].attrs.update(scale_factor=2.0),
    "group's attributes": lambda path, _: zarr.open_group(path, mode="r+").attrs.update(title="two"),
    "group touched": touch_group,
    "another store": swap,
}

ROUTES = {
    "chunks={}": lambda path: open_ours(path, chunks={})["v"],
    "text": lambda path: open_ours(str(path), chunks={})["v"],
    "LocalStore": lambda path: open_ours(LocalStore(path), chunks={})["v"],
    "later": lambda path: open_ours(path, chunks=None).chunk({})["v"],
    "selected": lambda path: open_ours(path, chunks=None).isel(x=[0, 2]).chunk({})["v"],
    "an array": lambda path: open_ours(path, chunks=None)["v"].chunk({}),
    "prefix": lambda path: open_ours(path, chunks=None).chunk({}, name_prefix="mine-")["v"],
    "token": lambda path: open_ours(path, chunks=None).chunk({}, token="mine")["v"],
    "several files": lambda path: xr.open_mfdataset([path, path], engine="gpuzarr", combine="nested", concat_dim="run")[
        "v"
    ],
    "tree": lambda path: xr.open_datatree(path, engine="gpuzarr", chunks={})["v"],
}


def names(path):
    return {route: take(path).data.name for route, take in ROUTES.items()}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_are_those_of_the_same_store(tmp_path, layout, consolidated):
    write(tmp_path / "s.zarr", layout, consolidated=consolidated)

    assert names(tmp_path / "s.zarr") == names(tmp_path / "s.zarr")


@pytest.mark.every_value
@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", CHANGES)
def test_names_change_with_the_store(tmp_path, layout, change, consolidated):
    path = tmp_path / "s.zarr"
    write(path, layout, consolidated=consolidated)
    before = names(path)

    CHANGES[change](path, layout)

    now = names(path)
    assert [route for route in ROUTES if before[route] == now[route]] == []


@pytest.mark.parametrize("token", [None, "one"])
def test_the_token_of_the_user_is_honoured(tmp_path, token):
    write(tmp_path / "s.zarr", "v3")
    lazy = open_ours(tmp_path / "s.zarr")

    one, again, two = (lazy.chunk({}, token=each)["v"].data.name for each in (token, token, "two"))

    assert one == again != two


def test_a_zip_file_that_was_replaced(tmp_path):
    name = []
    for first in (0.0, 100.0):
        with ZipStore(tmp_path / "s.zip", mode="w") as store:
            dataset(first).to_zarr(store)
        name.append(open_ours(ZipStore(tmp_path / "s.zip"), chunks={})["v"].data.name)

    assert name[0] != name[1]


@pytest.mark.every_value
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda path: f"file://{path}",
        lambda path: FsspecStore.from_url(f"local://{path}", read_only=True),
        lambda path: ObjectStore(ObstoreLocal(path), read_only=True),
        lambda path: LoggingStore(LocalStore(path, read_only=True), log_level="ERROR"),
        lambda path: Wrapper(ZipStore(path.with_name("s.zip"), read_only=True)),
    ],
    ids=["url", "fsspec", "obstore", "wrapper", "wrapped zip"],
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", ["written over", "chunk in place"])
def test_local_files_in_other_stores(tmp_path, layout, change, wrapped):
    path = tmp_path / "s.zarr"

    def name():
        shutil.make_archive(str(tmp_path / "s"), "zip", path)
        (name,) = {open_ours(wrapped(path), chunks={})["v"].data.name for _ in range(2)}
        return name

    write(path, layout)
    before = name()
    CHANGES[change](path, layout)

    assert name() != before


def test_arrays_that_zarr_python_reads(tmp_path):
    group = zarr.create_group(tmp_path)
    array = group.create_array(
        "odd", shape=(4,), chunks=(4,), dtype="f4", dimension_names=["x"], **checked_shards((2,))
    )
    before = open_ours(LocalStore(tmp_path), chunks={}, consolidated=False)["odd"].data.name
    array[...] = 1

    assert open_ours(LocalStore(tmp_path), chunks={}, consolidated=False)["odd"].data.name != before


@pytest.mark.parametrize("shape", [(1_000_000,), (2**40, 2**40, 2**40), (0, 3), ()])
def test_few_files_are_looked_at_however_many_there_are(tmp_path, shape):
    group = zarr.create_group(tmp_path).create_group("g")
    array = group.create_array("v", shape=shape, chunks=(1,) * len(shape), dtype="f4")

    assert len(file_marks(stored_array(array))) < 35


class Asked(Wrapper):
    """Remembers all that it is asked."""

    def __init__(self, store):
        super().__init__(store)
        self.calls = []

    def __getattribute__(self, name):
        if name in ("get", "get_partial_values", "exists", "list", "list_prefix", "list_dir", "getsize"):
            self.calls.append(name)
        return super().__getattribute__(name)


def test_other_stores_are_not_asked():
    store = Asked(MemoryStore())
    dataset().to_zarr(store)
    lazy = open_ours(store)
    store.calls.clear()

    lazy.chunk({})

    assert store.calls == []
