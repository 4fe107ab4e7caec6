"""What a path that holds no group is said to hold instead, and which groups there are."""

import shutil
from pathlib import PurePosixPath

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.stores.fakes import Wrapper
from zarr.storage import LocalStore, ZipStore

from xarray_gpuzarr import NoGroupError
from xarray_gpuzarr.backend.open_errors import IMAGE_RECIPES_HINT

pytestmark = pytest.mark.filterwarnings("ignore")

opens = pytest.mark.parametrize("opens", [xr.open_dataset, xr.open_datatree])
ONE_OF = "name one of the groups in"
FIELD = xr.Dataset({"t": (("y", "x"), np.ones((4, 6)))})


@pytest.fixture(params=["consolidated", "loose"])
def store(request, tmp_path, zarr_format):
    """A folder with one store: an array and a few groups below each other."""
    path = tmp_path / "s.zarr"
    for group in (None, "obs", "obs/a", "model"):
        FIELD.to_zarr(path, group=group, mode="a", consolidated=False, zarr_format=zarr_format)
    if request.param == "consolidated":
        zarr.consolidate_metadata(path)
    return path


@opens
@pytest.mark.parametrize(
    "kind", [str, LocalStore, lambda path: Wrapper(LocalStore(path))], ids=["path", "store", "slow"]
)
@pytest.mark.parametrize(
    ("group", "found", "do"),
    [
        ("obs/c", "no group 'obs/c'; the arrays there are t", f"{ONE_OF} 'obs' (perhaps 'obs/a'): obs/a"),
        ("/ob/", "no group 'ob'", f"{ONE_OF} this store (perhaps 'obs'): model, obs"),
        ("zzz/a", "no group 'zzz/a'", f"{ONE_OF} this store: model, obs"),
        ("obs/a/b", "there are no groups in 'obs/a'", "open 'obs/a'"),
        (PurePosixPath("modle"), "no group 'modle'", f"{ONE_OF} this store (perhaps 'model'): model, obs"),
        ("obs/t", "an array, not a group, at 'obs/t'", "read it alone: "),
    ],
)
def test_a_mistyped_group(store, opens, kind, group, found, do):
    with pytest.raises(NoGroupError) as caught:
        opens(kind(store), engine="gpuzarr", group=group)

    assert isinstance(caught.value, KeyError)
    assert caught.value.found.startswith(found)
    assert caught.value.do.startswith(do)


def test_a_store_without_groups(tmp_path):
    FIELD.to_zarr(tmp_path / "s.zarr")

    with pytest.raises(NoGroupError) as caught:
        xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", group="a")

    assert caught.value.found == "there are no groups in this store; the arrays there are t"
    assert caught.value.do == "leave the group out"


@opens
def test_a_file_of_another_format(tmp_path, opens):
    FIELD.to_netcdf(tmp_path / "s.nc")

    with pytest.raises(NoGroupError, match="a file that is no Zarr store") as caught:
        opens(tmp_path / "s.nc", engine="gpuzarr")

    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.do.startswith("xarray.open_dataset(path) without engine=")


@opens
def test_a_single_array(store, opens):
    with pytest.raises(NoGroupError) as caught:
        opens(store / "t", engine="gpuzarr")

    assert caught.value.found == "an array, not a group"
    assert IMAGE_RECIPES_HINT in caught.value.do


def test_arrays_that_do_not_fit_the_others_are_named(tmp_path):
    root = zarr.create_group(tmp_path / "s.zarr")
    for name, n in {"a": 4, "b": 5, "x": 4, "y": 5}.items():
        root.create_array(name, data=np.arange(n), dimension_names=["y" if name == "y" else "x"])

    with pytest.raises(NoGroupError, match="are no dataset") as caught:
        xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", consolidated=False)

    assert "if an append has been interrupted" in caught.value.do
    assert "leave out those that do not fit: drop_variables=['b']; or " in caught.value.do
    opened = xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", consolidated=False, drop_variables=["b"])
    assert {*opened.variables} == {"a", "x", "y"}


def test_where_nothing_is_the_error_is_that_of_the_stock_engine(tmp_path):
    with pytest.raises(FileNotFoundError) as stock:
        xr.open_dataset(tmp_path / "none.zarr", engine="zarr")
    with pytest.raises(FileNotFoundError) as ours:
        xr.open_dataset(tmp_path / "none.zarr", engine="gpuzarr")

    assert (type(ours.value), str(ours.value)) == (type(stock.value), str(stock.value))


def test_a_folder_of_stores(store):
    with pytest.raises(NoGroupError, match=r"no zarr.json or .zgroup in this folder") as caught:
        xr.open_dataset(store.parent, engine="gpuzarr")
    with pytest.raises(NoGroupError) as of_a_group:
        xr.open_dataset(store.parent, engine="gpuzarr", group="s.zarr")

    assert caught.value.do == "name a store in it: s.zarr"
    assert of_a_group.value.do == f"open {store}"


def test_another_zarr_format(store, zarr_format):
    with pytest.raises(NoGroupError, match=f"a group of Zarr format {zarr_format}") as caught:
        xr.open_dataset(store, engine="gpuzarr", zarr_format=5 - zarr_format)

    assert caught.value.do == f"leave zarr_format out, or give zarr_format={zarr_format}"


@opens
def test_a_zip_file(tmp_path, opens):
    path = tmp_path / "s.zip"
    with ZipStore(path, mode="w") as zipped:
        FIELD.to_zarr(zipped, consolidated=False)

    with pytest.raises(NoGroupError, match="a zip file") as caught:
        opens(str(path), engine="gpuzarr")

    by_url, said = f"zip::{path}", caught.value.do
    assert said == f"open zarr.storage.ZipStore('{path}') in place of its path; on the command line, {by_url}"
    assert opens(by_url, engine="gpuzarr", consolidated=False)["t"].shape == (4, 6)
    assert opens(ZipStore(path), engine="gpuzarr", consolidated=False)["t"].shape == (4, 6)


def test_a_zip_file_of_a_folder(tmp_path):
    """As most programs pack one."""
    FIELD.to_zarr(tmp_path / "in" / "s.zarr", consolidated=False)
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "in")
    store = ZipStore(tmp_path / "packed.zip")

    with pytest.raises(NoGroupError, match="at the top of this zip file") as caught:
        xr.open_dataset(store, engine="gpuzarr")

    assert caught.value.do == "name a store in it, with consolidated=False: group=s.zarr"
    with pytest.raises(NoGroupError, match="open it with consolidated=False"):
        xr.open_dataset(store, engine="gpuzarr", group="s.zarr")
    assert xr.open_dataset(store, engine="gpuzarr", group="s.zarr", consolidated=False)["t"].shape == (4, 6)


@pytest.mark.parametrize("group", [None, "s.zarr"])
@pytest.mark.parametrize("scheme", ["", "zip::"])
def test_the_path_of_a_zip_file_of_a_folder(tmp_path, group, scheme):
    FIELD.to_zarr(tmp_path / "in" / "s.zarr", consolidated=False)
    path = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "in")

    with pytest.raises(NoGroupError) as caught:
        xr.open_dataset(scheme + path, engine="gpuzarr", group=group)

    address = caught.value.do.split()[-1]
    assert address == f"zip://s.zarr::{path}"
    assert xr.open_dataset(address, engine="gpuzarr", consolidated=False)["t"].shape == (4, 6)


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: f"file://{path}"])
def test_a_missing_array_of_a_group(store, kind):
    with pytest.raises(NoGroupError, match="nothing is there") as caught:
        xr.open_dataset(kind(store / "u"), engine="gpuzarr")

    assert caught.value.do.startswith("name what is in the group '")
    assert caught.value.do.endswith(f"{store}': model, obs, t")
