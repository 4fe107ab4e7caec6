"""Variables of every kind of number, as CF attributes say, and every kind of indexer: against xarray's own engine."""

from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.corpus import NUMERIC_DTYPES, edge_values
from helpers.data.selections import all_axis_keys, axis_keys, points
from helpers.older_versions import ENCODES_COMPLEX_FILL_VALUES, FILTERS_TAKE_ANY_ELEMENTS
from helpers.profiles import at_least
from hypothesis import assume, given
from hypothesis import strategies as st
from xarray.backends.zarr import FillValueCoder
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.lazy_array import find_lazy_array
from xarray_gpuzarr.cuda import axes, placers
from xarray_gpuzarr.decoders.cuda.decoding import placing

DIMS = ("z", "y", "x")
SIZES = (((13,), (4,), (8,)), ((7, 5), (3, 2), (6, 4)), ((4, 3, 5), (2, 3, 2), (4, 3, 4)), ((5, 6), (5, 6), (5, 6)))
"""(shape, inner chunks, shards): mostly with chunks and shards that reach over an edge."""
COMPRESSORS: dict[str, tuple[Any, Any]] = {
    "raw": (None, None),
    "zstd": (numcodecs.Zstd(), ZstdCodec()),
    "gzip": (numcodecs.GZip(1), GzipCodec(level=1)),
    "blosc": (numcodecs.Blosc("lz4", 5, 1), BloscCodec(cname="lz4", shuffle="shuffle", typesize=2)),
}
"""In format 2 and 3."""

factors = st.sampled_from([1, 2, -3, 0.5, 0.1, float(np.float32(0.1)), 1e-3, 1e30])
terms = st.sampled_from([0, 1, -7, 10**6, 273.15, float(np.float32(273.15)), -0.5])


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A variable named ``v`` as it is to be stored."""

    data: np.ndarray
    zarr_format: int
    attrs: dict[str, Any]
    fill_value: Any
    layout: dict[str, Any]

    def write(self) -> MemoryStore:
        """Store it in a group, without the first elements of the first axis: some chunks are never written."""
        store, data = MemoryStore(), self.data
        dims = DIMS[-data.ndim :]
        zarr.create_group(store, zarr_format=self.zarr_format)
        named = {"dimension_names": dims} if self.zarr_format == 3 else {}
        attrs = self.attrs | ({} if named else {"_ARRAY_DIMENSIONS": dims})
        array = zarr.create_array(
            store, name="v", shape=data.shape, dtype=data.dtype, zarr_format=self.zarr_format,
            fill_value=self.fill_value, attributes=attrs, **self.layout, **named,
        )  # fmt: skip
        array[3:] = data[3:]
        return store


def opened(store: Any, engine: str, **keywords: Any) -> xr.Dataset:
    """Open a store with an engine, on the host."""
    device = {"device": "host"} if engine == "gpuzarr" else {}
    return xr.open_dataset(store, engine=engine, consolidated=False, **device, **keywords)


def xarray_can_decode(store: Any) -> bool:
    """Say whether xarray itself accepts the attributes; else its error is the user's."""
    try:
        opened(store, "zarr").load()
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError, AssertionError):
        return False
    return True


@st.composite
def packed_variables(draw: Any) -> Packed:
    """Format x byte order x dtype x ``_Unsigned`` x fill values x scale x offset x codecs x sharding x transpose."""
    zarr_format, endian = draw(st.sampled_from([2, 3])), draw(st.sampled_from(["little", "big"]))
    dtype = np.dtype(draw(st.sampled_from(NUMERIC_DTYPES)))
    if zarr_format == 2:
        dtype = dtype.newbyteorder(endian[0].replace("l", "<").replace("b", ">"))
    sizes = draw(st.sampled_from(SIZES))
    data = edge_values(dtype, sizes[0], seed=draw(st.integers(0, 99)))
    numbers = data.reshape(-1)[-4:]
    fill, attrs = _missing(draw, zarr_format, numbers)
    optional = {"_Unsigned": st.sampled_from(["true", "false"]), "scale_factor": factors, "add_offset": terms}
    attrs |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    layout = _layout(draw, zarr_format, endian, sizes, dtype)
    return Packed(data=data, zarr_format=zarr_format, attrs=attrs, fill_value=fill, layout=layout)


def _missing(draw: Any, zarr_format: int, numbers: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Draw Zarr's fill value, and attributes that say what is missing: nothing, elements, or no element at all."""
    kind = draw(st.sampled_from(["none", "in range", "out of range", "several"]))
    fill, attrs = draw(st.sampled_from([None, 0, numbers[0].item()])), {}
    masks = kind in ("in range", "several")
    if zarr_format == 2 and masks:
        fill = numbers[1].item()
    elif zarr_format == 3:
        fill = numbers[0].item() if fill is None else fill
        if masks and (numbers.dtype.kind != "c" or ENCODES_COMPLEX_FILL_VALUES):
            attrs["_FillValue"] = FillValueCoder.encode(numbers[1].item(), numbers.dtype)
    if kind == "out of range":
        name = draw(st.sampled_from(["missing_value", "_FillValue"]))
        attrs[name] = draw(st.sampled_from([-1, 300, 40000, 2**32 - 1, -(2**40), 2**64 - 1, 3.5, 1e20]))
    real = [n for n in numbers.tolist() if not isinstance(n, complex)]
    if kind == "several" and real:
        attrs["missing_value"] = draw(st.sampled_from([real[2], real[1:], [real[3], -1, 255]]))
    return fill, attrs


def _layout(draw: Any, zarr_format: int, endian: str, sizes: Any, dtype: np.dtype) -> dict[str, Any]:
    """Draw a codec, transposed or not; in format 3 shards or none, and a filter that may have another byte order."""
    shape, chunks, shards = sizes
    compressor = COMPRESSORS[draw(st.sampled_from([*COMPRESSORS]))][zarr_format - 2]
    if zarr_format == 2:
        return {"chunks": chunks, "compressors": compressor, "order": draw(st.sampled_from("CF"))}
    filters = [TransposeCodec(order=tuple(draw(st.permutations(range(len(shape))))))] if draw(st.booleans()) else []
    if dtype.kind in "iu" and FILTERS_TAKE_ANY_ELEMENTS and draw(st.integers(0, 3)) == 0:
        filters.append(zn.Delta(dtype=dtype.newbyteorder(draw(st.sampled_from("<>"))).str))
    return {
        "chunks": chunks,
        "shards": shards if draw(st.booleans()) else None,
        "filters": filters or None,
        "serializer": BytesCodec(endian=endian),
        "compressors": compressor,
    }


pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore::RuntimeWarning", "ignore::UserWarning"),
]

SHARDED = {"chunks": (5, 5), "shards": (10, 10)}
VARIABLES = {
    "copied": ({}, SHARDED),
    "packed": ({"scale_factor": 0.5, "_FillValue": -1}, SHARDED),
    "unsigned": ({"_Unsigned": "true"}, SHARDED),
    "of the other byte order": ({}, SHARDED | {"serializer": BytesCodec(endian="big")}),
    "transposed": ({"add_offset": 3}, SHARDED | {"filters": TransposeCodec(order=(1, 0))}),
    "not sharded": ({"scale_factor": 0.5}, {"chunks": (5, 5)}),
}
EVERY = np.arange(20)
BOTH_AXES = {"y": np.repeat(EVERY, 2), "x": np.repeat(EVERY, 3)}
SMALL_BOXES = [(axes, "MAX_BOX", 40), (placing, "MAX_BOX", 40)]
SMALL_LAUNCHES = [(placers, "MAX_BLOCKS", 12), (placing, "MAX_BLOCKS", 12)]
POINTS = {"x": xr.DataArray(np.repeat([0, 3, 8, 17], [1, 1, 90000, 2]), dims="p"), "y": xr.DataArray(4)}
REPEATS = {
    "each thrice": {"x": np.repeat(EVERY, 3)},
    "some of them": {"y": np.repeat(EVERY, EVERY % 4)},
    "along both axes": BOTH_AXES,
    "one of them, often": {"y": np.full(70, 7), "x": slice(3, 12, 2)},
    "backwards": {"x": np.repeat(EVERY, 3)[::-1], "y": -1},
    "in no order": {"x": np.repeat(EVERY, 3) * 7 % 20},
}
TOO_MANY = {
    "more than a kernel places": (SMALL_BOXES, BOTH_AXES),
    "boxes that leave others no room in a launch": (SMALL_LAUNCHES, {"x": np.repeat([0, 3, 8, 17], [1, 1, 900, 2])}),
    "points that leave others no room in a launch": (SMALL_LAUNCHES, POINTS),
}


@pytest.fixture(params=VARIABLES)
def store(request):
    """A store of one variable with coordinates."""
    attrs, layout = VARIABLES[request.param]
    data = np.arange(400, dtype="i2").reshape(20, 20) - 30
    return Packed(data=data, zarr_format=3, attrs=attrs, fill_value=3, layout=layout).write()


@pytest.mark.parametrize("indexers", REPEATS.values(), ids=REPEATS)
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_elements_that_are_wanted_repeatedly(store, indexers, chunks):
    ours, stock = opened(store, "gpuzarr", chunks=chunks), opened(store, "zarr").load()

    assert_same_values(ours["v"].isel(indexers).values, stock["v"].isel(indexers).values)


@pytest.mark.every_combination
@pytest.mark.parametrize(("limit", "indexers"), TOO_MANY.values(), ids=TOO_MANY)
def test_more_repeats_than_kernels_place(store, monkeypatch, limit, indexers):
    for module, name, most in limit:
        monkeypatch.setattr(module, name, most)
    ours, stock = opened(store, "gpuzarr"), opened(store, "zarr").load()

    assert_same_values(ours["v"].isel(indexers).values, stock["v"].isel(indexers).values)


@at_least(32, full=120)
@given(packed_variables(), st.sampled_from([None, {}]), st.data())
def test_any_indexer_of_any_variable(packed, chunks, data):
    store = packed.write()
    assume(xarray_can_decode(store))
    # What is left to xarray fails where xarray's indexing does.
    assume(find_lazy_array(opened(store, "gpuzarr")["v"].variable._data) is not None)
    indexers = data.draw(some_indexers(packed.data.shape), "indexers")
    expected = opened(store, "zarr").load()["v"].isel(indexers).values
    assume(chunks is None or expected.size)  # dask itself fails where points give nothing

    picked = opened(store, "gpuzarr", chunks=chunks)["v"].isel(indexers)

    assert_same_values(picked.values, expected)


@st.composite
def some_indexers(draw, shape):
    """Indexers of `isel`: one for each axis, or points along some axes with what indexes the others."""
    dims = DIMS[-len(shape) :]
    keys = dict(zip(dims, draw(all_axis_keys(shape)), strict=True))
    n_pointwise = draw(st.integers(0, len(shape)))
    if n_pointwise:
        coordinates = draw(points(shape[:n_pointwise]))
        at = ("a", "b")[: coordinates[0].ndim]
        keys |= {dim: (at, c) for dim, c in zip(dims, coordinates, strict=False)}
        keys |= {dim: draw(axis_keys(n)) for dim, n in list(zip(dims, shape, strict=True))[n_pointwise:]}
    return keys


@pytest.mark.also_with("host-i2-true-big-plain", "simulated-i2-true-big-plain")
@pytest.mark.parametrize("attrs", [{}, {"scale_factor": 0.5}, {"missing_value": 2}], ids=["plain", "scaled", "masked"])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("dtype", "unsigned"),
    [(d, "true") for d in ("i1", "i2", "i4", "i8")] + [(d, "false") for d in ("u1", "u2", "u4", "u8")],
)
def test_integers_of_the_other_sign_keep_their_byte_order(dtype, unsigned, endian, attrs):
    data = np.array([0, 1, 2, 3, 100, 127], dtype)
    layout = {"chunks": (2,), "serializer": BytesCodec(endian=endian)}
    packed = Packed(data=data, zarr_format=3, attrs={"_Unsigned": unsigned, **attrs}, fill_value=1, layout=layout)

    assert_read_alike(packed.write())


@at_least(48, full=200)
@given(packed_variables())
def test_any_packed_variable(packed):
    store = packed.write()
    assume(xarray_can_decode(store))

    assert_read_alike(store)


def assert_read_alike(store):
    """Compare all that both engines make of a store, lazily and with dask."""
    ours, stock, tasks = (opened(store, "gpuzarr"), opened(store, "zarr"), opened(store, "gpuzarr", chunks={}))
    assert_same_dataset(ours, stock)
    assert_same_values(tasks["v"].values, stock["v"].values)
