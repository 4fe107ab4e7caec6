"""Crops of an array that are to be stacked: the elements of each sample along an axis, and their checks."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import SelectionError
from xarray_gpuzarr.process.records import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Crops:
    """Evenly spaced elements of each sample along one axis. Samples have equally many, and each has its own start."""

    start: Column
    """First element of each sample, counted from the start of the axis; shape (n_samples,)."""
    count: int
    """Number of elements of each sample."""
    step: int = 1
    """Distance between elements, at least 1."""


StackAxis = slice | Column | Crops
"""Elements of the samples along one axis.

If they are the same for all samples: a slice with a positive step, or int64 of shape (n,). If each sample has its own:
`Crops`, or int64 of shape (n_samples, n). Index arrays never decrease along a row.
"""


def sample_length(selected: StackAxis) -> int:
    """Return the number of elements of each sample along an axis. A slice must have a stop, and no negative bounds."""
    if isinstance(selected, Crops):
        return selected.count
    if isinstance(selected, slice):
        return len(range(selected.start or 0, selected.stop, selected.step or 1))
    return int(np.shape(selected)[-1])


def checked_crops(crops: Crops, n_samples: int, axis: int, length: int) -> Crops:
    """Return crops whose elements all lie on an axis of the given length. Raises `SelectionError`."""
    start = np.asarray(crops.start)
    count = operator.index(crops.count)
    step = operator.index(crops.step)
    if start.shape != (n_samples,) or count < 0 or step < 1:
        starts = f"starts of shape {start.shape}, {count} elements each, {step} apart"
        raise bad_crops(f"{starts}, on axis {axis}, for {n_samples} samples")
    if count:  # samples without elements lie nowhere, so their starts do not matter
        extent = (count - 1) * step
        start = _checked_index(start, axis, length, length - extent, f" and {extent} elements behind it")
    return Crops(start=start, count=count, step=step)


def checked_table(selected: Column, n_samples: int, axis: int, length: int) -> Column:
    """Return an index array of shape (n_samples, n), or of shape (1, n) if `selected` is 1-D.

    Raises `SelectionError` if it does not fit the axis or the samples, or an index is less than the one before it.
    """
    table = np.asarray(selected)
    if table.ndim == 1:
        table = table[None]
    elif table.ndim != 2 or len(table) != n_samples:
        raise bad_crops(f"an index array of shape {table.shape} on axis {axis}, for {n_samples} samples")
    table = _checked_index(table, axis, length, length)
    if (table[:, 1:] < table[:, :-1]).any():
        raise bad_crops(f"indices that decrease, on axis {axis}")
    return table


def _checked_index(index: npt.NDArray[Any], axis: int, length: int, end: int, suffix: str = "") -> Column:
    """Return indices as int64.

    Raises `SelectionError` unless all lie in ``[0, end)``; its message names the first index that does not,
    followed by `suffix`.
    """
    if index.size and index.dtype.kind not in "iu":
        raise bad_crops(f"an index of dtype {index.dtype} on axis {axis}")
    is_outside = (index < 0) | (index >= max(0, end))
    if is_outside.any():
        raise bad_crops(f"index {index[is_outside][0]}{suffix} on axis {axis} of length {length}")
    return index.astype(np.int64, copy=False)


def bad_crops(found: str) -> SelectionError:
    """Return the error for crops that cannot be stacked."""
    return SelectionError(
        "the crops do not fit the array",
        tried="to stack crops of equal shape",
        found=found,
        do="give starts or indices inside the array, counted from its start, for each sample; indices never decrease",
    )
