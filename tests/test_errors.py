"""The one layout of every error, and its way through pickle, copies and other processes."""

import copy
import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import xarray as xr
import zarr

import xarray_gpuzarr
from xarray_gpuzarr import ArrayTypeError, GpuZarrError, OptionError, explain, read_array
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import ChunkDoesNotFitError
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError
from xarray_gpuzarr.errors import NativeLayoutError, similar_name_hint
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError, PiecesDifferError
from xarray_gpuzarr.fetch.strict import ChunkNotFoundError

CLASSES = {
    "OptionError": ValueError,
    "ArrayTypeError": TypeError,
    "KeywordError": TypeError,
    "NoGroupError": KeyError,
    "SelectionError": IndexError,
    "MetadataError": ValueError,
    "UnsupportedCodecError": NotImplementedError,
    "DeviceUnavailableError": RuntimeError,
    "MissingChunkError": ChunkNotFoundError,
    "StoreReadError": OSError,
    "StoreWriteError": OSError,
    "ShardIndexError": ValueError,
    "CorruptChunkError": ValueError,
    "DeviceMemoryError": MemoryError,
    "HostMemoryError": MemoryError,
    "CudaError": RuntimeError,
}
INTERNAL = {
    ObjectChangedError,
    PiecesDifferError,
    DifferentValuesError,
    ChunkDoesNotFitError,
    NativeLayoutError,
}


def classes(base=GpuZarrError):
    """Return every error class of the package."""
    return {base}.union(*map(classes, base.__subclasses__()))


CARRIERS = {
    "its text": lambda error: type(error)(str(error)),
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "oldest pickle": lambda error: pickle.loads(pickle.dumps(error, protocol=0)),
    "cloudpickle": lambda error: cloudpickle.loads(cloudpickle.dumps(error)),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
}
"""How errors get into another process or thread."""


@pytest.mark.parametrize(("name", "builtin"), CLASSES.items())
def test_error_is_also_the_builtin_that_one_expects(name, builtin):
    error = getattr(xarray_gpuzarr, name)("cannot do it", tried="this", found="that", do="something else")

    assert isinstance(error, GpuZarrError)
    assert isinstance(error, builtin)


def test_every_error_class_is_known_here():
    assert classes() == INTERNAL | {getattr(xarray_gpuzarr, name) for name in ("GpuZarrError", *CLASSES)}


@pytest.mark.parametrize("kind", sorted(classes(), key=lambda kind: kind.__name__))
@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("again", [CARRIERS["its text"], CARRIERS["pickle"]], ids=["its text", "pickle"])
def test_errors_keep_class_and_text_however_they_are_carried(kind, carry, again):
    error = kind("cannot do it", tried="this\n", found="that\x1b", do="something else")
    text = "cannot do it\n  tried: this\\n\n  found: that\\x1b\n  do:    something else"

    carried = again(carry(error))

    assert type(carried) is kind
    assert str(carried) == str(error) == text


def test_a_text_that_is_laid_out_is_shown_line_by_line():
    assert str(GpuZarrError("Caught it.\nOriginal:\x1b[31m\n  do:    this")) == (
        "Caught it.\nOriginal:\\x1b[31m\n  do:    this"
    )


GROUP = zarr.group({})
GROUP.create_array("b", shape=(3,), dtype="f4")
GROUP.create_array("a", shape=(3,), dtype="f4")


@pytest.mark.parametrize(
    ("asked", "given", "kind", "do"),
    [
        (read_array, "a.zarr/t", "builtins.str", "open it: zarr.open('a.zarr/t', mode='r') if it is an array, "),
        (read_array, Path("a.zarr"), "pathlib", "open it: zarr.open('a.zarr', mode='r') if it is an array, "),
        (read_array, GROUP, "zarr", "choose one of its arrays: 'a', 'b'"),
        (read_array, zarr.group({}), "zarr", "choose one of its arrays: it has none"),
        (read_array, xr.Dataset(), "xarray.core.dataset.Dataset", "load it: .load() or .compute(); read_array reads"),
        (read_array, xr.DataArray([1]), "xarray.core.dataarray.DataArray", "load it: .load() or .compute()"),
        (read_array, np.ones(3), "numpy.ndarray", "open one: zarr.open_array(store, mode='r')"),
        (read_array, None, "builtins.NoneType", "open one: zarr.open_array(store, mode='r')"),
        (explain, xr.Dataset(), "xarray.core.dataset.Dataset", "use the accessor: ds.gpuzarr.explain()"),
        (explain, xr.DataArray([1]), "xarray.core.dataarray.DataArray", "use the accessor: ds.gpuzarr.explain()"),
        (explain, "a.zarr", "builtins.str", "open it: zarr.open('a.zarr', mode='r') if it is an array, zarr.open("),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_functions_of_arrays_say_what_they_want(asked, given, kind, do):
    with pytest.raises(ArrayTypeError, match=f"{asked.__name__} takes an open zarr array") as caught:
        asked(given)

    assert isinstance(caught.value, TypeError | OptionError)
    assert caught.value.tried.startswith(f"{asked.__name__} of an instance of {kind}")
    assert caught.value.found == "an object that is not a zarr.Array"
    assert caught.value.do.startswith(do)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("lat", ["time", "latitude", "longitude"], " (perhaps 'latitude')"),
        ("lon", ["time", "latitude", "longitude"], " (perhaps 'longitude')"),
        ("devise", ["device", "storage"], " (perhaps 'device')"),
        ("z", ["time", 5], ""),
        ("z", [], ""),
    ],
)
def test_close_names_are_offered(name, known, said):
    assert similar_name_hint(name, known) == said


def test_long_words_of_others_are_shown_without_their_middle():
    said = "begin " + "x" * 100_000 + " end"
    error = xarray_gpuzarr.StoreReadError("cannot read it", tried="GET", found=said, do="read again")

    shown = str(error)

    assert len(shown) < 2500
    assert "found: begin xxx" in shown
    assert "[... 98010 characters ...]" in shown
    assert "xxx end\n  do:    read again" in shown
    assert error.found == said
    whole = xarray_gpuzarr.StoreReadError("cannot read it", tried="GET", found="y" * 2000, do="read")
    assert str(whole).count("y") == 2000
