"""Strategies for crops that are stacked, and what NumPy makes of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from xarray_gpuzarr.plan.crops import Crops


@st.composite
def stack_axes(draw: Any, length: int, n_samples: int) -> Any:
    """What samples want along one axis: the same or not, evenly spaced or not, often nothing or the same again."""
    kinds = ["slice", "array", "crops", "table"] if length else ["slice", "empty crops"]
    kind = draw(st.sampled_from(kinds))
    if kind == "slice":
        start, stop = draw(st.integers(0, length)), draw(st.integers(0, length))
        return slice(start, stop, draw(st.integers(1, 4)))
    if kind == "empty crops":
        return Crops(start=np.zeros(n_samples, np.int64), count=0)
    number = st.integers(0, length - 1)
    if kind == "array":
        return np.asarray(sorted(draw(st.lists(number, max_size=6))), np.int64)
    if kind == "table":
        n = draw(st.integers(0, 5))
        rows = draw(
            st.lists(st.lists(number, min_size=n, max_size=n).map(sorted), min_size=n_samples, max_size=n_samples)
        )
        return np.asarray(rows, np.int64).reshape(n_samples, n)
    step = draw(st.integers(1, 4))
    count = draw(st.integers(0, -(-length // step)))
    starts = st.integers(0, length - 1 - max(0, count - 1) * step)
    start = draw(st.lists(starts, min_size=n_samples, max_size=n_samples))
    return Crops(start=np.asarray(start, np.int64), count=count, step=step)


@st.composite
def stacks(draw: Any, shape: Sequence[int]) -> tuple[list[Any], int]:
    """(what samples want along each axis, number of samples)."""
    n_samples = draw(st.integers(0, 5))
    return [draw(stack_axes(length, n_samples)) for length in shape], n_samples


def wanted_of(axis: Any, length: int, sample: int) -> np.ndarray:
    """Return the elements that one sample wants along an axis."""
    if isinstance(axis, Crops):
        return axis.start[sample] + axis.step * np.arange(axis.count)
    if isinstance(axis, slice):
        return np.arange(length)[axis]
    return axis if axis.ndim == 1 else axis[sample]


def numpy_stack(data: np.ndarray, axes: Sequence[Any], n_samples: int) -> np.ndarray:
    """Crop one sample after another, and stack what there is."""
    crops = [
        data[np.ix_(*(wanted_of(axis, n, sample) for axis, n in zip(axes, data.shape, strict=True)))]
        for sample in range(n_samples)
    ]
    if crops:
        return np.stack(crops)
    lengths = [
        axis.count if isinstance(axis, Crops) else _length(axis, n) for axis, n in zip(axes, data.shape, strict=True)
    ]
    return np.empty((0, *lengths), data.dtype)


def _length(axis: Any, length: int) -> int:
    return len(np.arange(length)[axis]) if isinstance(axis, slice) else axis.shape[-1]
