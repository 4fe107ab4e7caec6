"""The one layout of every error, and its way through pickle."""

import pickle

import cloudpickle
import pytest

import xarray_gpuzarr
from xarray_gpuzarr import GpuZarrError

CLASSES = {
    "OptionError": ValueError,
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
