"""Names of dask tasks: what dashboards show, and which opens give the same tasks."""

import subprocess
import sys
import textwrap

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.utils import key_split
from helpers.data.corpus import checked_shards
from helpers.data.datasets import open_ours
from helpers.stores.fakes import Wrapper
from zarr.storage import FsspecStore, MemoryStore, ZipStore

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated"),
    pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning"),
]

VARIABLES = ("u10", "t2m", "count", "height")


def name_of(store, variable="u10", **keywords):
    return open_ours(store, **({"chunks": {}} | keywords))[variable].data.name


def write_variables(store, *names):
    xr.Dataset({name: ("x", np.arange(4.0)) for name in names}).to_zarr(store, zarr_format=3)


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ("air", "gpuzarr-air"),
        ("t2m", "gpuzarr_t2m"),
        ("sea-ice", "gpuzarr-sea-ice"),
        ("wind-10m", "gpuzarr_wind_10m"),
        ("deadbeef", "gpuzarr_deadbeef"),
        ("2t", "gpuzarr_2t"),
        ("été", "gpuzarr-été"),
        ("a b", "gpuzarr_a b"),
    ],
)
def test_dask_shows_the_variable(variable, shown):
    store = MemoryStore()
    write_variables(store, variable)

    name = name_of(store, variable)

    assert name.startswith(f"{shown}-")
    assert key_split((name, 0)) == key_split(name) == shown


def test_selections_that_are_read_keep_the_name(path):
    picked = open_ours(path, chunks={})["u10"].isel(time=slice(1, 9))

    (optimized,) = dask.optimize(picked)

    assert "gpuzarr_u10-getitem" in set(map(key_split, optimized.__dask_graph__()))


@pytest.mark.parametrize(
    "keywords", [{"mask_and_scale": False}, {"chunks": {"time": 8}}, {"chunks": -1}, {"device": "workers"}]
)
def test_what_changes_values_or_blocks_changes_names(path, keywords):
    assert name_of(path, "t2m", **keywords) != name_of(path, "t2m")


def test_names_are_the_same_in_another_process(path):
    code = f"""
        import sys
        sys.path[:0] = {sys.path!r}
        from helpers.data.datasets import open_ours
        print(*(open_ours({str(path)!r}, chunks={{}})[name].data.name for name in {VARIABLES!r}))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [name_of(str(path), name) for name in VARIABLES]


@pytest.mark.parametrize("store", ["memory", "zip"])
def test_other_stores_are_the_same_tasks_when_opened_twice(tmp_path, store):
    opened = MemoryStore() if store == "memory" else ZipStore(tmp_path / "s.zip", mode="w")
    write_variables(opened, "a", "b")
    opened.close()
    opened = opened if store == "memory" else ZipStore(tmp_path / "s.zip", mode="r")

    first, second = ({name: name_of(opened, name) for name in "ab"} for _ in range(2))

    assert first == second
    assert first["a"] != first["b"]


def test_later_chunking_is_named_too(path):
    lazy = open_ours(path)["u10"].isel(time=slice(2, None))

    first, second = (lazy.chunk(time=4).data.name for _ in range(2))

    assert first == second
    assert key_split(first) == "gpuzarr_u10"
    assert first != open_ours(path)["u10"].chunk(time=4).data.name


@pytest.mark.parametrize("named", ["mine", f"mine-{'0' * 31}", "xarray-mine"])
def test_names_that_users_choose_are_kept(path, named):
    lazy = open_ours(path)

    assert lazy["u10"].variable.chunk({}, name=named).data.name == named
    assert lazy.chunk(name_prefix="mine-")["u10"].data.name.startswith("mine-u10-")


@pytest.mark.parametrize("named", [None, True])
def test_dask_may_be_left_to_name_tasks(path, named):
    lazy = open_ours(path)["u10"].variable

    assert key_split(lazy.chunk({}, from_array_kwargs={"name": named}).data.name) == "gpuzarr_u10"


def test_names_that_are_never_the_same(path):
    lazy = open_ours(path)["u10"].variable

    one, two = (lazy.chunk({}, from_array_kwargs={"name": False}).data for _ in range(2))

    assert one.name != two.name
    np.testing.assert_array_equal(one.compute(), two.compute())


@pytest.mark.parametrize(
    "chosen", [{"x": slice(0, 2000)}, {"x": np.arange(2000)}, {"x": xr.Variable("p", np.arange(2000))}]
)
def test_other_selections_are_other_tasks(chosen):
    store, other = MemoryStore(), np.arange(2000)
    other[1000] = 4000
    xr.Dataset({"v": ("x", np.arange(5000.0))}).to_zarr(store)
    variable = open_ours(store)["v"].variable

    first, again, second = (variable.isel(x=x).chunk() for x in (chosen["x"], chosen["x"], other))

    assert first.data.name == again.data.name != second.data.name
    assert (second.data - first.data).compute()[1000] == 3000


@pytest.mark.parametrize("wrapped", [lambda store: store, Wrapper], ids=["memory", "other"])
@pytest.mark.parametrize(
    "keywords", [{"chunks": (2,)}, {"chunks": (4,), **checked_shards((2,))}], ids=["planned", "by zarr"]
)
def test_other_stores_are_other_tasks(wrapped, keywords):
    opened = []
    for first in (0, 1):
        store = MemoryStore()
        array = zarr.open_group(store).create_array("v", shape=(4,), dtype="f8", dimension_names=("x",), **keywords)
        array[:] = np.arange(4) + first
        opened.append(open_ours(wrapped(store), consolidated=False)["v"].variable.chunk().data)

    assert opened[0].name != opened[1].name
    assert (opened[1] - opened[0]).compute().tolist() == [1, 1, 1, 1]


def test_stores_that_differ_in_options_alone_are_other_tasks():
    names = []
    for account in ("a", "b"):
        store = FsspecStore.from_url("memory://other-tasks", storage_options={"account": account})
        xr.Dataset({"v": ("x", np.arange(4.0))}).to_zarr(store, mode="w")
        names.append(open_ours(store)["v"].variable.chunk().data.name)

    assert names[0] != names[1]
