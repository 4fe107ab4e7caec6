"""Typed launches of the kernels that place decoded chunks in a result: boxes (`Scatter`) and single points (`Points`).

Each read packs one table of parameters and columns with NumPy, and uploads it. Pointers in a table are absolute
addresses, so the table is packed for the address that it will have in device memory. The cost of a launch does not
depend on the number of chunks. This module knows neither CuPy nor Zarr.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BLOCKS, N_THREADS, AxisColumns, plan_tiles, plan_walk
from xarray_gpuzarr.cuda.cast import ElementCast, Words, pad_words
from xarray_gpuzarr.process.records import Column

_N_CAST_WORDS = 8
"""Number of words in ``struct Cast`` of ``cast.cuh``; see `ElementCast.words`."""
_MASK_POINTER = 2
"""Position in ``struct Cast`` of the address of the mask values."""
_MISSING_POINTER = 7
"""Position in ``struct Cast`` of the address of the fill value, which is 0 for decoded chunks."""
_OUT_WORD = _N_CAST_WORDS
"""Position in ``struct Target`` of the address of the output: the first word behind the cast."""
_N_TARGET_WORDS = 8
"""Number of words in ``struct Target`` between the cast and the axes (``scatter.cu``), or behind the cast
(``points.cu``, which uses fewer)."""
_N_AXIS_WORDS = 8
"""Number of words in ``struct Axis`` of ``scatter.cu``."""
_NO_COLUMN = -1
"""Column number of an axis with a single piece: the kernel does not look up its piece number, which is 0, in a row."""
_POINTS_PER_THREAD = 16
"""Number of points that a thread takes. ``points.cu`` has the same number, 16, in its code."""
_ALL_BITS = 2**64 - 1
"""All bits of a word. ``number & _ALL_BITS`` is the word of any integer, also of a negative one."""


class _Placer:
    """Common part of `Scatter` and `Points`: the table, and the launches for decoded and for missing chunks.

    A table is a sequence of 64-bit words: the parameters for decoded chunks, those for missing chunks, and the columns
    that both point to.

    Parameters
    ----------
    cast : ElementCast
        Conversion of each element.
    name : str
        Name of the kernel and, with ``.cu``, of its file.
    n_words : int
        Number of words of one set of parameters.
    fill : scalar
        Value of missing chunks, as an element of ``cast.stored``.
    factor : int
        Number of stored elements that the kernel handles as one.
    """

    def __init__(self, cast: ElementCast, name: str, n_words: int, *, fill: Any, factor: int) -> None:
        self.unit_nbytes = cast.stored.itemsize * factor
        """Number of bytes that the addresses of decoded chunks must be multiples of."""
        self._kernel = Kernel(file=f"{name}.cu", name=name, defines=cast.defines(self.unit_nbytes))
        self._n_words = n_words
        self._fields = [0] * (2 * n_words)
        """Words of both sets of parameters."""
        self._columns: list[Words] = []
        """Columns that follow the parameters in the table."""
        self._pointers: list[int] = []
        """Positions of the words that are pointers. Until `pack`, they hold offsets from the start of the table."""
        self.nbytes = 2 * n_words * 8
        """Length of the table in bytes."""
        # The fill value comes first. It may be a unit of 16 bytes, and only this offset is always a multiple of 16.
        fill_offset = self._append(pad_words(np.full(factor, fill, cast.stored)))
        mask_offset = self._append(cast.mask_words())
        self._write(0, [*cast.words(mask_offset), 0], (_MASK_POINTER,))
        self._write(n_words, [*cast.words(mask_offset), fill_offset], (_MASK_POINTER, _MISSING_POINTER))

    def _append(self, values: npt.NDArray[Any]) -> int:
        """Add a column of words at the end; return its offset in bytes from the start of the table."""
        offset = self.nbytes
        self._columns.append(values.view(np.uint64))
        self.nbytes += values.nbytes
        return offset

    def _write(self, first: int, fields: Sequence[int], pointers: Sequence[int] = ()) -> None:
        """Set the parameters from word `first` on to `fields`, of which those at positions `pointers` are pointers."""
        self._fields[first : first + len(fields)] = fields
        self._pointers += [first + i for i in pointers]

    @functools.cached_property
    def _words(self) -> Words:
        """All words of the table, with offsets in place of pointers. Made once, after everything has been added."""
        fields = np.array([int(f) & _ALL_BITS for f in self._fields], np.uint64)
        return np.concatenate([fields, *self._columns])

    def pack(self, into: Bytes, table: Address, out: Address | None = None) -> None:
        """Write the table into pinned host memory.

        Parameters
        ----------
        into : uint8, shape (>= nbytes,), pinned host memory, aligned to 8 bytes
            Memory that is written.
        table : Address
            Device memory that the table will be copied to, aligned to 16 bytes.
        out : Address, optional
            First element of another output than that of the constructor, of at least the same alignment.
        """
        words = into[: self.nbytes].view(np.uint64)
        words[:] = self._words
        words[self._pointers] += np.uint64(table)
        if out is not None:
            words[_OUT_WORD] = out
            words[self._n_words + _OUT_WORD] = out

    def launch(
        self, api: DeviceApi, stream: Stream, *, table: Address, source: Address, row: Address, n_rows: int
    ) -> None:
        """Enqueue the kernel that places the wanted elements of decoded chunks.

        Parameters
        ----------
        api : DeviceApi
            Device.
        stream : Stream
            Stream that the kernel runs on.
        table : Address
            The table in device memory, packed for this address.
        source : Address of uint64, shape (n_rows,)
            Addresses of the first elements of the decoded chunks, which must be aligned to `unit_nbytes`.
        row : Address of int64, shape (n_rows, ndim) for boxes, (n_rows, 1) for points
            For each chunk its piece number on every axis, or the number of its group of points.
        n_rows : int
            Number of chunks.

        Raises
        ------
        ValueError
            If one launch cannot have so many blocks of threads.
        """
        n_blocks, counts = self._grid(n_rows)
        if n_blocks > MAX_BLOCKS:
            raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer chunks at a time are needed")
        if n_blocks:
            api.launch(self._kernel, n_blocks, N_THREADS, (table, source, row, *counts), stream)

    def fill(self, api: DeviceApi, stream: Stream, *, table: Address, row: Address, n_rows: int) -> None:
        """Enqueue the kernel that writes the fill value to the places of missing chunks.

        Parameters and errors are those of `launch`.
        """
        # The parameters for missing chunks follow those for decoded chunks in the table.
        missing_table = Address(table + self._n_words * 8)
        self.launch(api, stream, table=missing_table, source=Address(0), row=row, n_rows=n_rows)

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of blocks of threads of a launch, and the last arguments of the kernel."""
        raise NotImplementedError


class Scatter(_Placer):
    """Places boxes of decoded chunks in an output in C order.

    Parameters
    ----------
    axes : sequence of AxisColumns
        Axes in the order of the output.
    cast : ElementCast
        Conversion of each element.
    out : Address
        First element of the output.
    fill : scalar
        Value of missing chunks, as an element of ``cast.stored``.

    Raises
    ------
    ValueError
        If there are more than 8 axes, or a box of 2**31 elements or more.
    """

    def __init__(self, axes: Sequence[AxisColumns], cast: ElementCast, *, out: Address, fill: Any) -> None:
        if len(axes) > MAX_AXES:
            raise ValueError(f"an array of {len(axes)} dimensions: kernels place at most {MAX_AXES}")
        itemsize = cast.stored.itemsize
        walk = plan_walk(axes, itemsize=itemsize, out=out, widen=cast.is_copy)
        n_words = _N_CAST_WORDS + _N_TARGET_WORDS + _N_AXIS_WORDS * MAX_AXES
        super().__init__(cast, "scatter", n_words, fill=fill, factor=walk.factor)
        tiling = plan_tiles(walk, itemsize=self.unit_nbytes)
        self._n_tiles = tiling.n_tiles
        row_width = len(axes)  # piece numbers in a row; `walk` may have fewer axes
        target = [out, walk.in_first, len(walk.axes), row_width, tiling.width, tiling.n_lines, tiling.tiles_across]
        self._write(_OUT_WORD, [*target, tiling.pitch])
        self._write(n_words + _OUT_WORD, [*target, 0])  # pitch 0: fill values are not transposed
        for i, (axis, column) in enumerate(zip(walk.axes, walk.columns, strict=True)):
            first_word = _N_CAST_WORDS + _N_TARGET_WORDS + i * _N_AXIS_WORDS
            piece_column = column if len(axis.count) > 1 else _NO_COLUMN
            columns = [self._append(_as_column(c)) for c in (axis.in_start, axis.count, axis.out_start)]
            index = 0
            pointers = [0, 1, 2]  # positions in the axis' words
            if axis.index is not None:
                index = self._append(_as_column(axis.index))
                pointers.append(3)
            step = axis.step * axis.in_stride
            self._write(first_word, [*columns, index, step, axis.in_stride, axis.out_stride, piece_column], pointers)
            # For a missing chunk, the kernel starts at the address of the fill value, and does not add `in_first`.
            # Without index, step and stride, it reads every element from there.
            self._write(first_word + n_words, [*columns, 0, 0, 0, axis.out_stride, piece_column], (0, 1, 2))

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        return n_rows * self._n_tiles, (self._n_tiles,)


class Points(_Placer):
    """Places single elements of decoded chunks anywhere in a flat output.

    Parameters
    ----------
    bounds : int64, shape (n_groups + 1,)
        Points ``[bounds[i], bounds[i + 1])`` lie in the chunk of group i.
    chunk_offset : int64, shape (n_points,)
        Number of elements before each point in its decoded chunk.
    position : int64, shape (n_points,)
        Position of each point in the output.
    cast, out, fill
        As for `Scatter`.
    """

    def __init__(
        self, bounds: Column, chunk_offset: Column, position: Column, cast: ElementCast, *, out: Address, fill: Any
    ) -> None:
        n_words = _N_CAST_WORDS + _N_TARGET_WORDS
        super().__init__(cast, "points", n_words, fill=fill, factor=1)
        longest = int(np.diff(bounds).max(initial=0))
        # As many threads as the longest group has points, rounded up to a power of two; at most all of a block.
        self._log_lanes = min(N_THREADS.bit_length() - 1, max(0, longest - 1).bit_length())
        """Binary logarithm of the number of threads that share a group."""
        self._n_tiles = -(-longest // (_POINTS_PER_THREAD << self._log_lanes))
        bounds_column, offset_column, position_column = (
            self._append(_as_column(column)) for column in (bounds, chunk_offset, position)
        )
        self._write(_OUT_WORD, [out, bounds_column, offset_column, position_column, self._log_lanes], (1, 2, 3))
        # Without offsets, every point of a missing chunk is read from where the fill value is.
        self._write(n_words + _OUT_WORD, [out, bounds_column, 0, position_column, self._log_lanes], (1, 3))

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        rows_per_block = N_THREADS >> self._log_lanes
        return -(-n_rows // rows_per_block) * self._n_tiles, (n_rows, self._n_tiles)


def _as_column(values: Column) -> Column:
    return np.ascontiguousarray(values, np.int64)
