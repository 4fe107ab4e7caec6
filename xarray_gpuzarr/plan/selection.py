"""Normalised selections: increasing along every axis, together with the operations that undo the sorting.

`outer_selection` normalises what a caller passes as index; `OuterSelection.restore` is applied to the result of the
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import SelectionError
from xarray_gpuzarr.process.records import Column, record


@record
class OuterSelection:
    """An orthogonal selection in increasing order along every axis."""

    selectors: tuple[slice | Column, ...]
    """For each axis a slice with a positive step, or an index array that never decreases."""
    undo: tuple[tuple[int, slice | Column | int], ...]
    """Pairs of axis and index that turn the increasing result into the requested one, in order of application. A slice
    reverses the axis, an array takes its elements in another order or repeatedly, an integer (always 0) drops it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the requested result."""
        lengths = []
        for selector in self.selectors:
            if isinstance(selector, slice):  # its bounds are not negative, so its stop serves as the axis' length
                lengths.append(len(range(*selector.indices(selector.stop))))
            else:
                lengths.append(len(selector))
        for axis, index in self.undo:
            if isinstance(index, int):
                del lengths[axis]
            elif not isinstance(index, slice):
                lengths[axis] = len(index)
        return tuple(lengths)

    def restore(self, array: Any) -> Any:
        """Return the requested result: `undo` applied to `array`, of any library that indexes like NumPy."""
        for axis, index in self.undo:
            array = array[(slice(None),) * axis + (index, ...)]
        return array


def outer_selection(selection: Any, shape: Sequence[int]) -> OuterSelection:
    """Normalise a selection: basic indices of NumPy, and index arrays that are applied axis by axis.

    Parameters
    ----------
    selection : int, slice, Ellipsis, 1-D array of int or bool, or tuple of these
        Missing trailing axes are taken as a whole.
    shape : sequence of int
        Shape of the array that is indexed.

    Raises
    ------
    SelectionError
        For too many indices, an index outside the array, or an index of another kind.
    """
    in_order: list[slice | Column] = []
    undo: list[tuple[int, slice | Column | int]] = []
    for axis, (key, length) in enumerate(zip(_expand(selection, len(shape)), shape, strict=True)):
        ordered: slice | Column
        undo_index: slice | Column | int | None
        if isinstance(key, slice):
            ordered, undo_index = _ordered_slice(key, length)
        elif type(key) is int and -length <= key < length:  # the last branch does the same, but takes 4 us
            index = key + length if key < 0 else key
            ordered, undo_index = slice(index, index + 1), 0
        else:
            try:
                array = np.asarray(key)
            except ValueError as err:  # a ragged list
                raise _bad_index(key, str(err)) from err
            if array.ndim:
                ordered, undo_index = _ordered_array(array, length, axis)
            else:
                index = int(checked_index(array, length, axis))
                ordered, undo_index = slice(index, index + 1), 0
        in_order.append(ordered)
        if undo_index is not None:
            undo.append((axis, undo_index))
    if not undo:
        return OuterSelection(selectors=tuple(in_order), undo=())
    # Integers drop their axis, so they are applied last, from the last axis to the first.
    keeping = [(axis, index) for axis, index in undo if not isinstance(index, int)]
    dropping = [(axis, index) for axis, index in reversed(undo) if isinstance(index, int)]
    return OuterSelection(selectors=tuple(in_order), undo=(*keeping, *dropping))


def _expand(selection: Any, ndim: int) -> list[Any]:
    """Return one index for each axis, with full slices in the place of an ellipsis and of missing indices."""
    keys = list(selection) if isinstance(selection, tuple) else [selection]
    ellipses = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(keys) == ndim and not ellipses:
        return keys
    if len(ellipses) > 1 or len(keys) - len(ellipses) > ndim:
        raise SelectionError(
            "the selection does not fit the array",
            tried=f"{len(keys) - len(ellipses)} indices and {len(ellipses)} ellipses",
            found=f"an array of {ndim} dimensions",
            do="give at most one index per dimension and at most one ellipsis",
        )
    position = ellipses[0] if ellipses else len(keys)
    full_slices = [slice(None)] * (ndim - len(keys) + len(ellipses))
    return keys[:position] + full_slices + keys[position + len(ellipses) :]


def _ordered_slice(key: slice, length: int) -> tuple[slice, slice | None]:
    """Return a slice with a positive step, and the slice that undoes the reversal; None if nothing was reversed."""
    try:
        start, stop, step = key.indices(length)
    except (TypeError, ValueError) as err:
        raise _bad_index(key, str(err)) from err
    if step > 0:
        return slice(start, max(start, stop), step), None  # an empty slice ends where it starts
    reverse = slice(None, None, -1)
    n = len(range(start, stop, step))
    if not n:
        return slice(0, 0, 1), reverse
    last = start + (n - 1) * step
    return slice(last, start + 1, -step), reverse


def _ordered_array(array: npt.NDArray[Any], length: int, axis: int) -> tuple[Column, Column | None]:
    """Return an index array that never decreases, and the index that undoes the sorting.

    An array in order is returned as it is, with its repeated indices; the second value is then None. Otherwise the
    first value has each index once, and the second value repeats them.
    """
    if array.ndim != 1:
        raise _bad_index(array, f"an index array of {array.ndim} dimensions on axis {axis}")
    if array.dtype == bool:
        if len(array) != length:
            raise _bad_index(array, f"{len(array)} booleans for axis {axis} of length {length}")
        return np.flatnonzero(array).astype(np.int64), None
    index = checked_index(array, length, axis)
    if len(index) < 2 or bool((np.diff(index) >= 0).all()):
        return index, None
    ordered, undo_index = np.unique(index, return_inverse=True)
    return ordered, undo_index


def checked_index(array: npt.NDArray[Any], length: int, axis: int) -> Column:
    """Return indices as int64, counted from the start of the axis.

    Raises `SelectionError` if they are not integers, or one lies outside the axis.
    """
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise _bad_index(array, f"an index of dtype {array.dtype} on axis {axis}")
    low, high = int(array.min()), int(array.max())
    if low < -length or high >= length:
        outside = low if low < -length else high
        raise _bad_index(array, f"index {outside} on axis {axis} of length {length}")
    index = array.astype(np.int64)
    return np.where(index < 0, index + length, index) if low < 0 else index


def _bad_index(key: Any, found: str) -> SelectionError:
    return SelectionError(
        "the selection does not fit the array",
        tried=repr(key)[:120],
        found=found,
        do="use integers, slices, or 1-D arrays of integers or booleans that lie inside the array",
    )
