"""CF decoding, bit for bit as xarray does it."""

import warnings

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset, assert_same_values
from helpers.data.corpus import NUMERIC_DTYPES, edge_values
from helpers.older_versions import ENCODES_COMPLEX_FILL_VALUES
from hypothesis import assume, example, given
from hypothesis import strategies as st
from xarray.backends.zarr import FillValueCoder
from zarr.storage import MemoryStore

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.stored.cf import Cast, cast_array, parse_cast

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore::RuntimeWarning"),
]

SIGNED = [f"{order}{kind}" for kind in ("i1", "i2", "i4", "i8") for order in "<>"]
UNSIGNED = [f"{order}{kind}" for kind in ("u1", "u2", "u4", "u8") for order in "<>"]
FLOATS = [f"{order}{kind}" for kind in ("f2", "f4", "f8") for order in "<>"]
TOO_NEW = () if ENCODES_COMPLEX_FILL_VALUES else ("c8", "c16")
"""Dtypes whose fill values xarray does not encode yet."""
COMPLEX = [f"{order}{kind}" for kind in ("c8", "c16") for order in "<>"]

scales = st.sampled_from([1, 2, -3, 0, 1.0, 0.1, 1e-3, -0.5, 1e300, float("inf")])
offsets = st.sampled_from([0, 1, 10**6, -7, 0.0, -0.0, 273.15, -1e-30, 2**53 + 1])
odd = st.sampled_from([True, False, "0.5", "none", None, [], [2.0], [1.0, 2.0], float("nan"), {"a": 1}])
json_numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.sampled_from([0, -1, 1e20, 255, -128, 65535])


def opened(store, engine, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.open_dataset(store, engine=engine, consolidated=False, **keywords)


def written(data, attrs, zarr_format=3, fill_value=0):
    """Write one variable, its last chunks missing, and return its store."""
    store = MemoryStore()
    zarr.create_group(store, zarr_format=zarr_format)
    sharded = {"shards": (8,), "dimension_names": ["x"]} if zarr_format == 3 else {}
    named = {} if zarr_format == 3 else {"_ARRAY_DIMENSIONS": ["x"]}
    array = zarr.create_array(
        store, name="v", shape=data.shape, dtype=data.dtype, chunks=(4,), zarr_format=zarr_format,
        fill_value=fill_value, attributes=attrs | named, **sharded,
    )  # fmt: skip
    array[: len(data) - 3] = data[: len(data) - 3]
    return store


def assert_decodes_alike(store, **keywords):
    """Open a store with both engines and compare everything."""
    ours, stock = opened(store, "gpuzarr", device="host", **keywords), opened(store, "zarr", **keywords)
    assert_same_dataset(ours.load(), stock.load())


def assert_same_outcome(store, **keywords):
    """Compare everything, or the class of the error where xarray refuses the attributes."""
    try:
        opened(store, "zarr", **keywords).load()
    except Exception as error:  # noqa: BLE001  # xarray's arithmetic raises many
        with pytest.raises(type(error)):
            opened(store, "gpuzarr", device="host", **keywords).load()
    else:
        assert_decodes_alike(store, **keywords)


@st.composite
def variables(draw):
    """(data, attributes) of a packed or masked variable, with elements that meet the masks."""
    dtype = np.dtype(draw(st.sampled_from([*SIGNED, *UNSIGNED, *FLOATS, "?"])))
    data = edge_values(dtype, (13,), seed=draw(st.integers(0, 99)))
    attrs = {}
    if draw(st.booleans()):
        attrs["missing_value"] = draw(
            odd
            | json_numbers
            | st.lists(json_numbers, max_size=3)
            | st.just(data[0].item())
            | st.just(data[:2].tolist())
        )
    if draw(st.booleans()):
        attrs["scale_factor"] = draw(scales | odd)
    if draw(st.booleans()):
        attrs["add_offset"] = draw(offsets | odd)
    if draw(st.booleans()) and dtype.isnative:  # the other byte order has a test of its own
        attrs["_Unsigned"] = draw(st.sampled_from(["true", "false", "maybe"]))
    if draw(st.booleans()):
        attrs["_FillValue"] = data[draw(st.integers(0, 12))]
    return data, attrs


def xarray_decoded(data, attrs):
    """Return what xarray makes of a variable in memory, None if it refuses the attributes."""
    try:
        return xr.conventions.decode_cf_variable("v", xr.Variable("x", data, dict(attrs))).load()
    except Exception:  # noqa: BLE001  # its arithmetic raises many
        return None


@given(variables())
@example((np.array([2**53, 2**53 + 1], "<i8"), {"missing_value": 2**53 + 1}))
@example((np.array([2**64 - 1, 0], "<u8"), {"missing_value": 2**64 - 1}))
@example((np.array([0.1, 0.2], "<f2"), {"missing_value": 0.1}))
@example((np.array([1e20, 0.2], "<f4"), {"missing_value": 1e20}))
@example((np.array([-1, 1], "<i1"), {"missing_value": [-1, 255], "_FillValue": np.int8(-1), "_Unsigned": "true"}))
def test_cast_gives_what_xarray_gives(variable):
    data, attrs = variable
    expected = xarray_decoded(data, attrs)
    assume(expected is not None)

    cast = parse_cast(attrs, stored=data.dtype, decoded=expected.dtype)

    assume(cast is not None)  # xarray then decodes the variable itself
    assert_same_values(cast_array(cast, data), expected.values)


@pytest.mark.parametrize("zarr_format", [2, 3])
@given(variables(), st.booleans())
def test_variable_decodes_as_in_xarray(zarr_format, variable, mask_and_scale):
    data, attrs = variable
    fill = attrs.pop("_FillValue", None)
    if zarr_format == 2:
        store = written(data, attrs, zarr_format=2, fill_value=fill)
    else:
        store = written(data, attrs | encoded_fill(fill), fill_value=data[1])

    assert_same_outcome(store, mask_and_scale=mask_and_scale)


@given(variables())
@example(
    (
        np.array([1, 2, -32768, 30_000], "<i2"),
        {"scale_factor": 0.1, "add_offset": 273.15, "_FillValue": np.int16(-32768)},
    )
)
def test_float32_is_what_xarray_gives_rounded_once(variable):
    data, attrs = variable
    fill = attrs.pop("_FillValue", None)
    store = written(data, attrs | encoded_fill(fill), fill_value=data[1])
    try:
        expected = opened(store, "zarr").v.load()
    except Exception:  # noqa: BLE001  # xarray's arithmetic raises many
        assume(False)

    ours = opened(store, "gpuzarr", device="host", float_dtype="float32").v

    if ours.dtype != expected.dtype:
        assert (ours.dtype, expected.dtype.newbyteorder("=")) == (np.float32, np.float64)
    with np.errstate(all="ignore"):
        assert_same_values(ours.values, expected.values.astype(ours.dtype))


def test_float32_is_for_data_variables_that_are_float64_and_by_name():
    store = MemoryStore()
    packed = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1}
    values = np.arange(8.0)
    ds = xr.Dataset(dict.fromkeys(("packed", "other", "whole"), ("x", values)), {"height": ("x", values * 2)})
    ds["whole"] = ds.whole.astype("i4")
    ds["small"] = ds.packed.astype("f4")
    ds.packed.encoding, ds.height.encoding = dict(packed), dict(packed)
    ds.to_zarr(store, consolidated=False)

    for float_dtype in (np.float32, np.dtype("f4"), "float32"):
        all_of_them = opened(store, "gpuzarr", float_dtype=float_dtype)
        assert {name: str(v.dtype) for name, v in all_of_them.variables.items()} == {
            "packed": "float32", "other": "float32", "small": "float32", "whole": "int32", "height": "float64",
        }  # fmt: skip
    by_name = opened(store, "gpuzarr", float_dtype={"other": "float32"})
    assert (by_name.packed.dtype, by_name.other.dtype) == (np.float64, np.float32)
    rows = {row.variable: row for row in all_of_them.gpuzarr.explain().rows}
    assert rows["packed"].cast == "mask -1, * 0.01, rounded to float32"
    assert rows["packed"].dtype == "float32"


@pytest.mark.parametrize("wrong", ["float16", "f8", "single precision", 32, {"v": "float64"}])
def test_other_float_dtypes_are_refused(wrong):
    with pytest.raises(OptionError, match="float_dtype"):
        opened(written(np.arange(8.0), {}), "gpuzarr", float_dtype=wrong)


def encoded_fill(value):
    """Write ``_FillValue`` as xarray does in format 3."""
    return {} if value is None else {"_FillValue": FillValueCoder.encode(value.item(), value.dtype)}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [*NUMERIC_DTYPES, ">i2", ">u8", ">f2", ">f4", ">f8", ">c8", ">c16"])
def test_plain_variable_of_every_dtype(dtype, zarr_format):
    data = edge_values(dtype, (13,))

    assert_decodes_alike(written(data, {"units": "m", "valid_min": 0}, zarr_format, fill_value=data[2]))


@pytest.mark.parametrize("dtype", [d for d in NUMERIC_DTYPES if d != "?" and d not in TOO_NEW])
def test_fill_value_masks_every_dtype(dtype):
    data = edge_values(dtype, (13,))
    fill = np.zeros((), data.dtype)[()]
    data[::4] = fill

    assert_decodes_alike(written(data, encoded_fill(fill), fill_value=data[1]))


@pytest.mark.parametrize("dtype", FLOATS if TOO_NEW else FLOATS + COMPLEX)
def test_nan_fill_value_leaves_values_alone(dtype):
    data = np.array([1, np.nan, 3, 4, 5, 6, 7, 8], dtype)
    fill = data[1]

    assert_decodes_alike(written(data, encoded_fill(fill), fill_value=fill))


@pytest.mark.parametrize(
    "attrs",
    [
        pytest.param({"valid_min": 2, "valid_max": 5}, id="valid_min and valid_max"),
        pytest.param({"valid_range": [2, 5]}, id="valid_range"),
        pytest.param({"missing_value": 3}, id="missing_value"),
        pytest.param({"missing_value": [3, 4, 300]}, id="several missing values"),
        pytest.param({"missing_value": []}, id="no missing value in a list"),
        pytest.param({"missing_value": float("nan")}, id="NaN as missing value of integers"),
        pytest.param({"missing_value": None}, id="null as missing value"),
        pytest.param({"missing_value": "none"}, id="text as missing value"),
        pytest.param({"missing_value": "3"}, id="a number in text as missing value"),
        pytest.param({"missing_value": True}, id="a boolean as missing value"),
        pytest.param({"missing_value": 3.5}, id="missing value that no element can have"),
        pytest.param({"missing_value": 1e400}, id="infinite missing value"),
        pytest.param({"scale_factor": 0.1}, id="scale"),
        pytest.param({"scale_factor": 2}, id="scale that is an integer"),
        pytest.param({"add_offset": 3}, id="offset that is an integer"),
        pytest.param({"add_offset": -0.0}, id="offset of minus zero"),
        pytest.param({"scale_factor": [0.1], "add_offset": [5.0]}, id="scale and offset in lists"),
        pytest.param({"scale_factor": 0.1, "add_offset": 5.0, "missing_value": [3, 5]}, id="all together"),
        pytest.param({"_Unsigned": "true"}, id="unsigned"),
        pytest.param({"_Unsigned": "true", "scale_factor": 0.5, "missing_value": -2}, id="unsigned and packed"),
        pytest.param({"_Unsigned": "false"}, id="_Unsigned that changes nothing"),
        pytest.param({"dtype": "bool"}, id="boolean"),
        pytest.param({"dtype": "bool", "missing_value": 3}, id="boolean with a missing value"),
        pytest.param({"dtype": "bool", "scale_factor": 2.0}, id="boolean with a scale"),
        pytest.param({"dtype": "int8"}, id="dtype attribute that means nothing"),
        pytest.param({"units": "days"}, id="a timedelta"),
        pytest.param({"units": "days since 2000-01-01", "dtype": "bool"}, id="a boolean made of times"),
        pytest.param({"units": "days", "dtype": "bool"}, id="a boolean made of timedeltas"),
        pytest.param({"units": "m", "dtype": "bool"}, id="a boolean with a unit"),
        pytest.param({"units": "days since 2000-01-01"}, id="a time"),
        pytest.param({"units": "days since 2000-01-01", "missing_value": 3}, id="a time with a missing value"),
        pytest.param({"flag_values": [1, 2], "flag_meanings": "a b"}, id="flags"),
    ],
)
@pytest.mark.parametrize("dtype", ["<i2", ">i4", "|i1", "<f4"])
def test_attributes_decode_as_in_xarray(attrs, dtype):
    data = np.array([0, 1, 2, 3, 4, 5, -2, -1], dtype)

    assert_decodes_alike(written(data, attrs, fill_value=4))


@pytest.mark.parametrize(
    "attrs",
    [
        pytest.param({"units": "days since whenever"}, id="a time that cannot be read"),
        pytest.param({"scale_factor": [1.0, 2.0]}, id="two scales"),
        pytest.param({"_Unsigned": "true", "_FillValue": 300}, id="fill value outside its dtype"),
        pytest.param({"_FillValue": "none"}, id="text as fill value"),
    ],
)
def test_attributes_that_xarray_refuses_give_its_own_error(memory, attrs):
    zarr.create_group(memory)
    zarr.create_array(
        memory, name="v", data=np.zeros(8, "i1"), chunks=(4,), dimension_names=["x"], attributes=attrs
    )  # fmt: skip
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever xarray raises
        opened(memory, "zarr")

    with pytest.raises(expected.type) as caught:
        opened(memory, "gpuzarr", device="host")

    assert str(caught.value) == str(expected.value)


def test_numbers_with_an_encoding_of_text_are_left_to_xarray():
    memory = written(np.arange(8.0), {"_Encoding": "utf-8", "scale_factor": 2.0}, fill_value=4)

    with pytest.raises(AttributeError, match="decode"):
        opened(memory, "zarr").v.variable.values  # noqa: B018
    with pytest.raises(AttributeError, match="decode"):
        opened(memory, "gpuzarr", device="host").v.variable.values  # noqa: B018


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("attrs", [{}, {"scale_factor": 0.5}, {"missing_value": 3}, {"_Unsigned": "true"}])
def test_variable_without_dimensions(memory, zarr_format, attrs):
    zarr.create_group(memory, zarr_format=zarr_format)
    named = {"dimension_names": []} if zarr_format == 3 else {}
    attributes = attrs | ({} if named else {"_ARRAY_DIMENSIONS": []})
    array = zarr.create_array(
        memory, name="v", shape=(), dtype="i2", zarr_format=zarr_format, attributes=attributes, **named
    )  # fmt: skip
    array[...] = 3

    assert_decodes_alike(memory)


@pytest.mark.parametrize("use_zarr_fill_value_as_mask", [True, False, None])
@pytest.mark.parametrize("dtype", ["<i2", "<f4", ">f8", "?"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_fill_value_is_a_mask_where_asked_for(use_zarr_fill_value_as_mask, dtype, zarr_format):
    data = np.array([0, 1, 0, 1, 1, 0, 1, 0, 0], dtype)
    store = written(data, {}, zarr_format, fill_value=data[1])
    stock = xr.open_dataset(
        xr.backends.ZarrStore.open_group(
            store, consolidated=False, use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask
        )
    )

    ours = opened(store, "gpuzarr", device="host", use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask)

    assert_same_dataset(ours.load(), stock.load())


@pytest.mark.host_decoder
@pytest.mark.parametrize("stored", ["i1", "u1", "i2", "u2", ">i2", "i4", "u4", "i8", "f4"])
@pytest.mark.parametrize("decoded", ["f4", "f8", "c16"])
@pytest.mark.parametrize("mask", [(7,), (7.0,), (0.1,), (7, -3.0), (-1,), (10**6,), (np.inf,)], ids=str)
def test_values_are_masked_as_after_conversion(stored, decoded, mask):
    values = np.array([0, 1, 3, 7, 7, 100, 127], stored)
    limits = np.iinfo(stored) if values.dtype.kind in "iu" else np.finfo(stored)
    values = np.append(values, [0.1, limits.min, limits.max]).astype(stored)

    result = cast_array(Cast(dtype=decoded, mask=mask), values)

    expected = values.astype(decoded)
    hit = np.any([expected == value for value in mask], axis=0)
    expected[hit] = complex(np.nan, np.nan) if decoded == "c16" else np.nan
    np.testing.assert_array_equal(result, expected)
