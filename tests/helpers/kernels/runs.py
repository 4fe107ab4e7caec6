"""Whole arrays, cut into chunks, through the kernels that place elements; and what NumPy makes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.kernels.on_host import HostLaunches
from xarray_gpuzarr.cuda.axes import AxisColumns
from xarray_gpuzarr.cuda.elements import ElementCast
from xarray_gpuzarr.cuda.launch import Points, Scatter
from xarray_gpuzarr.plan.axis_pieces import intersect_axis
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

Array = npt.NDArray[Any]
Chunk = tuple[int, ...]

GUARD = 64
"""Bytes before and behind an output that no kernel may touch."""

_poison = getattr(ctypes.CDLL(None), "__asan_poison_memory_region", None)
if _poison is not None:
    _poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An array and how it is stored."""

    array: Array
    chunk_shape: tuple[int, ...]
    order: tuple[int, ...]
    """Axes in the order in which chunks hold them, as the transpose codec has it."""
    missing: Collection[Chunk] = ()
    """Chunks that are not stored."""
    fill: Any = 0

    def chunk(self, at: Chunk) -> Array:
        """Return a decoded chunk as a flat array; elements outside of the array are noise."""
        whole = np.empty(self.chunk_shape, self.array.dtype)
        whole[...] = 98
        part = self.array[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.chunk_shape, strict=True))]
        whole[tuple(map(slice, part.shape))] = part
        return whole.transpose(self.order).ravel()

    @property
    def in_strides(self) -> list[int]:
        """Elements between neighbours in a chunk, per axis of the array."""
        strides = [0] * len(self.order)
        step = 1
        for axis in reversed(self.order):
            strides[axis] = step
            step *= self.chunk_shape[axis]
        return strides

    def filled(self) -> Array:
        """Return the array as a reader sees it."""
        array = self.array.copy()
        for at in self.missing:
            array[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.chunk_shape, strict=True))] = self.fill
        return array


def scattered(stored: Stored, cast: ElementCast, wanted: Sequence[slice | npt.NDArray[np.int64]]) -> Array:
    """Return ``stored[wanted]``, cast, as `Scatter` writes it."""
    axes = zip(wanted, stored.array.shape, stored.chunk_shape, strict=True)
    pieces = [intersect_axis(*axis) for axis in axes]
    shape = tuple(p.length for p in pieces)
    out = Guarded(shape, cast.result)
    out_strides = [s // cast.result.itemsize for s in np.empty(shape, cast.result).strides]
    columns = [
        AxisColumns(
            in_start=p.in_start,
            count=p.count,
            out_start=p.out_start,
            index=p.index,
            step=p.step,
            in_stride=in_stride,
            out_stride=out_stride,
        )
        for p, in_stride, out_stride in zip(pieces, stored.in_strides, out_strides, strict=True)
    ]
    kernel = Scatter(columns, cast, out=out.address, fill=stored.fill)
    rows = list(product(*(range(len(p.chunk)) for p in pieces)))
    at = {row: tuple(int(p.chunk[i]) for p, i in zip(pieces, row, strict=True)) for row in rows}
    _run(kernel, stored, at)
    return out.array()


def picked(stored: Stored, cast: ElementCast, points: Sequence[npt.NDArray[np.int64]]) -> Array:
    """Return ``stored[points]``, cast, as `Points` writes it."""
    grid = ChunkGrid(
        shape=stored.array.shape, chunk_shape=stored.chunk_shape, chunks_per_shard=(1,) * stored.array.ndim
    )
    groups = group_points(points, grid)
    out = Guarded((len(points[0]),), cast.result)
    within = groups.within @ np.array(stored.in_strides)
    kernel = Points(groups.bounds, within, groups.position, cast, out=out.address, fill=stored.fill)
    _run(kernel, stored, {(i,): tuple(c) for i, c in enumerate(groups.chunk.tolist())})
    return out.array()


def expected(stored: Array, cast: ElementCast) -> Array:
    """Return what NumPy makes of stored elements."""
    with np.errstate(all="ignore"):
        values = stored.astype(cast.result)
        hit = np.zeros(values.shape, bool)
        for mask in cast.mask:
            hit |= values == mask
        if hit.any():
            values = np.where(hit, cast.result.type(np.nan), values)
        if cast.scale is not None:
            values = values * cast.result.type(cast.scale)
        if cast.offset is not None:
            values = values + cast.result.type(cast.offset)
    assert values.dtype == cast.result
    return values


def assert_same_bits(found: Array, wanted: Array) -> None:
    """Compare elements by their bytes, so that NaNs and signed zeros count."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    raw = np.dtype((np.void, found.itemsize))
    differ = np.flatnonzero(np.ravel(found).view(raw) != np.ravel(wanted).view(raw))
    assert not len(differ), f"{len(differ)} differ, first {differ[0]}: {found.flat[differ[0]]} {wanted.flat[differ[0]]}"


class Guarded:
    """An output filled with a pattern, between guards."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._dtype = shape, dtype
        self._nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
        self._memory = aligned(self._nbytes + 2 * GUARD)
        self._memory[:] = 0xA5
        self.address = int(self._memory.ctypes.data) + GUARD

    def array(self) -> Array:
        """Return the output, once it is seen that the guards are untouched."""
        before, behind = self._memory[:GUARD], self._memory[GUARD + self._nbytes :]
        assert (before == 0xA5).all()
        assert (behind == 0xA5).all()
        return self._memory[GUARD : GUARD + self._nbytes].view(self._dtype).reshape(self._shape)


def aligned(nbytes: int, offset: int = 0) -> npt.NDArray[np.uint8]:
    """Return memory whose address is `offset` modulo 256; a sanitizer takes what is around it for unallocated."""
    memory = np.empty(nbytes + 1024, np.uint8)  # NumPy keeps smaller blocks for reuse, poisoned as they are
    first = -memory.ctypes.data % 256 + offset
    for lo, hi in ((0, first), (first + nbytes, len(memory))):
        if _poison is not None:
            _poison(memory.ctypes.data + lo, hi - lo)
    return memory[first : first + nbytes]


def _run(kernel: Scatter | Points, stored: Stored, chunk_of: dict[Chunk, Chunk]) -> None:
    """Place the stored chunks, from addresses that are aligned to no more than is asked for, and fill the others."""
    api, stream = HostLaunches(), None
    table = aligned(kernel.nbytes)
    at = int(table.ctypes.data)
    kernel.pack(table, at)
    missing = np.array([r for r, c in chunk_of.items() if c in stored.missing], np.int64)
    rows = [r for r, c in chunk_of.items() if c not in stored.missing]
    chunks = [stored.chunk(chunk_of[r]).view(np.uint8) for r in rows]
    homes = [aligned(len(c), kernel.unit_nbytes) for c in chunks]
    for home, chunk in zip(homes, chunks, strict=True):
        home[:] = chunk
    src = np.array([h.ctypes.data for h in homes], np.uint64)
    row = np.array(rows, np.int64)
    kernel.launch(api, stream, at=at, src=src.ctypes.data, row=row.ctypes.data, n_rows=len(row))
    kernel.fill(api, stream, at=at, row=missing.ctypes.data, n_rows=len(missing))
