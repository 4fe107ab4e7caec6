"""``ds.gpuzarr.encoding``: sizes instead of shapes, packing kept, and stores that xarray writes with it."""

import math

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.errors import OptionError

DIMS = ("time", "y", "x")
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32768)}


def weather(n_times=6):
    """Temperatures with missing values, times, text and a number."""
    values = np.random.default_rng(0).uniform(250, 300, (n_times, 9, 14)).round(2)
    values[0, 0, 0] = np.nan
    times = np.datetime64("2020-01-01", "ns") + np.arange(n_times) * np.timedelta64(6, "h")
    ds = xr.Dataset({"t2m": (DIMS, values), "n": ((), 7), "mask": (("y", "x"), np.ones((9, 14), bool))})
    return ds.assign_coords(time=times, y=np.arange(9.0), name=("y", [f"row {n}" for n in range(9)]))


@pytest.fixture(params=[2, 3])
def source(request):
    """A packed store of each format, as it is opened."""
    store = MemoryStore()
    weather().to_zarr(store, zarr_format=request.param, encoding={"t2m": PACKED}, consolidated=False)
    return xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [None, {"time": 4}])
def test_what_is_written_is_packed_and_sharded_and_the_same(source, zarr_format, chunks):
    encoding = source.gpuzarr.encoding({"time": 1, "y": 4}, {"time": 4, "y": -1}, zarr_format=zarr_format)
    store = MemoryStore()

    (source if chunks is None else source.chunk(chunks)).to_zarr(
        store, encoding=encoding, zarr_format=zarr_format, consolidated=False
    )

    array = zarr.open_group(store, mode="r")["t2m"]
    assert array.dtype == np.dtype("int16")
    assert (array.chunks, array.shards) == ((1, 4, 14), (4, 12, 14) if zarr_format == 3 else None)
    with xr.open_dataset(store, engine="zarr", consolidated=False) as written:
        xr.testing.assert_equal(written, source)
        assert written.t2m.encoding["scale_factor"] == PACKED["scale_factor"]
        assert written.time.encoding["units"].startswith("hours since 2020-01-01")


def test_compressors_are_those_that_are_given_or_were_there(source):
    ours = ZstdCodec(level=7)
    assert all(v["compressors"] is ours for v in source.gpuzarr.encoding(compressors=ours).values())

    were = source.t2m.encoding["compressors"]
    in_format = 3 if isinstance(were[0], zarr.abc.codec.Codec) else 2
    kept = {n: source.gpuzarr.encoding(zarr_format=n)["t2m"].get("compressors") for n in (2, 3)}
    assert kept == {in_format: were, 5 - in_format: None}


def test_text_and_numbers_have_no_chunks(source):
    encoding = source.gpuzarr.encoding()
    assert "chunks" not in encoding["name"]
    assert "chunks" not in encoding["n"]


def test_nothing_is_read():
    lazy = xr.Dataset({"a": ("x", da.from_delayed(dask.delayed(fail)(), (10**6,), "f4"))})
    assert lazy.gpuzarr.encoding("1 MB", "2 MB")["a"] == {"chunks": (250_000,), "shards": (500_000,)}


def fail():
    raise AssertionError


@given(
    shape=st.lists(st.integers(0, 5000), min_size=1, max_size=4),
    dtype=st.sampled_from(["i1", "f4", "f8", "c16"]),
    chunk_nbytes=st.integers(1, 10**7),
    shard_nbytes=st.integers(1, 10**9),
)
def test_sizes_are_kept_within_and_filled(shape, dtype, chunk_nbytes, shard_nbytes):
    dims = [f"d{n}" for n in range(len(shape))]
    array = xr.Dataset({"a": (dims, np.broadcast_to(np.zeros((), dtype), shape))})

    found = array.gpuzarr.encoding(chunk_nbytes, shard_nbytes)["a"]

    itemsize, chunk = np.dtype(dtype).itemsize, found["chunks"]
    shard = found.get("shards", chunk)
    assert math.prod(chunk) * itemsize <= max(itemsize, chunk_nbytes)
    assert math.prod(shard) * itemsize <= max(math.prod(chunk) * itemsize, shard_nbytes)
    assert all(s % c == 0 for s, c in zip(shard, chunk, strict=True))
    assert all(c <= max(1, n) for c, n in zip(chunk, shape, strict=True))
    if math.prod(chunk) < math.prod(max(1, n) for n in shape):  # half of it at least, where it was cut
        assert 4 * math.prod(chunk) * itemsize > chunk_nbytes or math.prod(chunk) == 1


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"chunks": "1 mile"}, "not a size"),
        *(({"chunks": chunks}, "at least 1") for chunks in (0, True, {"time": 0})),
        ({"shards": {"tme": 4}}, "perhaps 'time'"),
        ({"chunks": {"time": 4}, "shards": {"time": 6}}, "6 is no multiple of 4"),
        ({"chunks": {"time": 24}, "shards": {"time": 12}}, "12 is no multiple of 24"),
        ({"chunks": {"time": 24}, "shards": {"time": 36, "y": -1}}, "36 is no multiple of 24"),
        ({"zarr_format": 4}, "neither 2 nor 3"),
    ],
)
def test_what_is_unusable_is_named(keywords, words):
    with pytest.raises(OptionError, match=words):
        weather(12).gpuzarr.encoding(**keywords)


@pytest.mark.parametrize(
    ("length", "chunks", "expected"), [(96, "8 KiB", 96), (96, "400 B", 48), (365, "1600 B", 73), (24, "1 MiB", 24)]
)
def test_chunks_of_a_size_divide_shards_of_a_length(length, chunks, expected):
    """Also those of coordinates that are longer than a shard."""
    ds = xr.Dataset({"t2m": (("time", "x"), np.zeros((400, 3), "f4"))}, {"time": np.arange(400.0)})

    encoding = ds.gpuzarr.encoding(chunks, {"time": length})

    assert encoding["time"]["chunks"] == (expected,)
    assert encoding["time"].get("shards", (expected,)) == (length,)
    assert length % encoding["t2m"]["chunks"][0] == 0
