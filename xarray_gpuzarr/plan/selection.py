"""Selections as callers write them, brought to one form: increasing along every axis, and how to undo that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import SelectionError
from xarray_gpuzarr.process.records import Column, record


@record
class OuterSelection:
    """An orthogonal selection, brought to increasing order along every axis."""

    wanted: tuple[slice | Column, ...]
    """Per axis a slice with a positive step or an index array that never decreases."""
    undo: tuple[tuple[int, slice | Column | int], ...]
    """(axis, index) pairs that turn the increasing result into the one asked for, in order of application."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what was asked for."""
        lengths = [len(range(*k.indices(k.stop)) if isinstance(k, slice) else k) for k in self.wanted]
        for axis, index in self.undo:
            if isinstance(index, int):
                del lengths[axis]
            elif not isinstance(index, slice):
                lengths[axis] = len(index)
        return tuple(lengths)

    def restore(self, array: Any) -> Any:
        """Apply `undo` to an array of any library that indexes like NumPy."""
        for axis, index in self.undo:
            array = array[(slice(None),) * axis + (index, ...)]
        return array


def outer_selection(selection: Any, shape: Sequence[int]) -> OuterSelection:
    """Normalise what NumPy calls basic indexing, and index arrays applied axis by axis.

    `selection` is an int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them; missing trailing axes are
    taken whole. `shape` is that of the array that is indexed.

    Raises `SelectionError` for too many indices, an index outside the array, or an index of an unknown kind.
    """
    in_order: list[slice | Column] = []
    undo: list[tuple[int, slice | Column | int]] = []
    for axis, (key, length) in enumerate(zip(_expand(selection, len(shape)), shape, strict=True)):
        ordered: slice | Column
        back: slice | Column | int | None
        if isinstance(key, slice):
            ordered, back = _ordered_slice(key, length)
        elif type(key) is int and -length <= key < length:  # NumPy takes 4 us
            at = key + length if key < 0 else key
            ordered, back = slice(at, at + 1), 0
        else:
            try:
                array = np.asarray(key)
            except ValueError as err:  # a ragged list
                raise _bad_index(key, str(err)) from err
            if array.ndim:
                ordered, back = _ordered_array(array, length, axis)
            else:
                at = int(checked_index(array, length, axis))
                ordered, back = slice(at, at + 1), 0
        in_order.append(ordered)
        if back is not None:
            undo.append((axis, back))
    if not undo:
        return OuterSelection(wanted=tuple(in_order), undo=())
    # Integers drop their axis, so they come last and from the back.
    drops = sorted([u for u in undo if isinstance(u[1], int)], reverse=True, key=lambda u: u[0])
    keeps = [u for u in undo if not isinstance(u[1], int)]
    return OuterSelection(wanted=tuple(in_order), undo=(*keeps, *drops))


def _expand(selection: Any, ndim: int) -> list[Any]:
    keys = list(selection) if isinstance(selection, tuple) else [selection]
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(keys) == ndim and not dots:
        return keys
    if len(dots) > 1 or len(keys) - len(dots) > ndim:
        raise SelectionError(
            "the selection does not fit the array",
            tried=f"{len(keys) - len(dots)} indices and {len(dots)} ellipses",
            found=f"an array of {ndim} dimensions",
            do="give at most one index per dimension and at most one ellipsis",
        )
    at = dots[0] if dots else len(keys)
    fill = [slice(None)] * (ndim - len(keys) + len(dots))
    return keys[:at] + fill + keys[at + len(dots) :]


def _ordered_slice(key: slice, length: int) -> tuple[slice, slice | None]:
    try:
        start, stop, step = key.indices(length)
    except (TypeError, ValueError) as err:
        raise _bad_index(key, str(err)) from err
    if step > 0:
        return slice(start, max(start, stop), step), None
    n = len(range(start, stop, step))
    last = start + (n - 1) * step
    return slice(last, start + 1, -step) if n else slice(0, 0, 1), slice(None, None, -1)


def _ordered_array(array: npt.NDArray[Any], length: int, axis: int) -> tuple[Column, Column | None]:
    if array.ndim != 1:
        raise _bad_index(array, f"an index array of {array.ndim} dimensions on axis {axis}")
    if array.dtype == bool:
        if len(array) != length:
            raise _bad_index(array, f"{len(array)} booleans for axis {axis} of length {length}")
        return np.flatnonzero(array).astype(np.int64), None
    index = checked_index(array, length, axis)
    if len(index) < 2 or bool((np.diff(index) >= 0).all()):
        return index, None
    ordered, back = np.unique(index, return_inverse=True)
    return ordered, back


def checked_index(array: npt.NDArray[Any], length: int, axis: int) -> Column:
    """Return indices counted from the start of the axis, all inside it."""
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
