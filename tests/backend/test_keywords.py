"""Keywords: every one that xarray's own zarr engine takes means the same here, or is refused with a reason."""

import inspect
from pathlib import PurePosixPath

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.compare import assert_same_dataset
from xarray.backends import ZarrStore
from xarray.backends.zarr import ZarrBackendEntrypoint

from xarray_gpuzarr import KeywordError, OptionError
from xarray_gpuzarr.backend import GpuZarrBackendEntrypoint
from xarray_gpuzarr.backend.open_options import DecodeOptions

pytestmark = pytest.mark.filterwarnings("ignore")


def keywords_of(method):
    """Return what a method takes by name, with its default; ``**decoding`` stands for `DecodeOptions`."""
    parameters = inspect.signature(method).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    decoding = inspect.signature(DecodeOptions).parameters.values() if rest else ()
    return named | {p.name: p.default for p in decoding}


@pytest.mark.parametrize(
    ("stock", "ours"),
    [
        (ZarrBackendEntrypoint.open_dataset, GpuZarrBackendEntrypoint.open_dataset),
        (ZarrBackendEntrypoint.open_groups_as_dict, GpuZarrBackendEntrypoint.open_groups_as_dict),
        (ZarrBackendEntrypoint.open_datatree, GpuZarrBackendEntrypoint.open_groups_as_dict),
    ],
)
def test_keywords_of_the_zarr_engine_are_known_with_their_defaults(stock, ours):
    assert keywords_of(stock).items() <= keywords_of(ours).items()


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree, xr.open_groups])
def test_reading_may_be_asked_for(path, opener):
    assert opener(path, engine="gpuzarr", device="host", mode="r") is not None


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree, xr.open_groups])
@pytest.mark.parametrize("mode", ["r+", "a", "a-", "w", "w-", "x", None])
def test_other_modes_are_refused_before_anything_is_touched(path, opener, mode):
    before = sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*"))

    with pytest.raises(OptionError, match="only reads") as raised:
        opener(path, engine="gpuzarr", mode=mode)

    assert f"mode={mode!r}" in raised.value.tried
    assert "to_zarr" in raised.value.do
    assert sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*")) == before


@pytest.mark.parametrize("kind", [str, PurePosixPath])
def test_the_group_of_a_tree_may_be_a_path_object(tmp_path, kind):
    xr.DataTree.from_dict({"/g/h": xr.Dataset({"a": ("x", np.arange(3.0))})}).to_zarr(tmp_path)

    ours = xr.open_datatree(tmp_path, engine="gpuzarr", device="host", group=kind("g"))

    assert ours.identical(xr.open_datatree(tmp_path, engine="zarr", group=kind("g")))


@pytest.mark.parametrize("group", [b"g", 5, ["g"]])
def test_what_is_no_name_of_a_group_is_refused_alike(path, group):
    def refusal(engine):
        with pytest.raises(TypeError) as raised:
            xr.open_datatree(path, engine=engine, group=group)
        return str(raised.value)

    assert refusal("gpuzarr") == refusal("zarr")


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree, xr.open_groups])
@pytest.mark.parametrize(("given", "meant"), [("devise", "device"), ("chunk", "chunks")])
def test_an_unknown_keyword_is_refused_with_those_that_exist(path, opener, given, meant):
    with pytest.raises(KeywordError, match=f"unknown keyword '{given}'") as raised:
        opener(path, engine="gpuzarr", **{given: {}})

    assert isinstance(raised.value, TypeError)
    assert {"device", "storage", "group", "decode_times"} <= set(raised.value.found.partition(": ")[2].split(", "))
    assert raised.value.do == f"leave it out, or choose one of these (perhaps '{meant}')"


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree, xr.open_groups, xr.open_dataarray])
@pytest.mark.parametrize(
    ("device", "meant"), [("cpu", "host"), ("gpu", "cuda"), ("Cuda", "cuda"), ("works", "workers")]
)
def test_an_unknown_device_is_refused_with_the_one_that_was_meant(path, opener, device, meant):
    with pytest.raises(OptionError, match="unknown device") as raised:
        opener(path, engine="gpuzarr", device=device)

    assert "'auto', 'cuda', 'host'" in raised.value.found
    assert raised.value.do == f"leave device out, or choose one of these (perhaps '{meant}')"


def test_an_open_store_is_read_in_place_of_the_path(path):
    def opened():
        return ZarrStore.open_group(path, mode="r", consolidated=False)

    ours = xr.open_dataset("not looked at", engine="gpuzarr", device="host", store=opened())
    assert_same_dataset(ours, xr.open_dataset("not looked at", engine="zarr", store=opened()))


def test_another_kind_of_open_store_is_refused(path):
    with pytest.raises(OptionError, match="not an open Zarr store") as raised:
        xr.open_dataset(path, engine="gpuzarr", store=xr.Dataset({"a": ("x", np.zeros(2))}))

    assert "Dataset" in raised.value.found


@pytest.mark.parametrize("kind", [list, tuple, set, np.array, pd.Index, pd.Series, iter, dict.fromkeys])
@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"], ["b", "not there"]])
def test_variables_to_drop_come_in_any_container(memory, kind, names):
    """Also in one whose truth is ambiguous, or that is empty."""
    xr.Dataset({name: ("x", np.arange(4.0)) for name in "abc"}).to_zarr(memory, consolidated=False)

    stock = xr.open_dataset(memory, engine="zarr", consolidated=False, drop_variables=kind(names))
    ours = xr.open_dataset(memory, engine="gpuzarr", device="host", consolidated=False, drop_variables=kind(names))

    assert_same_dataset(ours.load(), stock.load())
