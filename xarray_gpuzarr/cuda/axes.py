"""Plan how the kernel ``scatter.cu`` walks over the boxes that it places: along few, long axes, with wide elements.

`plan_walk` simplifies the axes, and `plan_tiles` cuts boxes into tiles for blocks of threads. Pure NumPy, with a few
dozen operations per read, whatever the number of chunks. `placers` uses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xarray_gpuzarr.cuda.cast import MAX_UNIT_NBYTES
from xarray_gpuzarr.process.records import Column

MAX_AXES = 8
"""Largest number of axes of a target."""
N_THREADS = 256
"""Number of threads in a block."""
MAX_BLOCKS = 2**31 - 1
"""Largest number of blocks of threads in one launch."""
MAX_TILE = 8192
"""Largest number of elements in a tile, a limit of the quick division in ``scatter.cu`` (`Divisor`)."""
MAX_LINES = 256
"""Largest number of lines in a tile: each of the `N_THREADS` threads of a block computes the addresses of one."""
STAGE_NBYTES = 17408
"""Bytes of shared memory through which a tile is transposed: 64 lines of 17 elements of 16 bytes. It must be
``stage_nbytes`` of ``scatter.cu``."""
MAX_TRANSPOSED_LINES = 64
"""Largest number of lines in a transposed tile. Consecutive lines are neighbours in the chunk there, so at most this
many neighbours are read together. The kernel would take up to `MAX_LINES`, as long as the tile fits into
`STAGE_NBYTES`."""
MAX_STEP = 2**31
"""Limit of the distance in bytes between neighbours on the last axis, because the kernel keeps it in a signed 32-bit
number. Farther neighbours are in different tiles, one element wide."""
MAX_BOX = 2**31
"""Limit of the number of elements in a box: positions inside it are 32-bit numbers."""
LEAST_TILE = 32
"""Lower bound of the average number of elements in the tiles of a box that has several tiles.

The worst case is a transposed box whose last axis has one element: tiles then have at most `MAX_TRANSPOSED_LINES` (64)
lines of one element. `_even_part` fills, on average, more than half of such a limit, so tiles have more than 32
elements on average. The bound does not hold if neighbours on the last axis are about `MAX_STEP` bytes apart or more:
tiles are then one element wide, and a box of one line has as many tiles as elements. `fits_kernels` of the decoder,
which relies on the bound, may then be wrong, and a launch of more than `MAX_BLOCKS` tiles raises `ValueError`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisColumns:
    """One axis of a box target.

    Columns have shape (n_pieces,), except `index`. Strides are in elements.
    """

    in_start: Column
    """First wanted element, counted from the start of the chunk."""
    count: Column
    """Number of wanted elements."""
    out_start: Column
    """First position in the output."""
    index: Column | None
    """shape (n_positions,): wanted element of each position in the output, counted from the start of its chunk. If
    given, it replaces `in_start` and `step`."""
    step: int
    """Distance between wanted elements, in elements of the axis."""
    in_stride: int
    """Stride of the axis in the stored chunk."""
    out_stride: int
    """Stride of the axis in the output."""

    @property
    def max_count(self) -> int:
        """Number of elements of the longest piece."""
        return int(self.count.max(initial=0))

    @property
    def is_run(self) -> bool:
        """Whether wanted elements are neighbours."""
        return self.index is None and self.step == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The axes in the order in which the kernel walks over them. Neighbouring threads walk along the last one."""

    axes: tuple[AxisColumns, ...]
    columns: tuple[int, ...]
    """For each axis, its column in the table of piece numbers, which has a row for each chunk."""
    in_first: int = 0
    """Offset in the chunk, in elements, that takes the place of the axes that were dropped."""
    factor: int = 1
    """Number of stored elements that are copied as one. Lengths, starts and strides count these as one element."""

    @property
    def n_elements(self) -> int:
        """Number of elements of the largest box, after joining elements by `factor`."""
        return math.prod(axis.max_count for axis in self.axes)

    @property
    def is_transposed(self) -> bool:
        """Whether the chunk is contiguous along another axis than the last one, along which the output is contiguous.

        If there is such an axis, `plan_walk` has put it before the last one. So only these two are compared.
        """
        return len(self.axes) > 1 and abs(self.axes[-2].in_stride) < abs(self.axes[-1].in_stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How boxes are cut into tiles, one for each block of threads. A tile is a part of the last axis, on some lines."""

    width: int
    """Number of positions of a tile along the last axis."""
    n_lines: int
    """Number of lines of a tile. A line is one position on all other axes."""
    tiles_across: int
    """Number of tiles along the last axis of the largest box."""
    n_tiles: int
    """Number of tiles of the largest box."""
    pitch: int
    """Elements between lines in shared memory if tiles are transposed there; otherwise 0."""


def plan_walk(axes: Sequence[AxisColumns], *, itemsize: int, out: int, widen: bool) -> Walk:
    """Return the walk over a target: with as few axes, and elements as wide, as the target allows.

    Parameters
    ----------
    axes : sequence of AxisColumns
        Axes in the order of the output, which is contiguous along the last one.
    itemsize : int
        Bytes of a stored element.
    out : int
        Address of the output.
    widen : bool
        Whether several elements may be handled as one, because they are only copied.

    Raises
    ------
    ValueError
        If a box has 2**31 elements or more, where those that are copied as one count once.
    """
    walk = _merge(_drop_single(axes))
    last = walk.axes[-1]
    if widen and last.is_run and last.in_stride == 1 and last.out_stride == 1:
        walk = _widen(walk, itemsize=itemsize, out=out)
    if walk.n_elements >= MAX_BOX:
        raise ValueError(f"a box of {walk.n_elements} elements: kernels place fewer than {MAX_BOX} at once")
    # The output is contiguous along the last axis. Put the axis along which the chunk is contiguous, the one with the
    # shortest stride, before it. If several axes have this stride, take the last of them.
    n = len(walk.axes)
    fastest = min(range(n), key=lambda i: (abs(walk.axes[i].in_stride), -i))
    if fastest >= n - 2:  # it is the last axis but one already, or the last axis itself
        return walk
    order = [*(i for i in range(n - 1) if i != fastest), fastest, n - 1]
    return replace(walk, axes=tuple(walk.axes[i] for i in order), columns=tuple(walk.columns[i] for i in order))


def _widen(walk: Walk, *, itemsize: int, out: int) -> Walk:
    """Handle `factor` elements as one: the largest power of two that divides all starts, counts and strides."""
    last, others = walk.axes[-1], walk.axes[:-1]
    # `bits` has the bits of all numbers that the factor must divide. A unit, which is what is handled as one element,
    # has at most MAX_UNIT_NBYTES bytes, and its length divides the address of the output. The addresses of chunks need
    # no such condition: callers align chunks to `unit_nbytes` of the placer.
    bits = walk.in_first | (out // itemsize) | (MAX_UNIT_NBYTES // itemsize)
    for column in (last.in_start, last.count, last.out_start):
        bits |= int(np.bitwise_or.reduce(column, initial=0))
    # On the other axes, starts are multiplied by the strides, so it suffices that the factor divides the strides.
    for axis in others:
        bits |= axis.in_stride | axis.out_stride
    factor = bits & -bits  # the lowest bit that is set in any of them: the largest power of two that divides all
    axes = [replace(axis, in_stride=axis.in_stride // factor, out_stride=axis.out_stride // factor) for axis in others]
    joined = replace(
        last, in_start=last.in_start // factor, count=last.count // factor, out_start=last.out_start // factor
    )
    return replace(walk, axes=(*axes, joined), in_first=walk.in_first // factor, factor=factor)


def plan_tiles(walk: Walk, *, itemsize: int) -> Tiling:
    """Cut the largest box into nearly equal tiles; `itemsize` is the length in bytes of a unit (see `_widen`)."""
    last = walk.axes[-1]
    length = last.max_count
    n_all_lines = math.prod(axis.max_count for axis in walk.axes[:-1])
    if length == 0 or n_all_lines == 0:
        return Tiling(width=0, n_lines=0, tiles_across=0, n_tiles=0, pitch=0)
    # Transposed tiles lie in shared memory, whose banks are 4 bytes wide. A cell is a bank, or an element if that is
    # longer. Lines are an odd number of cells apart (`pitch`), so that neighbouring lines begin in different banks.
    elements_per_cell = max(1, 4 // itemsize)
    # MAX_STEP is in bytes, strides are in elements. Elements of the chunk and of the output may differ in size, so the
    # largest size that an element may have is assumed for both.
    if max(abs(last.step * last.in_stride), abs(last.out_stride)) >= MAX_STEP // MAX_UNIT_NBYTES:
        width = 1
        max_lines = MAX_LINES
    elif walk.is_transposed:
        max_lines = min(MAX_TRANSPOSED_LINES, n_all_lines)
        # The largest odd number of cells at which all lines fit into shared memory limits the width.
        max_cells = STAGE_NBYTES // itemsize // max_lines // elements_per_cell
        max_width = _largest_odd(max_cells) * elements_per_cell
        width = _even_part(length, min(max_width, MAX_TILE // max_lines))
    else:
        width = _even_part(length, MAX_TILE)
        max_lines = min(MAX_LINES, MAX_TILE // width)
    n_lines = _even_part(n_all_lines, max_lines)
    tiles_across = -(-length // width)
    n_tiles = tiles_across * -(-n_all_lines // n_lines)
    pitch = 0
    if walk.is_transposed and width > 1:
        # The smallest odd number of cells that has room for a line.
        pitch = _smallest_odd(-(-width // elements_per_cell)) * elements_per_cell
    return Tiling(width=width, n_lines=n_lines, tiles_across=tiles_across, n_tiles=n_tiles, pitch=pitch)


def _largest_odd(limit: int) -> int:
    """Return the largest odd number that is not above `limit`."""
    return (limit - 1) | 1


def _smallest_odd(limit: int) -> int:
    """Return the smallest odd number that is not below `limit`."""
    return limit | 1


def _even_part(length: int, max_part: int) -> int:
    """Return the length of the longest part when `length` is split into the fewest nearly equal parts.

    No part is longer than `max_part`.
    """
    n_parts = -(-length // max_part)
    return -(-length // n_parts)


def _drop_single(axes: Sequence[AxisColumns]) -> Walk:
    """Return a walk without the axes that have one piece of one element, which become the constant `in_first`."""
    longer = []
    columns = []
    in_first = 0
    for column, axis in enumerate(axes):
        # `in_first` is an offset in the chunk alone, so the element must be the first one in the output.
        if len(axis.count) == 1 and axis.count[0] == 1 and axis.out_start[0] == 0:
            elements = axis.in_start if axis.index is None else axis.index
            in_first += int(elements[0]) * axis.in_stride
        else:
            longer.append(axis)
            columns.append(column)
    if not longer:  # the kernel needs an axis, so it gets one with a single element
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        longer = [AxisColumns(in_start=zero, count=one, out_start=zero, index=None, step=1, in_stride=1, out_stride=1)]
        columns = [0]
    return Walk(axes=tuple(longer), columns=tuple(columns), in_first=in_first)


def _merge(walk: Walk) -> Walk:
    """Join neighbouring axes that are contiguous in the chunk and in the output."""
    axes, columns = [walk.axes[0]], [walk.columns[0]]
    for inner, column in zip(walk.axes[1:], walk.columns[1:], strict=True):
        outer = axes[-1]
        n = inner.max_count
        # If the only piece of the inner axis fills exactly one stride of the outer axis, in the chunk and in the
        # output, it is the whole axis. Its starts, which are dropped here, are then 0.
        if (
            len(inner.count) == 1
            and outer.is_run
            and inner.is_run
            and outer.in_stride == n * inner.in_stride
            and outer.out_stride == n * inner.out_stride
        ):
            axes[-1] = replace(inner, in_start=outer.in_start * n, count=outer.count * n, out_start=outer.out_start * n)
        else:
            axes.append(inner)
            columns.append(column)
    return replace(walk, axes=tuple(axes), columns=tuple(columns))
