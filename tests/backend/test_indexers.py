"""Variables of every kind of number, as CF attributes say, and every kind of indexer: against xarray's own engine."""

import numpy as np
import pytest
import xarray as xr
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.packed import DIMS, Packed, opened, packed_variables, xarray_can_decode
from helpers.data.selections import all_axis_keys, axis_keys, points
from helpers.effort import at_least
from hypothesis import assume, given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, TransposeCodec

from xarray_gpuzarr.backend.lazy_array import find_lazy_array
from xarray_gpuzarr.cuda import axes, launch
from xarray_gpuzarr.decoders.cuda.decoding import placing

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore::RuntimeWarning", "ignore::UserWarning"),
]

thorough = at_least(32, full=120)

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
REPEATS = {
    "each thrice": {"x": np.repeat(EVERY, 3)},
    "some of them": {"y": np.repeat(EVERY, EVERY % 4)},
    "along both axes": {"y": np.repeat(EVERY, 2), "x": np.repeat(EVERY, 3)},
    "one of them, often": {"y": np.full(70, 7), "x": slice(3, 12, 2)},
    "backwards": {"x": np.repeat(EVERY, 3)[::-1], "y": -1},
    "in no order": {"x": np.repeat(EVERY, 3) * 7 % 20},
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


def test_more_repeats_than_a_kernel_places(store, monkeypatch):
    monkeypatch.setattr(axes, "MAX_BOX", 40)
    monkeypatch.setattr(placing, "MAX_BOX", 40)
    ours, stock = opened(store, "gpuzarr"), opened(store, "zarr").load()
    indexers = REPEATS["along both axes"]

    assert_same_values(ours["v"].isel(indexers).values, stock["v"].isel(indexers).values)


@pytest.mark.parametrize(
    "indexers",
    [
        {"x": np.repeat([0, 3, 8, 17], [1, 1, 900, 2])},
        {"x": xr.DataArray(np.repeat([0, 3, 8, 17], [1, 1, 90000, 2]), dims="p"), "y": xr.DataArray(4)},
    ],
    ids=["boxes", "points"],
)
def test_one_element_so_often_that_others_do_not_fit_its_launch(store, monkeypatch, indexers):
    monkeypatch.setattr(launch, "MAX_BLOCKS", 12)
    monkeypatch.setattr(placing, "MAX_BLOCKS", 12)
    ours, stock = opened(store, "gpuzarr"), opened(store, "zarr").load()

    assert_same_values(ours["v"].isel(indexers).values, stock["v"].isel(indexers).values)


@thorough
@given(packed_variables(), st.sampled_from([None, {}]), st.data())
def test_any_indexer_of_any_variable(packed, chunks, data):
    store = packed.write()
    assume(xarray_can_decode(store) and is_ours(store))
    indexers = data.draw(some_indexers(packed.data.shape), "indexers")
    expected = opened(store, "zarr").load()["v"].isel(indexers).values
    assume(chunks is None or expected.size)  # dask itself fails where points give nothing

    picked = opened(store, "gpuzarr", chunks=chunks)["v"].isel(indexers)

    assert_same_values(picked.values, expected)


def is_ours(store):
    """Say whether this package reads the variable; what is left to xarray fails where xarray's indexing does."""
    return find_lazy_array(opened(store, "gpuzarr")["v"].variable._data) is not None


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
    ours, stock, tasks = (
        opened(store, "gpuzarr"),
        opened(store, "zarr"),
        opened(store, "gpuzarr", chunks={}),
    )
    assert_same_dataset(ours, stock)
    assert_same_values(tasks["v"].values, stock["v"].values)
