"""Blocks that ``ds.gpuzarr.to_zarr`` packs: what xarray stores, with one decoded and one packed block in memory."""

import dask
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.traced import takes_less_than
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
SHAPE = (14, 6, 10)
ENCODINGS = {
    "f4": [
        {},
        {"_FillValue": np.float32(-9)},
        {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-32768)},
        {"dtype": "uint8", "scale_factor": 2.5, "_FillValue": np.uint8(255)},
        {"dtype": "int8", "_Unsigned": "true", "add_offset": 250.0, "_FillValue": np.int8(-1)},
        {"dtype": ">i4", "_FillValue": np.int32(0), "missing_value": np.int32(0)},
        {"dtype": "float64", "_FillValue": np.nan},
        {"dtype": "int16", "scale_factor": [0.5], "_FillValue": np.int16(-1)},
    ],
    "f8": [{}, {"dtype": "float32", "_FillValue": np.float32(1e20)}, {"dtype": "int32", "scale_factor": 1e-4}],
    "i2": [{}, {"dtype": "float32"}, {"dtype": "int8", "scale_factor": 4}, {"_FillValue": np.int16(3)}],
    ">u4": [{}, {"dtype": "uint8"}],
    "bool": [{}, {"dtype": "bool"}],
    "c8": [{}],
    "M8[ns]": [{}, {"units": "hours since 1999-12-31", "dtype": "int32"}, {"units": "days since 2000-01-01"}],
    "m8[s]": [{"units": "hours", "dtype": "float64"}, {"dtype": "timedelta64[s]"}],
}


def values(kind, seed):
    """Return what can be stored with any of the encodings of a dtype, missing values among it."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(250, 299, SHAPE)
    match np.dtype(kind).kind:
        case "f":
            return np.where(rng.random(SHAPE) < 0.1, np.nan, numbers + rng.integers(0, 2, SHAPE) / 2).astype(kind)
        case "M" | "m":
            times = (numbers * 24).astype("m8[h]").astype(kind.replace("M", "m"))
            times[rng.random(SHAPE) < rng.choice([0, 0.1])] = "NaT"
            return times + np.datetime64("2000-01-01", "ns") if kind[0] == "M" else times
        case _:
            return (numbers % 100).astype(kind)


@st.composite
def variables(draw):
    kind = draw(st.sampled_from(sorted(ENCODINGS)))
    variable = xr.Variable(("time", "y", "x"), values(kind, draw(st.integers(0, 99))))
    variable.encoding = dict(draw(st.sampled_from(ENCODINGS[kind])))
    return variable


def stored(store):
    """Return arrays as they are stored, with their attributes."""
    group = zarr.open_group(store, mode="a")
    return {
        name: (array.dtype, array.chunks, array.shards, dict(array.attrs), array[...].tobytes())
        for name, array in group.arrays()
    }


@given(
    variable=variables(),
    chunks=st.tuples(*(st.integers(1, n) for n in SHAPE)),
    zarr_format=st.sampled_from([2, 3]),
    write=st.sampled_from(["whole", "region", "append", "reordered"]),
)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_what_is_stored_is_what_xarray_stores(variable, chunks, zarr_format, write):
    first = variable[:9] if write == "append" else variable
    expected, found = MemoryStore(), MemoryStore()

    outcomes = [
        _written(expected, "xarray", first, chunks, zarr_format=zarr_format),
        _written(found, "gpuzarr", first, chunks, zarr_format=zarr_format),
    ]
    for store, by in ((expected, "xarray"), (found, "gpuzarr")):
        if write == "region":
            region = {"time": slice(3, 11), "y": slice(1, 6)}
            outcomes.append(_written(store, by, variable[::-1][3:11, 1:6], chunks, region=region))
        elif write == "append":
            outcomes.append(_written(store, by, variable[9:], chunks, append_dim="time"))
        elif write == "reordered":
            outcomes.append(_written(store, by, variable[::-1].transpose("x", "time", "y"), chunks[::-1], mode="a"))

    assert outcomes[0] == outcomes[1]
    assert outcomes[2:3] == outcomes[3:]
    assert stored(found) == stored(expected)


def _written(store, by, variable, chunks, **options):
    """Write a variable; return the kind of error that was raised, None if there was none."""
    dataset = xr.Dataset({"a": variable})
    sizes = {"time": 2, "y": 3}, {"time": 4, "y": 6}
    is_new = "zarr_format" in options
    encoding = dataset.gpuzarr.encoding(*sizes, **options) if is_new else {}
    chunked = dataset.chunk(dict(zip(variable.dims, chunks, strict=True)))
    chunked.a.encoding = variable.encoding
    try:
        if by == "gpuzarr":
            chunked.gpuzarr.to_zarr(store, *sizes, rechunk=True, **options)
        else:
            with dask.config.set(scheduler="synchronous"):
                chunked.to_zarr(store, encoding=encoding, safe_chunks=False, **options)
    except Exception as err:  # noqa: BLE001  # whatever xarray raises
        return type(err)
    return None


def test_a_block_is_in_memory_once_decoded_and_once_packed():
    nbytes = 8 * 100 * 100 * 100
    block = dask.array.map_blocks(
        lambda: np.full((100, 100, 100), 280.0), chunks=((100,), (100,), (100,)), dtype="f8", meta=np.empty((0, 0, 0))
    )
    dataset = xr.Dataset({"a": (("time", "y", "x"), block)})
    dataset.a.encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
    store = MemoryStore()
    dataset.gpuzarr.to_zarr(store, {"time": 50}, {"time": 100})

    with takes_less_than(1.1 * (nbytes + nbytes // 4) + 2**24):
        dataset.gpuzarr.to_zarr(store, {"time": 50}, {"time": 100}, mode="w")


def test_times_that_the_units_of_the_store_cannot_express():
    times = np.datetime64("2000-01-01", "ns") + np.arange(6).astype("m8[D]")
    dataset = xr.Dataset({"a": ("x", times)})
    dataset.a.encoding = {"units": "days since 2000-01-01", "dtype": "int64"}
    store = MemoryStore()
    dataset.chunk(x=2).gpuzarr.to_zarr(store, {"x": 2}, {"x": 2})

    with pytest.raises(ValueError, match="can't be serialized faithfully to int64 with requested units"):
        (dataset + np.timedelta64(1, "h")).chunk(x=2).gpuzarr.to_zarr(store, {"x": 2}, {"x": 2}, mode="a")


@pytest.mark.parametrize(
    "units", ["days since 2000-01-05 00:00:00", "days since 2000-1-5", "hours since 2000-01-05T00"]
)
def test_times_are_appended_to_units_that_are_written_in_another_way(units):
    times = np.datetime64("2000-01-05", "ns") + np.arange(6).astype("m8[D]")
    dataset = xr.Dataset({"a": ("x", times)})
    store = MemoryStore()
    dataset.isel(x=slice(4)).to_zarr(store, encoding={"a": {"chunks": (2,)}})
    zarr.open_array(store, path="a").attrs["units"] = units
    zarr.consolidate_metadata(store)
    zarr.open_array(store, path="a")[:] = np.arange(4) * (24 if units.startswith("hours") else 1)

    dataset.isel(x=slice(4, 6)).chunk(x=2).gpuzarr.to_zarr(store, append_dim="x")

    assert_same_bits(xr.open_dataset(store, engine="zarr").a.values.astype("M8[ns]"), times)


def test_a_missing_value_without_a_fill_value():
    values = np.array([1, np.nan, 3, -0.0], "f4")
    dataset = xr.Dataset({"a": ("x", values)}).chunk(x=2)
    dataset.a.encoding = {"missing_value": np.float32(-5)}
    expected, found = MemoryStore(), MemoryStore()

    dataset.to_zarr(expected, encoding={"a": {"chunks": (2,), "missing_value": np.float32(-5)}})
    dataset.gpuzarr.to_zarr(found, {"x": 2}, rechunk=True)

    assert stored(found)["a"][3:] == stored(expected)["a"][3:]
    assert_same_bits(xr.open_dataset(found, engine="zarr").a.values, values)
