"""``tree.gpuzarr.to_zarr`` and ``array.gpuzarr.to_zarr`` store what xarray's own methods store, in shards."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.writes import contents
from zarr.storage import MemoryStore

from xarray_gpuzarr.errors import OptionError

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
CHUNKS, SHARDS = {"time": 2, "x": 3}, {"time": 4}
PACKED = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}


def field(n_times, names="ab", seed=0):
    """Return a dataset of packed variables along time."""
    values = np.random.default_rng(seed).integers(0, 99, (n_times, 6)) / 2
    ds = xr.Dataset({name: (("time", "x"), values, {"units": "K"}) for name in names}, {"time": np.arange(n_times)})
    for name in names:
        ds[name].encoding = dict(PACKED)
    return ds


def tree(chunks=None):
    """Return a tree of groups, some of which lack the dimension that sizes name."""
    groups = {
        "/": xr.Dataset({"height": ("x", np.arange(6.0))}, attrs={"title": "invented"}),
        "/coarse": field(8, seed=1),
        "/fine/deep": field(5, "c", seed=2),
        "/fine": xr.Dataset({"level": 3}),
    }
    if chunks is not None:
        for path, ds in groups.items():
            groups[path] = ds.chunk({dim: n for dim, n in chunks.items() if dim in ds.dims})
    return xr.DataTree.from_dict(groups)


def encodings(made, zarr_format):
    """Return what gives xarray's own method the same chunks, shards and packing."""
    by_path = {}
    for node in made.subtree:
        ds = node.to_dataset(inherit=node is made)
        sizes = [{dim: n for dim, n in size.items() if dim in ds.dims} for size in (CHUNKS, SHARDS)]
        by_path[node.path] = ds.gpuzarr.encoding(*sizes, zarr_format=zarr_format)
    return by_path


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [None, {"time": 4, "x": 6}], ids=["NumPy", "dask"])
def test_a_tree_is_stored_as_by_xarray(chunks, zarr_format, consolidated):
    ours, stock, made = MemoryStore(), MemoryStore(), tree(chunks)

    returned = made.gpuzarr.to_zarr(ours, CHUNKS, SHARDS, zarr_format=zarr_format, consolidated=consolidated)
    made.to_zarr(
        stock, encoding=encodings(made, zarr_format), zarr_format=zarr_format, consolidated=consolidated, mode="w-"
    )

    assert isinstance(returned, xr.backends.ZarrStore)
    assert contents(ours) == contents(stock)
    group = zarr.open_group(ours, mode="r")
    assert group["coarse/a"].shards == ((4, 6) if zarr_format == 3 else None)
    opened = xr.open_datatree(ours, engine="gpuzarr", device="host", consolidated=consolidated)
    xr.testing.assert_equal(opened, made.compute())


def test_modes_of_trees_are_xarrays(tmp_path):
    made = tree()
    made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, SHARDS)
    with pytest.raises(FileExistsError):
        made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, SHARDS)
    more = xr.DataTree.from_dict({"/coarse": field(8, "z", seed=5), "/new": field(3)})
    more.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, SHARDS, mode="a")
    opened = xr.open_datatree(tmp_path / "t", engine="zarr")
    assert {"a", "b", "z"} == set(opened["coarse"].data_vars)
    xr.testing.assert_equal(opened["new"].to_dataset(), field(3))
    made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, SHARDS, mode="w")
    xr.testing.assert_equal(xr.open_datatree(tmp_path / "t", engine="zarr"), made)


def test_a_tree_is_written_later(tmp_path):
    made = tree({"time": 4, "x": 6})
    task = made.gpuzarr.to_zarr(
        tmp_path / "t", CHUNKS, SHARDS, compute=False, encoding={"/coarse": {"a": {"dtype": "i4"}}}
    )
    assert zarr.open_group(tmp_path / "t", mode="r")["coarse/a"].dtype == np.int32
    task.compute()
    xr.testing.assert_equal(xr.open_datatree(tmp_path / "t", engine="zarr"), made.compute())


def test_what_cannot_be_written_erases_nothing(tmp_path):
    made = tree()
    made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, SHARDS)
    with pytest.raises(OptionError, match="no whole number of chunks"):
        made.gpuzarr.to_zarr(tmp_path / "t", {"time": 3}, {"time": 4}, mode="w")
    with pytest.raises(OptionError, match="no dimension 'tim'"):
        made.gpuzarr.to_zarr(tmp_path / "t", {"tim": 3}, mode="w")
    with pytest.raises(OptionError, match="unknown group '/corse'"):
        made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, encoding={"/corse": {}}, mode="w")
    for keyword in ({"group": "x"}, {"append_dim": "time"}):
        with pytest.raises(NotImplementedError, match="for trees"):
            made.gpuzarr.to_zarr(tmp_path / "t", CHUNKS, mode="a", **keyword)
    xr.testing.assert_equal(xr.open_datatree(tmp_path / "t", engine="zarr"), made)


@pytest.mark.parametrize("name", ["a", None, "time"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_is_stored_as_by_xarray(name, zarr_format):
    ours, stock = MemoryStore(), MemoryStore()
    array = field(8).a.rename(name)
    stored = name if name == "a" else "__xarray_dataarray_variable__"
    shards = {"shards": (4, 6)} if zarr_format == 3 else {}
    encoding = {"time": {"chunks": (4,) if zarr_format == 3 else (2,)}}
    encoding[stored] = {"chunks": (2, 3), **shards, **PACKED}

    array.gpuzarr.to_zarr(ours, CHUNKS, SHARDS, zarr_format=zarr_format)
    array.to_zarr(stock, encoding=encoding, zarr_format=zarr_format)

    assert contents(ours) == contents(stock)
    xr.testing.assert_identical(xr.open_dataarray(ours, engine="zarr").drop_encoding(), array.drop_encoding())


@pytest.mark.parametrize("chunks", [None, {"time": 4}])
def test_errors_about_a_variable_name_its_group(chunks):
    tree = xr.DataTree.from_dict({"/": field(8), "/inner": field(8) + 1e6})
    tree["inner/a"].encoding = PACKED
    if chunks is not None:
        tree = tree.chunk(chunks)

    with pytest.raises(OptionError, match="values of variable 'a' do not fit") as caught:
        tree.gpuzarr.to_zarr(MemoryStore(), CHUNKS, SHARDS)

    assert "tried: in group 'inner': to store them as" in str(caught.value)
