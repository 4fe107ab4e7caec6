"""Crops of a variable, read from the stored arrays that it is made of: each inner chunk once, however many share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders import Decoder
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.training.parts import Part, Parts
from xarray_gpuzarr.training.stacks import read_stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Boxes of one shape."""

    start: Column
    """shape (n, ndim): first element of each."""
    shape: tuple[int, ...]
    """Shape of one, in elements."""

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of all, one after another."""
        return (len(self.start), *self.shape)

    def slices(self) -> list[tuple[slice, ...]]:
        """Return the slices that select each box."""
        return [tuple(slice(s, s + n) for s, n in zip(row, self.shape, strict=True)) for row in self.start.tolist()]

    def fit(self, length: Column) -> bool:
        """Whether all lie inside an array of a shape."""
        return bool(((self.start >= 0) & (self.start + self.shape <= length)).all())

    def inside(self, first: Column, length: Column) -> tuple[npt.NDArray[np.bool_], Self]:
        """Return which boxes have elements in a part, and these, counted from the part's first element."""
        local = self.start - first
        touches = ((local < length) & (local + self.shape > 0)).all(axis=1)
        return touches, type(self)(start=local[touches], shape=self.shape)


def read_crops(parts: Parts, boxes: Boxes, decoder: Decoder) -> Any:
    """Read boxes of a variable: at least one, all inside it.

    Returns
    -------
    array of shape `boxes.result_shape`, on the decoder's device

    Raises
    ------
    GpuZarrError
        As `xarray_gpuzarr.read.read`.
    """
    if 0 in boxes.shape:
        return decoder.empty(boxes.result_shape, parts.lazy.dtype)
    result = None
    for at in product(*map(range, parts.grid.shape)):
        part: Part = parts.grid[at]
        first = np.array([bounds[i] for bounds, i in zip(parts.bounds, at, strict=True)], np.int64)
        length = np.array(part.shape, np.int64)
        touches, local = boxes.inside(first, length)
        if not touches.any():
            continue
        block = read_stack(part, local.start, local.shape, decoder)
        if touches.all() and local.fit(length):
            return block
        if result is None:
            result = decoder.empty(boxes.result_shape, parts.lazy.dtype)
        for members, box in _alike(local, length):
            result[(np.flatnonzero(touches)[members], *box)] = block[(members, *box)]
    return result


def _alike(local: Boxes, length: Column) -> Iterator[tuple[Column, tuple[slice, ...]]]:
    """Group boxes by which of their elements lie in a part; yield the numbers of the boxes, and these elements."""
    lo, hi = np.maximum(-local.start, 0), np.minimum(length - local.start, local.shape)
    bounds, which = np.unique(np.concatenate([lo, hi], axis=1), axis=0, return_inverse=True)
    for number, row in enumerate(bounds.tolist()):
        yield np.flatnonzero(which.reshape(-1) == number), tuple(map(slice, row[: lo.shape[1]], row[lo.shape[1] :]))
