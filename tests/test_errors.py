"""The one layout of every error, and its way through pickle."""

import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import xarray as xr
import zarr

import xarray_gpuzarr
from xarray_gpuzarr import ArrayTypeError, GpuZarrError, OptionError, read_array

CLASSES = {
    "OptionError": ValueError,
    "ArrayTypeError": TypeError,
    "SelectionError": IndexError,
    "MetadataError": ValueError,
    "UnsupportedCodecError": NotImplementedError,
    "DeviceUnavailableError": RuntimeError,
    "StoreReadError": OSError,
    "ShardIndexError": ValueError,
    "CorruptChunkError": ValueError,
    "DeviceMemoryError": MemoryError,
    "HostMemoryError": MemoryError,
    "CudaError": RuntimeError,
}


def build(name):
    return getattr(xarray_gpuzarr, name)("cannot do it", tried="this", found="that", do="something else")


@pytest.mark.parametrize("name", CLASSES)
def test_message_says_what_was_tried_found_and_what_to_do(name):
    assert str(build(name)) == "cannot do it\n  tried: this\n  found: that\n  do:    something else"


@pytest.mark.parametrize(("name", "builtin"), CLASSES.items())
def test_error_is_also_the_builtin_that_one_expects(name, builtin):
    error = build(name)

    assert isinstance(error, GpuZarrError)
    assert isinstance(error, builtin)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("module", [pickle, cloudpickle])
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_error_survives_pickle(name, module, protocol):
    error = build(name)

    again = module.loads(module.dumps(error, protocol=protocol))

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert (again.headline, again.tried, again.found, again.do) == ("cannot do it", "this", "that", "something else")


@pytest.mark.parametrize("missing", ["tried", "found", "do"])
def test_no_part_of_the_message_may_be_left_out(missing):
    parts = {"tried": "this", "found": "that", "do": "something else"}
    del parts[missing]

    with pytest.raises(TypeError, match=missing):
        GpuZarrError("cannot do it", **parts)


def test_every_error_is_public():
    names = [n for n in xarray_gpuzarr.__all__ if isinstance(getattr(xarray_gpuzarr, n), type)]
    raised = (n for n in names if issubclass(getattr(xarray_gpuzarr, n), Exception))
    public = {n for n in raised if not issubclass(getattr(xarray_gpuzarr, n), Warning)}

    assert public == {"GpuZarrError", *CLASSES}


GROUP = zarr.group({})
GROUP.create_array("b", shape=(3,), dtype="f4")
GROUP.create_array("a", shape=(3,), dtype="f4")


@pytest.mark.parametrize(
    ("given", "kind", "do"),
    [
        ("era5.zarr/t2m", "builtins.str", "open it: zarr.open_array('era5.zarr/t2m', mode='r'), or zarr.open_group"),
        (Path("era5.zarr"), "pathlib", "open it: zarr.open_array('era5.zarr', mode='r')"),
        (GROUP, "zarr", "choose one of its arrays: 'a', 'b'"),
        (zarr.group({}), "zarr", "choose one of its arrays: it has none"),
        (xr.Dataset(), "xarray.core.dataset.Dataset", "load it: .load() or .compute(); read_array reads without"),
        (xr.DataArray([1]), "xarray.core.dataarray.DataArray", "load it: .load() or .compute()"),
        (np.ones(3), "numpy.ndarray", "open one: zarr.open_array(store, mode='r')"),
        (None, "builtins.NoneType", "open one: zarr.open_array(store, mode='r')"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_read_array_says_what_it_wants(given, kind, do):
    with pytest.raises(ArrayTypeError, match="read_array takes an open zarr array") as caught:
        read_array(given)

    assert isinstance(caught.value, TypeError | OptionError)
    assert caught.value.tried.startswith(f"read_array of an instance of {kind}")
    assert caught.value.found == "no zarr.Array"
    assert caught.value.do.startswith(do)
