"""Typed launches of the kernels below ``kernels/``, and their source as one text.

Knows neither CuPy nor Zarr: tables are packed with NumPy, launches go through `api.DeviceApi`. A table holds absolute
addresses, so it is packed for the place in device memory that it is then uploaded to. The cost of a launch does not
depend on the number of chunks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BLOCKS, N_THREADS, AxisColumns, plan_tiles, plan_walk
from xarray_gpuzarr.cuda.blosc import blosc_kernels
from xarray_gpuzarr.cuda.cast import ElementCast, Words, cast_kernels, pad_words, usual_casts
from xarray_gpuzarr.cuda.checksum import checksum_kernels
from xarray_gpuzarr.cuda.filters import filter_kernels
from xarray_gpuzarr.process.records import Column

COMPILE_OPTIONS = ("-std=c++17", "--fmad=false")
"""Options of NVRTC beside the architecture. Products and sums are rounded one by one, as NumPy does."""

MOVE_TILE_NBYTES = 1 << 16
"""Bytes of a run that one block moves."""

_CAST_WORDS, _MASK_WORD, _MISSING_WORD, _AXIS_WORDS = 8, 2, 7, 8
"""Number of words in a cast, positions of its two addresses (`ElementCast.words` and `missing`), and number of words in
an axis, as in ``scatter.cu``."""
_NO_COLUMN = -1
_WORD = 2**64 - 1
SPARE_FRAME = np.frombuffer(bytes.fromhex("28b52ffd 20 01 090000 41 000000000000"), np.uint64)
"""A zstd frame of one byte, which takes the place of those that are refused; host memory, 16 bytes with its padding."""
_FRAMES_PER_BLOCK = 32
_MOVE, _ZSTD_BLOCKS = Kernel(file="move.cu", name="move"), Kernel(file="zstd_blocks.cu", name="zstd_blocks")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@functools.cache
def kernel_source(kernel: Kernel) -> str:
    """Return the source of a kernel as one text, with its macros and the files that it includes.

    Compilers report errors with the names and lines of the files.
    """
    defines = "".join(f"#define {name} {value}\n" for name, value in kernel.defines)
    return defines + _inlined(kernel.file)


def _inlined(file: str) -> str:
    text = (resources.files(__package__) / "kernels" / file).read_text()

    def included(match: re.Match[str]) -> str:
        line = text.count("\n", 0, match.end()) + 2
        return f'{_inlined(match[1])}#line {line} "{file}"'

    return f'#line 1 "{file}"\n{_INCLUDE.sub(included, text)}'


def all_kernels() -> list[Kernel]:
    """Return every kernel below ``kernels/`` in all its variants."""
    pairs = [(name, defines) for name in ("scatter", "points") for defines in cast_kernels()]
    placing = [Kernel(file=f"{name}.cu", name=name, defines=defines) for name, defines in pairs]
    return [_MOVE, *checksum_kernels(), *blosc_kernels(), _ZSTD_BLOCKS, *filter_kernels(), *placing]


def usual_kernels() -> list[Kernel]:
    """Return the kernels that most reads launch; the others, mostly casts, are built when they are first needed."""
    placing = [Kernel(file="scatter.cu", name="scatter", defines=defines) for defines in usual_casts()]
    return [_MOVE, *checksum_kernels(), *blosc_kernels(), _ZSTD_BLOCKS, *placing]


class _Placer:
    """Decoded chunks -> output: what boxes and points share.

    The table has fields, then columns: 64-bit words, some of which point to others of them. It starts with the
    parameters for decoded chunks, followed by those for missing ones.
    """

    def __init__(self, cast: ElementCast, name: str, n_words: int, *, fill: Any, factor: int) -> None:
        self.unit_nbytes = cast.stored.itemsize * factor
        """Alignment that the addresses of decoded chunks need, in bytes."""
        self._kernel = Kernel(file=f"{name}.cu", name=name, defines=cast.defines(self.unit_nbytes))
        self._n_words = n_words
        self._fields = [0] * (2 * n_words)
        self._columns: list[Words] = []
        self._pointers: list[int] = []
        self.nbytes = 2 * n_words * 8
        """Length of the table in bytes."""
        fill_at = self._append(pad_words(np.full(factor, fill, cast.stored)))
        mask_at = self._append(cast.mask_words())
        for first, source in ((0, 0), (n_words, fill_at)):
            pointers = (_MASK_WORD, _MISSING_WORD) if source else (_MASK_WORD,)
            self._write(first, [*cast.words(mask_at), source], pointers)

    def _append(self, values: npt.NDArray[Any]) -> int:
        """Add a column of words at the end; return where it begins, in bytes from the start of the table."""
        at = self.nbytes
        self._columns.append(values.view(np.uint64))
        self.nbytes += values.nbytes
        return at

    def _write(self, first: int, fields: Sequence[int], pointers: Sequence[int] = ()) -> None:
        """Set fields; `pointers` tells which of them count from the start of the table."""
        self._fields[first : first + len(fields)] = fields
        self._pointers += [first + i for i in pointers]

    @functools.cached_property
    def _words(self) -> Words:
        """All words, pointers counted from the start of the table; once nothing is added any more."""
        fields = np.array([int(f) & _WORD for f in self._fields], np.uint64)
        return np.concatenate([fields, *self._columns])

    def pack(self, into: Bytes, at: Address, out: Address | None = None) -> None:
        """Write the table into pinned host memory, which begins at a multiple of 8 and has room for `nbytes`.

        `at` is where it will stand in device memory, aligned to 16 bytes, and `out` the first element of another output
        than the first one, at least as aligned.
        """
        words = into[: self.nbytes].view(np.uint64)
        words[:] = self._words
        words[self._pointers] += np.uint64(at)
        if out is not None:
            words[_CAST_WORDS] = words[self._n_words + _CAST_WORDS] = out

    def launch(self, api: DeviceApi, stream: Stream, *, at: Address, src: Address, row: Address, n_rows: int) -> None:
        """Place what is wanted of decoded chunks; `ValueError` if so many do not fit one launch.

        Parameters
        ----------
        at : Address
            The table, as packed for this place.
        src : Address of uint64, shape (n_rows,)
            First element of each decoded chunk, aligned to `unit_nbytes`.
        row : Address of int64, shape (n_rows, ndim) for boxes, (n_rows, 1) for points
            Piece numbers, or group numbers, of the chunks.
        """
        n_blocks, counts = self._grid(n_rows)
        if n_blocks > MAX_BLOCKS:
            raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer chunks at a time are needed")
        if n_blocks:
            api.launch(self._kernel, n_blocks, N_THREADS, (at, src, row, *counts), stream)

    def fill(self, api: DeviceApi, stream: Stream, *, at: Address, row: Address, n_rows: int) -> None:
        """Write the fill value where missing chunks would go; parameters as for `launch`."""
        fill_at = Address(at + self._n_words * 8)
        self.launch(api, stream, at=fill_at, src=Address(0), row=row, n_rows=n_rows)

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of blocks and the last arguments of the kernel."""
        raise NotImplementedError


class Scatter(_Placer):
    """Boxes of decoded chunks, to where they belong in a C-ordered output.

    `axes` stand in the order of the output, whose first element is at `out`. `fill` is what missing chunks hold, as an
    element of ``cast.stored``. More than 8 axes, or a box of 2**31 elements or more, is a `ValueError`.
    """

    def __init__(self, axes: Sequence[AxisColumns], cast: ElementCast, *, out: Address, fill: Any) -> None:
        if len(axes) > MAX_AXES:
            raise ValueError(f"an array of {len(axes)} dimensions: kernels place at most {MAX_AXES}")
        itemsize = cast.stored.itemsize
        walk = plan_walk(axes, itemsize=itemsize, out=out, widen=cast.is_copy)
        n_words = _CAST_WORDS + 8 + _AXIS_WORDS * MAX_AXES
        super().__init__(cast, "scatter", n_words, fill=fill, factor=walk.factor)
        self._tiling = tiling = plan_tiles(walk, itemsize=self.unit_nbytes)
        tile = (tiling.width, tiling.n_lines, tiling.tiles_across)
        for word, pitch in ((0, tiling.pitch), (n_words, 0)):
            self._write(word + _CAST_WORDS, [out, walk.in_first, len(walk.axes), len(axes), *tile, pitch])
        for i, (axis, column) in enumerate(zip(walk.axes, walk.columns, strict=True)):
            word, number = _CAST_WORDS + 8 + i * _AXIS_WORDS, column if len(axis.count) > 1 else _NO_COLUMN
            columns = [self._append(_as_column(c)) for c in (axis.in_start, axis.count, axis.out_start)]
            index = 0 if axis.index is None else self._append(_as_column(axis.index))
            step, pointers = axis.step * axis.in_stride, (0, 1, 2, 3) if index else (0, 1, 2)
            self._write(word, [*columns, index, step, axis.in_stride, axis.out_stride, number], pointers)
            self._write(word + n_words, [*columns, 0, 0, 0, axis.out_stride, number], (0, 1, 2))

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        n_tiles = self._tiling.n_tiles
        return n_rows * n_tiles, (n_tiles,)


class Points(_Placer):
    """Single elements of decoded chunks, to anywhere in a flat output.

    Parameters
    ----------
    bounds : int64, shape (n_groups + 1,)
        Points ``[bounds[i], bounds[i + 1])`` lie in the chunk of group i.
    within : int64, shape (n_points,)
        Elements before each point in its decoded chunk.
    position : int64, shape (n_points,)
        Where each point goes in the output.
    cast, out, fill
        As of `Scatter`.
    """

    def __init__(
        self, bounds: Column, within: Column, position: Column, cast: ElementCast, *, out: Address, fill: Any
    ) -> None:
        n_words = _CAST_WORDS + 8
        super().__init__(cast, "points", n_words, fill=fill, factor=1)
        longest = int(np.diff(bounds).max(initial=0))
        self._log_lanes = min(8, max(0, longest - 1).bit_length())
        self._n_tiles = -(-longest // (16 << self._log_lanes))
        columns = [self._append(_as_column(c)) for c in (bounds, within, position)]
        for word, offsets in ((0, columns[1]), (n_words, 0)):
            pointers = (1, 2, 3) if offsets else (1, 3)
            fields = [out, columns[0], offsets, columns[2], self._log_lanes]
            self._write(word + _CAST_WORDS, fields, pointers)

    def _grid(self, n_rows: int) -> tuple[int, tuple[int, ...]]:
        n_groups = N_THREADS >> self._log_lanes
        return -(-n_rows // n_groups) * self._n_tiles, (n_rows, self._n_tiles)


def move(api: DeviceApi, stream: Stream, *, table: Address, n: int, max_nbytes: int, rows: slice = slice(None)) -> None:
    """Copy runs of bytes within device memory; no run may overlap the destination of another.

    The table, uint64 of shape (3, n), has addresses of the sources and of the destinations, and lengths in bytes. Those
    of `rows` are copied; each takes as many blocks as the longest of them, of `max_nbytes`.
    """
    first, end, _ = rows.indices(n)
    n_tiles = -(-max_nbytes // MOVE_TILE_NBYTES)
    n_blocks = max(0, end - first) * n_tiles
    if n_blocks:
        api.launch(_MOVE, n_blocks, N_THREADS, (table + 8 * first, n, n_tiles), stream)


def rows_by_length(nbytes: Column) -> list[slice]:
    """Cut lengths in ascending order where they have doubled, for one launch of `move` each; none for lengths of 0."""
    n_tiles = -(-nbytes // MOVE_TILE_NBYTES)
    octaves = np.frexp(n_tiles)[1] * (n_tiles > 0)
    borders = [0, *(np.flatnonzero(np.diff(octaves)) + 1).tolist(), len(nbytes)]
    return [slice(lo, hi) for lo, hi in pairwise(borders) if lo < hi and n_tiles[lo]]


def check_zstd(api: DeviceApi, stream: Stream, *, table: Address, n: int, spare: Address, refused: Address) -> None:
    """Take what is not a sound zstd frame of the expected length out of a batch, before nvCOMP is given it.

    nvCOMP trusts what it is given: a frame that was cut, or is followed by another one, may make it read or write out
    of bounds. Headers and blocks lie all over a shard, so threads of the GPU follow them sooner than a host could.

    Parameters
    ----------
    table : Address of uint64, shape (4, n)
        Addresses of the frames, of any alignment; their lengths in bytes; addresses for the results; their lengths. The
        first two rows are changed where a frame is refused.
    spare : Address of uint8, shape (10,)
        `SPARE_FRAME`, to be decoded in place of what is refused.
    refused : Address of uint64, shape (n,)
        Must hold zeros. Written: 1 where a frame is refused.

    Notes
    -----
    A frame passes if its header declares the length of its result, at least one byte, and neither a dictionary nor a
    checksum, which nobody would verify; if its blocks end where it does, none is of the reserved type or longer than
    the header allows; and if their sizes can add up to that length. No byte outside of a frame is read.

    References
    ----------
    RFC 8878 section 3.1.1.
    """
    if n:
        n_blocks = -(-n // _FRAMES_PER_BLOCK)
        api.launch(_ZSTD_BLOCKS, n_blocks, _FRAMES_PER_BLOCK, (table, n, spare, refused), stream)


def _as_column(values: Column) -> Column:
    return np.ascontiguousarray(values, np.int64)
