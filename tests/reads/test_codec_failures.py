"""Codecs that cannot run, for want of a package, of memory or of anything else: no damage, and what to do is said."""

import errno
import os
import sys

import kerchunk.codecs
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.damage import assert_explains
from helpers.older_versions import FILTERS_TAKE_ANY_ELEMENTS
from numcodecs.abc import Codec
from zarr.storage import MemoryStore

from xarray_gpuzarr import (
    CorruptChunkError,
    HostMemoryError,
    StoreReadError,
    UnsupportedCodecError,
    batches,
    read_array,
    zarr_pipeline,
)

pytestmark = [pytest.mark.every_decoder, pytest.mark.filterwarnings("ignore")]

DATA = np.arange(48, dtype="<f4").reshape(8, 6)
RAISED = {
    "no package": (
        ModuleNotFoundError("No module named 'eccodes'", name="eccodes"),
        UnsupportedCodecError,
        "'eccodes'",
    ),
    "no part": (
        ImportError("libjpeg.so: cannot open shared object file"),
        UnsupportedCodecError,
        "install the package",
    ),
    "not written": (NotImplementedError("no decoding"), UnsupportedCodecError, "newer version"),
    "memory": (MemoryError("malloc of 10 bytes"), HostMemoryError, "fewer threads"),
    "files": (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), StoreReadError, "ulimit -n"),
    "damage": (ValueError("bad magic"), CorruptChunkError, "rewrite it"),
    "damage, as an error of the system": (OSError("Not a gzipped file"), CorruptChunkError, "rewrite it"),
    "anything": (RuntimeError("-3"), CorruptChunkError, "rewrite it"),
}


class Failing(Codec):
    """Stores bytes as they are, and raises to decode them."""

    codec_id = "gpuzarr_tests_failing"
    raised = ValueError()

    def encode(self, buf):
        return bytes(buf)

    def decode(self, buf, out=None):
        raise self.raised


@pytest.fixture
def store():
    numcodecs.register_codec(Failing)
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=2)
    array = group.create_array("a", shape=DATA.shape, chunks=(4, 6), dtype="<f4", compressors=Failing())
    array.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    array[...] = DATA
    return store


def opened(store, **keywords):
    return xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False, **keywords)


def by_pipeline(store):
    with zarr_pipeline():
        return zarr.open_array(store, path="a", mode="r")[...]


DOORS = {
    "read_array": lambda store: read_array(zarr.open_array(store, path="a", mode="r"), device="host"),
    "engine": lambda store: opened(store).a.values,
    "dask": lambda store: opened(store, chunks={}).a.values,
    "pipeline": by_pipeline,
    "batches": lambda store: next(iter(batches(opened(store), {"y": 2}, 2))),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("raised", RAISED)
def test_what_a_codec_raises_has_its_own_error(store, monkeypatch, raised, door):
    error, expected, do = RAISED[raised]
    monkeypatch.setattr(Failing, "raised", error)

    with pytest.raises(expected) as caught:
        DOORS[door](store)

    assert type(caught.value) is expected
    assert_explains(caught.value, "of array '/a'", str(error), do)
    assert ("damaged" in str(caught.value)) == (expected is CorruptChunkError)


@pytest.mark.host_decoder
def test_grib_without_eccodes_says_so(store):
    """As kerchunk's references to GRIB files are stored."""
    numcodecs.register_codec(kerchunk.codecs.GRIBCodec, "grib")
    group = zarr.open_group(store, mode="a")
    compressor = kerchunk.codecs.GRIBCodec(var="t", dtype="float32")
    group.create_array("g", shape=(6,), chunks=(6,), dtype="<f4", compressors=compressor)[:] = 1

    with pytest.raises(UnsupportedCodecError, match="No module named 'eccodes'") as caught:
        read_array(zarr.open_array(store, path="g", mode="r"), device="host")

    assert "install the package that has 'eccodes'" in caught.value.do


@pytest.mark.host_decoder
@pytest.mark.skipif(not FILTERS_TAKE_ANY_ELEMENTS, reason="zarr-python has no cast_value yet")
def test_a_filter_whose_package_is_missing_is_no_damage(memory, monkeypatch):
    from zarr.codecs import CastValue  # noqa: PLC0415  # newer versions have it

    array = zarr.create_array(memory, data=DATA, chunks=(4, 6), filters=CastValue(data_type="int16"))
    monkeypatch.setitem(sys.modules, "cast_value_rs", None)

    with pytest.raises(UnsupportedCodecError, match="a codec could not run") as caught:
        read_array(array, device="host")

    assert "cast_value_rs" in caught.value.do
