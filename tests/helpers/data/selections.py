"""Strategies for selections, and what NumPy makes of them."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def numpy_outer(data: np.ndarray, key: Any) -> np.ndarray:
    """Index axis by axis, from the last to the first, so that an axis that goes does not move the others."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for axis in range(len(keys) - 1, -1, -1):
        data = data[(slice(None),) * axis + (keys[axis],)]
    return np.asarray(data)


def wanted_indices(wanted: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    return [np.arange(n)[w] for w, n in zip(wanted, shape, strict=True)]


@st.composite
def increasing_wanted(draw: Any) -> tuple[slice | np.ndarray, int]:
    """What `intersect_axis` takes: a slice with a positive step, or indices that never decrease; and the length."""
    length = draw(st.integers(0, 40))
    if draw(st.booleans()):
        start, stop = draw(st.integers(0, length)), draw(st.integers(0, length))
        return slice(start, stop, draw(st.integers(1, 9))), length
    indices = draw(st.lists(st.integers(0, max(0, length - 1)), max_size=20 * (length > 0)))
    return np.asarray(sorted(indices), np.int64), length


def axis_keys(length: int) -> st.SearchStrategy[Any]:
    """Everything that may index one axis: slices of any step, integers, index lists and arrays, repeats, masks."""
    kinds = [
        st.slices(length),
        st.lists(st.booleans(), min_size=length, max_size=length).map(lambda mask: np.asarray(mask, bool)),
    ]
    if length:
        number = st.integers(-length, length - 1)
        kinds += [
            number,
            number.map(np.int64),
            st.lists(number, max_size=8),
            hnp.arrays(st.sampled_from([np.int64, np.int8]), st.integers(0, 8), elements=number),
            repeats(length),
        ]
    return st.one_of(kinds)


def repeats(length: int) -> st.SearchStrategy[np.ndarray]:
    """Every element of an axis in order, each a few times or not at all: mostly more than a chunk has."""
    return st.lists(st.integers(0, 3), min_size=length, max_size=length).map(lambda n: np.repeat(np.arange(length), n))


def all_axis_keys(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Draw a key for every axis."""
    return st.tuples(*map(axis_keys, shape))


def outer_keys(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """(shape, tuple with a key for every axis)."""
    return st.tuples(st.just(tuple(shape)), all_axis_keys(tuple(shape)))


@st.composite
def points(draw: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Coordinates that broadcast against each other."""
    common = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5))
    return tuple(draw(hnp.arrays(np.int64, common, elements=st.integers(-n, n - 1))) for n in shape)
