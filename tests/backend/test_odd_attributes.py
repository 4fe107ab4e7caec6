"""Attributes of any kind, however warnings and NumPy's errors are dealt with: opened and read as with engine="zarr"."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_values, describe, encoding_of
from helpers.older_versions import ENCODES_COMPLEX_FILL_VALUES
from helpers.profiles import at_least
from hypothesis import assume, example, given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

BYTES = ["i1", "u1", "?"]
NUMBERS = [f"{order}{kind}" for kind in ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8") for order in "<>"]
DTYPES = [*BYTES, *NUMBERS, *(["<c8", "<c16"] if ENCODES_COMPLEX_FILL_VALUES else [])]
FLOATS = [math.nan, math.inf, -math.inf, -0.0, 1.0, -1.0, 5e-324, 1e-45, 1e-310, 0.1, 255.0, 65520.0, 3.5e38, 1e308]
EDGES = [n + step for n in (0, 2**7, 2**15, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**40) for step in (-1, 0, 1)]

numbers = st.sampled_from(EDGES + FLOATS)
odd = (
    numbers | st.lists(numbers, max_size=2) | st.sampled_from(["nan", "5", "", True, None, {"a": 1}, [[1, 2], [3, 4]]])
)
attributes = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(["missing_value", "_FillValue", "scale_factor", "add_offset", "valid_range"], odd),
        "_Unsigned": st.sampled_from(["true", "false", True, 1, "x"]),
        "units": st.sampled_from(["days", "hours since 2000-01-01", "months since 2000-01-01", "ns", "K", 5]),
        "calendar": st.sampled_from(["standard", "noleap", "x"]),
        "dtype": st.sampled_from(["bool", "timedelta64[ns]", "x", 1]),
    },
)
layouts = st.sampled_from([((), ()), ((4,), ("v",)), ((4,), ("x",)), ((2, 2), ("x", "y"))])


def written(
    dtype: str, attrs: dict[str, Any], values: Any, *, zarr_format: int = 3, layout: Any = ((4,), ("x",)), fill: Any = 0
) -> MemoryStore:
    """Write a variable; its last chunk is missing if it has two."""
    store, (shape, dims) = MemoryStore(), layout
    named = {"dimension_names": dims} if zarr_format == 3 else {}
    array = zarr.open_group(store, zarr_format=zarr_format).create_array(
        "v", shape=shape, dtype=dtype, chunks=(2,) * len(shape), fill_value=fill, **named
    )
    array.attrs.update(attrs | ({} if named else {"_ARRAY_DIMENSIONS": dims}))
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        data = np.asarray(values, "f8").astype(dtype)
    array[(slice(2),) * min(1, len(shape))] = data[: math.prod(shape)].reshape(shape)[:2] if shape else data[0]
    return store


@st.composite
def stores(draw: Any) -> MemoryStore:
    return written(
        draw(st.sampled_from(DTYPES)),
        draw(attributes),
        draw(st.lists(st.sampled_from(FLOATS), min_size=4, max_size=4)),
        zarr_format=draw(st.sampled_from([2, 3])),
        layout=draw(layouts),
        fill=draw(st.sampled_from([0, 1, None])),
    )


@contextmanager
def noting(action: str, errors: str) -> Iterator[list[tuple[type, str]]]:
    """Note warnings, dealt with as `action` says; NumPy does with its errors what `errors` says."""
    noted: list[tuple[type, str]] = []
    with warnings.catch_warnings(record=True, action=action) as caught, np.errstate(all=errors):
        yield noted
    noted += [(w.category, str(w.message)) for w in caught]


def outcomes(store: MemoryStore, engine: str, *settings: str) -> tuple[Any, Any, set[tuple[type, str]]]:
    """Return what opening gives, warnings included; the values, or None if they cannot be read; warnings of reading."""
    device = {"device": "host"} if engine == "gpuzarr" else {}
    variable, values, reading = None, None, set()
    with noting(*settings) as opening:
        try:
            variable = xr.open_dataset(store, engine=engine, consolidated=False, **device)["v"].variable
        except Exception as error:  # noqa: BLE001  # of any kind: it is compared
            failure = type(error), str(error)
    if variable is None:
        return (failure, opening), None, reading
    with noting(*settings) as reading, suppress(Exception):  # xarray's arithmetic raises many
        values = variable.values
    return (variable.dtype.str, describe(variable.attrs), encoding_of(variable), opening), values, set(reading)


@at_least(40, full=1000)
@given(stores(), st.sampled_from(["always", "error"]), st.sampled_from(["warn", "raise"]))
@example(written("u2", {"units": "days", "missing_value": 1e20}, [1, 2, 3, 4]), "always", "raise")
@example(written("i2", {"missing_value": 5e-324}, [1, 2, 3, 4], zarr_format=2), "error", "warn")
@example(written("f4", {"scale_factor": math.inf, "missing_value": 1e-45}, [1, 2, 3, 4]), "error", "raise")
@example(written("<i2", {"add_offset": ""}, [1, 2, 3, 4]), "always", "warn")
def test_odd_attributes_are_those_of_the_zarr_engine(store, action, errors):
    ours, stock = (outcomes(store, engine, action, errors) for engine in ("gpuzarr", "zarr"))

    assert ours[0] == stock[0]
    assume(stock[1] is not None)
    assert_same_values(ours[1], stock[1])
    assert ours[2] <= stock[2]


def test_an_offset_that_is_no_number_is_refused_as_by_the_zarr_engine():
    store = written("<i2", {"add_offset": ""}, [1, 2, 3, 4])

    for engine in ("zarr", "gpuzarr"):
        with pytest.raises(TypeError, match="add"):
            xr.open_dataset(store, engine=engine, consolidated=False)["v"].load()
