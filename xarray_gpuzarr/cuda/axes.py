"""How the kernel that places boxes walks over them: fewer, longer axes and wider elements where the layout allows.

Pure NumPy, a few dozen operations per read, whatever the number of chunks. Called by `launch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xarray_gpuzarr.process.records import Column

MAX_AXES = 8
N_THREADS = 256
"""Number of threads in a block."""
MAX_BLOCKS = 2**31 - 1
"""Most blocks of threads in one launch."""
MAX_TILE, MAX_LINES = 8192, 256
"""Elements and lines of a tile; ``scatter.cu`` says why."""
STAGE_NBYTES = 17408
"""Shared memory through which a tile is transposed."""
TALL = 64
"""Lines of a transposed tile: that many neighbours in the chunk are read together."""
MAX_STEP = 2**31
"""Bytes between neighbours on the last axis are a signed 32-bit number, unless a tile is one element wide."""
MAX_BOX = 2**31
"""Positions inside a box are 32-bit numbers."""
LEAST_TILE = 32
"""Elements of a box for each of its tiles, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisColumns:
    """One axis of a box target. Columns are indexed by piece number and have shape (n_pieces,)."""

    in_start: Column
    """First wanted element, counted from the start of the chunk."""
    count: Column
    """Elements of the piece."""
    out_start: Column
    """First position in the output."""
    index: Column | None
    """Wanted element of every position in the output, counted from the start of its chunk; replaces `step`."""
    step: int
    """Distance between wanted elements."""
    in_stride: int
    """Elements between neighbours in the stored chunk."""
    out_stride: int
    """Elements between neighbours in the output."""

    @property
    def max_count(self) -> int:
        """Elements of the longest piece."""
        return int(self.count.max(initial=0))

    @property
    def is_run(self) -> bool:
        """Whether wanted elements follow one another."""
        return self.index is None and self.step == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The axes in the order in which the kernel walks over them, the last one across neighbouring threads."""

    axes: tuple[AxisColumns, ...]
    columns: tuple[int, ...]
    """Per axis, the column of piece numbers that belongs to it."""
    in_first: int = 0
    """Elements before the box that no axis counts."""
    factor: int = 1
    """Stored elements that are handled as one."""

    @property
    def n_elements(self) -> int:
        """Handled elements of the largest box."""
        return math.prod(a.max_count for a in self.axes)

    @property
    def is_transposed(self) -> bool:
        """Whether neighbours in the chunk are not neighbours in the output."""
        return len(self.axes) > 1 and abs(self.axes[-2].in_stride) < abs(self.axes[-1].in_stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How boxes are cut into the tiles that blocks of threads handle: a piece of the last axis by some lines."""

    width: int
    """Positions along the last axis."""
    n_lines: int
    """Positions on all other axes together."""
    tiles_across: int
    """Tiles along the last axis of the largest box."""
    n_tiles: int
    """Tiles of the largest box."""
    pitch: int
    """Elements between lines in shared memory, if tiles are transposed there; else 0."""


def plan_walk(axes: Sequence[AxisColumns], *, itemsize: int, out: int, widen: bool) -> Walk:
    """Bring the axes of a target into the form that the kernel walks over fastest.

    They stand in the order of the output, at the address `out`, the last one contiguous; `itemsize` is the bytes of a
    stored element. `widen`: several elements may be handled as one, because they are only copied.
    """
    walk = _merge(_drop(axes))
    last, others = walk.axes[-1], walk.axes[:-1]
    if widen and last.is_run and last.in_stride == 1 and last.out_stride == 1:
        # As many elements are one as all starts, counts and strides are divisible by.
        bits = walk.in_first | (out // itemsize) | (16 // itemsize)
        for column in (last.in_start, last.count, last.out_start):
            bits |= int(np.bitwise_or.reduce(column, initial=0))
        for axis in others:
            bits |= axis.in_stride | axis.out_stride
        k = bits & -bits
        narrow = [replace(a, in_stride=a.in_stride // k, out_stride=a.out_stride // k) for a in others]
        narrow.append(replace(last, in_start=last.in_start // k, count=last.count // k, out_start=last.out_start // k))
        walk = replace(walk, axes=tuple(narrow), in_first=walk.in_first // k, factor=k)
    if walk.n_elements >= MAX_BOX:
        raise ValueError(f"a box of {walk.n_elements} elements: kernels place fewer than {MAX_BOX} at once")
    # The axis along which the chunk is contiguous stands next to the one along which the output is.
    n = len(walk.axes)
    fastest = min(range(n), key=lambda i: (abs(walk.axes[i].in_stride), -i))
    if fastest >= n - 2:
        return walk
    order = [*(i for i in range(n - 1) if i != fastest), fastest, n - 1]
    return replace(walk, axes=tuple(walk.axes[i] for i in order), columns=tuple(walk.columns[i] for i in order))


def plan_tiles(walk: Walk, *, itemsize: int) -> Tiling:
    """Cut the largest box into tiles as equal as can be; `itemsize` is the bytes of what is handled as one element."""
    last = walk.axes[-1]
    length, rest = last.max_count, math.prod(a.max_count for a in walk.axes[:-1])
    if not length * rest:
        return Tiling(width=0, n_lines=0, tiles_across=0, n_tiles=0, pitch=0)
    each_bank = max(1, 4 // itemsize)
    if max(abs(last.step * last.in_stride), abs(last.out_stride)) >= MAX_STEP // 16:
        width, tallest = 1, MAX_LINES
    elif walk.is_transposed:
        tallest = min(TALL, rest)
        widest = ((STAGE_NBYTES // itemsize // tallest // each_bank - 1) | 1) * each_bank  # whose pitch fits
        width = _even(length, min(widest, MAX_TILE // tallest))
    else:
        width = _even(length, MAX_TILE)
        tallest = min(MAX_LINES, MAX_TILE // width)
    n_lines = _even(rest, tallest)
    across, down = -(-length // width), -(-rest // n_lines)
    # The fewest elements, `width` or more, that bring neighbouring lines into different banks.
    pitch = (-(-width // each_bank) | 1) * each_bank if walk.is_transposed and width > 1 else 0
    return Tiling(width=width, n_lines=n_lines, tiles_across=across, n_tiles=across * down, pitch=pitch)


def _even(length: int, most: int) -> int:
    """Return the longest of as few, as equal parts as there can be."""
    return -(-length // -(-length // most))


def _drop(axes: Sequence[AxisColumns]) -> Walk:
    """Turn axes of a single element into constants."""
    longer, columns, in_first = [], [], 0
    for column, axis in enumerate(axes):
        if len(axis.count) == 1 and axis.count[0] == 1 and axis.out_start[0] == 0:
            at = axis.in_start if axis.index is None else axis.index
            in_first += int(at[0]) * axis.in_stride
        else:
            longer.append(axis)
            columns.append(column)
    if not longer:
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        longer = [AxisColumns(in_start=zero, count=one, out_start=zero, index=None, step=1, in_stride=1, out_stride=1)]
        columns = [0]
    return Walk(axes=tuple(longer), columns=tuple(columns), in_first=in_first)


def _merge(walk: Walk) -> Walk:
    """Join axes that are one run of memory on both sides."""
    axes, columns = [walk.axes[0]], [walk.columns[0]]
    for inner, column in zip(walk.axes[1:], walk.columns[1:], strict=True):
        # Where a stride of the outer axis spans just the wanted elements of the inner one, these are all there are.
        outer, n = axes[-1], inner.max_count
        if (
            len(inner.count) == 1
            and outer.is_run
            and inner.is_run
            and outer.in_stride == n * inner.in_stride
            and outer.out_stride == n * inner.out_stride
        ):
            scaled = (outer.in_start * n, outer.count * n, outer.out_start * n)
            axes[-1] = replace(inner, in_start=scaled[0], count=scaled[1], out_start=scaled[2])
        else:
            axes.append(inner)
            columns.append(column)
    return replace(walk, axes=tuple(axes), columns=tuple(columns))
