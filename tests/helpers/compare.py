"""Exact comparisons; each fails with what differs."""

from typing import Any

import numpy as np
import xarray as xr

_OURS_TO_CHOOSE = "preferred_chunks"
"""The one encoding entry that differs from engine="zarr": the shard instead of the chunk."""


def assert_same_bits(actual: Any, expected: np.ndarray) -> None:
    """Same kind of array, dtype (byte order included), shape and bits: NaN payloads and signs of zero count."""
    assert type(actual) is np.ndarray
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    is_same = actual.tobytes() == expected.tobytes()
    assert is_same, f"bits differ in {_differing(actual, expected)}"  # where ``CI`` is set, pytest compares for minutes


def _differing(actual: np.ndarray, expected: np.ndarray) -> str:
    """Say how many elements differ, and the first of them."""
    bits = [np.frombuffer(array.tobytes(), f"V{array.dtype.itemsize}") for array in (actual, expected)]
    places = np.flatnonzero(bits[0] != bits[1])
    first = int(places[0])
    where = tuple(int(n) for n in np.unravel_index(first, actual.shape))
    return f"{places.size} of {actual.size} elements, first at {where}: {actual[where]!r} is not {expected[where]!r}"


def assert_same_values(actual: Any, expected: Any) -> None:
    """Same dtype, shape and values; NaN equals NaN, in objects too."""
    np.testing.assert_array_equal(comparable(actual), comparable(expected), strict=True)


def comparable(array: Any) -> Any:
    return np.vectorize(repr, otypes="U")(array) if array.dtype == object and array.size else array


def assert_same_dataset(actual: xr.Dataset, expected: xr.Dataset) -> None:
    """Same variables, dtypes, values, attributes, coordinates, indexes and encodings."""
    assert set(actual.variables) == set(expected.variables)
    assert set(actual.coords) == set(expected.coords)
    assert set(actual.xindexes) == set(expected.xindexes)
    assert describe(actual.attrs) == describe(expected.attrs)
    assert describe(actual.encoding) == describe(expected.encoding)
    for name, variable in expected.variables.items():
        found = actual.variables[name]
        assert found.dims == variable.dims
        assert found.dtype == variable.dtype
        assert describe(found.attrs) == describe(variable.attrs)
        assert encoding_of(found) == encoding_of(variable)
        assert_same_values(found.values, variable.values)


def assert_same_tree(actual: xr.DataTree, expected: xr.DataTree) -> None:
    """Same groups, in any order, and in each what `assert_same_dataset` compares."""
    assert sorted(actual.groups) == sorted(expected.groups)
    for path in expected.groups:
        assert_same_dataset(actual[path].to_dataset(inherit=False), expected[path].to_dataset(inherit=False))


def encoding_of(variable: xr.Variable) -> dict[str, str]:
    return {k: v for k, v in describe(variable.encoding).items() if k != _OURS_TO_CHOOSE}


def describe(mapping: Any) -> dict[Any, str]:
    """Write values as text, so that NaN equals NaN and 1 differs from 1.0; dtypes alike before and after pickle."""
    return {key: value.str if isinstance(value, np.dtype) else repr(value) for key, value in mapping.items()}
