"""Opening warns of what engine="zarr" warns of, as often: also where it fails, and where xarray has to decode."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.outcome import outcome
from helpers.stores.fakes import Wrapper
from zarr.storage import MemoryStore

TWO_FILL_VALUES = {"_FillValue": 1.0, "missing_value": 2.0}
VARIABLES = {
    "times before any reference": (np.arange(3.0) + 1, {"units": "days since 0001-01-01"}),
    "times long after their reference": (np.arange(3.0) + 730_000, {"units": "days since 0001-01-01"}),
    "ambiguous reference": (np.arange(3.0) + 1, {"units": "days since 1-1-1"}),
    "another calendar": (np.arange(3.0) + 1, {"units": "days since 2000-01-01", "calendar": "noleap"}),
    "far times": (np.arange(3.0) + 1e7, {"units": "days since 2000-01-01"}),
    "times with two fill values": (np.arange(3.0), {"units": "days since 2000-01-01", **TWO_FILL_VALUES}),
    "two fill values": (np.arange(3.0), TWO_FILL_VALUES),
    "two fill values of integers": (np.arange(3), {"_FillValue": 1, "missing_value": [2, 3]}),
    "two fill values of truth": (np.arange(3, dtype="i1"), {"dtype": "bool", "_FillValue": 1, "missing_value": 2}),
    "two complex fill values": (np.arange(3) * 1j, TWO_FILL_VALUES),
    "complex numbers made real": (np.arange(3) * 1j, {"_FillValue": [1.0, 2.0], "add_offset": -9}),
    "complex numbers made truth": (np.arange(3) * 1j, {"_FillValue": [1.0, 2.0], "dtype": "bool"}),
    "unsigned numbers with a point": (np.arange(3.0), {"_Unsigned": "true"}),
    "unsigned and swapped": (np.arange(3, dtype=">i2"), {"_Unsigned": "true", "missing_value": [4, 5]}),
    "a list of bounds, and of units": (np.arange(3), {"units": ["days since 2000-01-01"], "bounds": ["b"]}),
    "a list of bounds of times": (np.arange(3), {"units": "days since 2000-01-01", "bounds": ["b"]}),
    "a fill value that is text": (np.arange(3), {"_FillValue": "abc"}),
    "a factor that is text": (np.arange(3.0), {"scale_factor": "x", "_FillValue": 1, "missing_value": 2}),
    "two factors": (np.arange(3.0), {"scale_factor": [2.0, 3.0], "_FillValue": 1, "missing_value": 2}),
    "coordinates that are not there": (np.arange(3.0), {"coordinates": "nowhere", "grid_mapping": "gm"}),
}


OPENS = pytest.mark.parametrize("opens", [xr.open_dataset, xr.open_datatree])
KINDS = pytest.mark.parametrize("kind", [lambda store: store, Wrapper], ids=["memory", "slow"])


def assert_warns_as_the_stock_engine(opens, store, **keywords):
    """Compare errors, their words, and how often each warning comes."""

    def said(engine):
        result, warned = outcome(lambda: opens(store, engine=engine, **keywords))
        return result if isinstance(result, tuple) else None, warned

    assert said("gpuzarr") == said("zarr")


@OPENS
@pytest.mark.parametrize(
    "keywords", [{}, {"consolidated": False}, {"group": "nowhere"}, {"decode_times": False}], ids=str
)
@KINDS
@pytest.mark.parametrize("variable", VARIABLES)
def test_warnings_are_those_of_the_stock_engine(variable, kind, keywords, opens, zarr_format):
    values, attributes = VARIABLES[variable]
    stored = MemoryStore()
    dims = {"dimension_names": ("x",)} if zarr_format == 3 else {}
    array = zarr.open_group(stored, zarr_format=zarr_format).create_array("v", data=values, **dims)
    array.attrs.update(attributes | ({} if dims else {"_ARRAY_DIMENSIONS": ["x"]}))

    assert_warns_as_the_stock_engine(opens, kind(stored), **keywords)


@OPENS
@KINDS
@pytest.mark.parametrize("keywords", [{}, {"chunks": {}}, {"chunks": "auto"}, {"chunks": {"x": 2}}], ids=str)
def test_a_dimension_that_is_repeated_is_warned_of_as_often(keywords, kind, opens):
    stored = MemoryStore()
    zarr.open_group(stored).create_array("v", data=np.eye(3), dimension_names=("x", "x"))

    assert_warns_as_the_stock_engine(opens, kind(stored), **keywords)


@OPENS
@KINDS
def test_documents_of_the_other_format_are_warned_of(kind, opens, zarr_format):
    stored = MemoryStore()
    for each in (5 - zarr_format, zarr_format):
        zarr.open_group(stored, mode="a", zarr_format=each).require_group("g").attrs.update(a=1)

    assert_warns_as_the_stock_engine(opens, kind(stored), zarr_format=zarr_format)


def test_a_store_that_is_not_there_is_named_as_it_was_asked_for():
    assert_warns_as_the_stock_engine(xr.open_dataset, "memory://nowhere.zarr")
