"""Whole arrays, cut into chunks, through the kernels that place elements, and what NumPy makes of them; and moves."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.data.ways_cases import numpy_cast
from helpers.kernels import memory as memories
from helpers.kernels.memory import columns
from xarray_gpuzarr.cuda.axes import AxisColumns
from xarray_gpuzarr.cuda.cast import ElementCast
from xarray_gpuzarr.cuda.checksum import Kind, checksum, final_checksums
from xarray_gpuzarr.cuda.filters import Filter, FilterChunks
from xarray_gpuzarr.cuda.launch import SPARE_FRAME, check_zstd, move
from xarray_gpuzarr.cuda.placers import Points, Scatter
from xarray_gpuzarr.plan.axis_pieces import intersect_axis
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

Array = npt.NDArray[Any]
Chunk = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An array and how it is stored."""

    array: Array
    chunk_shape: tuple[int, ...]
    order: tuple[int, ...]
    """Axes in the order in which chunks hold them, as the transpose codec has it."""
    missing: Collection[Chunk] = ()
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
    memory = memories.make()
    out = memory.reserve(nbytes := math.prod(shape) * cast.result.itemsize)
    out_strides = [s // cast.result.itemsize for s in np.empty(shape, cast.result).strides]
    of_axes = [
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
    kernel = Scatter(of_axes, cast, out=out, fill=stored.fill)
    rows = list(product(*(range(len(p.chunk)) for p in pieces)))
    at = {row: tuple(int(p.chunk[i]) for p, i in zip(pieces, row, strict=True)) for row in rows}
    _run(memory, kernel, stored, at)
    return memory.content(out, nbytes).view(cast.result).reshape(shape)


def picked(stored: Stored, cast: ElementCast, points: Sequence[npt.NDArray[np.int64]]) -> Array:
    """Return ``stored[points]``, cast, as `Points` writes it."""
    grid = ChunkGrid(
        shape=stored.array.shape, chunk_shape=stored.chunk_shape, chunks_per_shard=(1,) * stored.array.ndim
    )
    groups = group_points(points, grid)
    memory = memories.make()
    out = memory.reserve(nbytes := len(points[0]) * cast.result.itemsize)
    within = groups.chunk_offset @ np.array(stored.in_strides)
    kernel = Points(groups.bounds, within, groups.position, cast, out=out, fill=stored.fill)
    _run(memory, kernel, stored, {(i,): tuple(c) for i, c in enumerate(groups.chunk.tolist())})
    return memory.content(out, nbytes).view(cast.result)


def expected(stored: Array, cast: ElementCast) -> Array:
    steps = Cast(dtype=cast.work.str, mask=cast.mask, scale=cast.scale, offset=cast.offset)
    with np.errstate(all="ignore"):
        return numpy_cast(steps, np.asarray(stored)).astype(cast.result)


def _run(memory: Any, kernel: Scatter | Points, stored: Stored, chunk_of: dict[Chunk, Chunk]) -> None:
    """Place the stored chunks, from addresses that are aligned to no more than is asked for, and fill the others."""
    at = memory.place(table := np.zeros(kernel.nbytes, np.uint8))
    kernel.pack(table, at)
    memory.fill(at, table)
    missing = np.array([r for r, c in chunk_of.items() if c in stored.missing], np.int64)
    rows = [r for r, c in chunk_of.items() if c not in stored.missing]
    homes = [memory.place(stored.chunk(chunk_of[r]), kernel.unit_nbytes) for r in rows]
    src, row = memory.place(np.array(homes, np.uint64)), memory.place(np.array(rows, np.int64))
    absent = memory.place(missing)

    def launch(api: Any, stream: Any) -> None:
        kernel.launch(api, stream, table=at, source=src, row=row, n_rows=len(rows))
        kernel.fill(api, stream, table=at, row=absent, n_rows=len(missing))

    memory.run(launch)


def run_moves(runs: Sequence[tuple[int, int, int]]) -> None:
    """Move runs of so many bytes, given as offsets of source and target and length; compare."""
    memory, contents = memories.make(), [np.random.default_rng(n).bytes(n) for *_, n in runs]
    sources = [memory.place(content, offset) for content, (offset, *_) in zip(contents, runs, strict=True)]
    targets = [memory.reserve(n, offset) for _, offset, n in runs]
    nbytes = [n for *_, n in runs]
    table = memory.place(columns(list(zip(sources, targets, nbytes, strict=True)), 3))
    longest = max(nbytes, default=0)
    memory.run(lambda api, stream: move(api, stream, table=table, n=len(runs), max_nbytes=longest))
    assert [memory.content(t, n).tobytes() for t, n in zip(targets, nbytes, strict=True)] == contents


def checksums(kind: Kind, *messages: bytes | tuple[bytes, int]) -> list[int]:
    """Return what one launch finds; a message may have an offset, modulo 256, at which it begins."""
    memory, n = memories.make(), len(messages)
    pairs: Sequence[tuple[bytes, int]] = [m if isinstance(m, tuple) else (m, 0) for m in messages]
    table = memory.place(columns([(memory.place(*pair), len(pair[0])) for pair in pairs], 2))
    result, longest = memory.reserve(8 * n, byte=0), max((len(content) for content, _ in pairs), default=0)
    memory.run(lambda api, stream: checksum(api, stream, kind, table=table, n=n, max_nbytes=longest, result=result))
    found = final_checksums(kind, memory.content(result, 8 * n).view(np.uint64))
    assert found.dtype == np.uint32
    return found.tolist()


TARGET = 12345
"""Stands for an address that the kernel has no business with."""


def run_check(frames: Sequence[bytes], expected: int) -> list[bool]:
    memory, n = memories.make(), len(frames)
    table, refused = memory.reserve(32 * n), memory.reserve(8 * n, byte=0)
    spare = memory.place(SPARE_FRAME)
    before = columns([(memory.place(frame, 1), len(frame), TARGET, expected) for frame in frames], 4)
    memory.fill(table, before)
    memory.run(lambda api, stream: check_zstd(api, stream, table=table, n=n, spare=spare, refused=refused))
    told = memory.content(refused, 8 * n).view(np.uint64)
    before[:2, told == 1] = [[spare], [10]]  # those have given their place to the spare one
    np.testing.assert_array_equal(memory.content(table, 32 * n).view(np.uint64).reshape(4, n), before)
    assert set(told.tolist()) <= {0, 1}
    return (told == 0).tolist()


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """What a kernel makes of one chunk."""

    flagged: bool
    content: bytes


def run_filter(
    codec: Filter, chunks: Sequence[bytes], n_elements: int, itemsize: int, offsets: Sequence[int] = (0,)
) -> list[Filtered]:
    """Decode chunks, all in one launch, from and to addresses that are `offsets` in turn, modulo 64."""
    memory, n, nbytes = memories.make(), len(chunks), n_elements * itemsize
    targets = [memory.reserve(nbytes, offsets[i % len(offsets)]) for i in range(n)]
    sources = [memory.place(chunk, offsets[i % len(offsets)]) for i, chunk in enumerate(chunks)]
    table = memory.place(columns(list(zip(sources, targets, strict=True)), 2))
    flags, words = memory.reserve(8 * n, byte=0), memory.place(codec.words)
    places = FilterChunks(table=table, n=n, n_elements=n_elements, flags=flags, words=words)
    memory.run(lambda api, stream: codec.launch(api, stream, places))
    flagged = memory.content(flags, 8 * n).view(np.uint64).tolist()
    contents = [memory.content(target, nbytes).tobytes() for target in targets]
    return [Filtered(flagged=bool(f), content=c) for f, c in zip(flagged, contents, strict=True)]
