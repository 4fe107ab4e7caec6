"""Selections, chunk grids and their intersection, in integers only.

An outer (orthogonal) selection is cut axis by axis: `AxisPieces` says for every chunk along one axis which of its
elements are wanted and where they go. A chunk of the array is one piece per axis, so everything about it follows from
`ndim` small numbers. A pointwise (vectorized) selection is sorted by chunk instead: `PointGroups`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import SelectionError

Column = npt.NDArray[np.int64]


MAX_LENGTH = 2**62
"""Most elements along an axis, of an array, a shard or a chunk: sums of two are counted in int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGrid:
    """A regular grid of shards, each a regular grid of chunks.

    An array that is not sharded has shards of one chunk.

    Raises
    ------
    ValueError
        Shapes of other numbers of axes; an axis that is longer than `MAX_LENGTH`, or has elements and no chunks.
    """

    shape: tuple[int, ...]
    """Shape of the array, in elements."""
    chunk_shape: tuple[int, ...]
    """Shape of one (inner) chunk, in elements."""
    chunks_per_shard: tuple[int, ...]
    """Chunks of one shard along each axis."""

    def __post_init__(self) -> None:
        axes = zip(self.shape, self.chunk_shape, self.chunks_per_shard, strict=True)
        for axis, (length, chunk_length, n_chunks) in enumerate(axes):
            longest = max(length, chunk_length * n_chunks)
            if min(length, chunk_length, n_chunks - 1) < 0 or longest > MAX_LENGTH or (length and not chunk_length):
                found = f"{length} elements in shards of {n_chunks} chunks of {chunk_length}"
                raise ValueError(f"axis {axis}: {found}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of one shard, in elements."""
        return tuple(map(operator.mul, self.chunk_shape, self.chunks_per_shard))

    @property
    def n_shards(self) -> tuple[int, ...]:
        """Number of shards along each axis."""
        return tuple(-(-n // m) if m else 0 for n, m in zip(self.shape, self.shard_shape, strict=True))

    @property
    def n_chunks(self) -> tuple[int, ...]:
        """Number of chunks along each axis that hold elements of the array."""
        return tuple(-(-n // m) if m else 0 for n, m in zip(self.shape, self.chunk_shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPieces:
    """The chunks along one axis that a selection touches; every column has shape (n_pieces,)."""

    chunk: Column
    """Coordinate of the chunk along the axis."""
    out_start: Column
    """First position in the selection that the chunk gives."""
    count: Column
    """Positions in the selection that the chunk gives."""
    in_start: Column
    """First wanted element, counted from the start of the chunk."""
    step: int
    """Distance between wanted elements; 0 where `index` lists them."""
    index: Column | None
    """Wanted element of every position in the selection, counted from the start of its chunk."""
    length: int
    """Positions in the selection."""

    def in_keys(self) -> list[slice | Column]:
        """Return the index into its chunk that picks the wanted elements, for each piece."""
        if self.index is not None:
            return [self.index[positions] for positions in self.out_keys()]
        end = self.in_start + (self.count - 1) * self.step + 1
        return list(map(slice, self.in_start.tolist(), end.tolist(), repeat(self.step)))

    def out_keys(self) -> list[slice]:
        """Return the slice of the selection that each piece fills."""
        return list(map(slice, self.out_start.tolist(), (self.out_start + self.count).tolist()))


def largest_box(pieces: Sequence[AxisPieces]) -> int:
    """Return how many elements a chunk gives at most: more than it has where elements are wanted repeatedly."""
    return math.prod(int(axis_pieces.count.max(initial=0)) for axis_pieces in pieces)


def intersect_axis(wanted: slice | Column, length: int, chunk_length: int) -> AxisPieces:
    """Cut one axis of a selection at the chunk borders.

    Parameters
    ----------
    wanted : slice with a positive step, or int64 of shape (n,) that never decreases
        Elements wanted along the axis, all inside ``[0, length)``.
    length : int
        Elements of the array along the axis.
    chunk_length : int
        Elements of a chunk along the axis.
    """
    if isinstance(wanted, slice):
        start, stop, step = wanted.indices(length)
        intersect = _kept_slice if stop - start <= _MAX_KEPT * chunk_length else _intersect_slice
        return intersect(start, stop, step, chunk_length)
    chunk_of = wanted // chunk_length
    first = np.flatnonzero(np.r_[True, chunk_of[1:] != chunk_of[:-1]]) if len(wanted) else wanted
    chunk = chunk_of[first]
    index = wanted - chunk_of * chunk_length
    return AxisPieces(
        chunk=chunk,
        out_start=first,
        count=np.diff(np.r_[first, len(wanted)]),
        in_start=index[first],
        step=0,
        index=index,
        length=len(wanted),
    )


def _intersect_slice(start: int, stop: int, step: int, chunk_length: int) -> AxisPieces:
    n = len(range(start, stop, step))
    last = start + (n - 1) * step
    n_pieces = min(n, last // chunk_length - start // chunk_length + 1) if n else 0
    if n_pieces >= _MOST_PIECES:
        raise MemoryError(f"{n} elements in {n_pieces} chunks along an axis")
    chunk = np.arange(n_pieces, dtype=np.int64)
    if step > chunk_length:  # then each element has a chunk of its own, and others between them hold none
        chunk = (start + chunk * step) // chunk_length
    else:
        chunk += start // chunk_length
    border = chunk * chunk_length
    # Positions in the selection: the first at or after the border of a chunk, and at or after that of the next one.
    first = np.maximum(-((start - border) // step), 0)
    after = np.minimum(-((start - border - chunk_length) // step), n)
    return AxisPieces(
        chunk=chunk,
        out_start=first,
        count=after - first,
        in_start=start + first * step - border,
        step=step,
        index=None,
        length=n,
    )


_kept_slice = lru_cache(maxsize=512)(_intersect_slice)
"""Reads of one chunk after another ask for the same few slices of each axis again and again."""
_MAX_KEPT = 256
"""Chunks of a slice that is kept, at most."""
_MOST_PIECES = 2**48
"""NumPy has other words than a lack of memory for columns beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSelection:
    """An orthogonal selection, brought to increasing order along every axis."""

    wanted: tuple[slice | Column, ...]
    """Per axis a slice with a positive step or an index array that never decreases."""
    undo: tuple[tuple[int, slice | Column | int], ...]
    """(axis, index) pairs that turn the increasing result into the one asked for, in order of application."""

    def restore(self, array: Any) -> Any:
        """Apply `undo` to an array of any library that indexes like NumPy."""
        for axis, index in self.undo:
            array = array[(slice(None),) * axis + (index, ...)]
        return array


def outer_selection(selection: Any, shape: Sequence[int]) -> OuterSelection:
    """Normalise what NumPy calls basic indexing, and index arrays applied axis by axis.

    Parameters
    ----------
    selection : int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them
        Missing trailing axes are taken whole.
    shape : sequence of int
        Shape of the array that is indexed.

    Raises
    ------
    SelectionError
        Too many indices, an index outside the array, or an index of an unknown kind.
    """
    wanted: list[slice | Column] = []
    undo: list[tuple[int, slice | Column | int]] = []
    for axis, (key, length) in enumerate(zip(_expand(selection, len(shape)), shape, strict=True)):
        ordered: slice | Column
        back: slice | Column | int | None
        if isinstance(key, slice):
            ordered, back = _ordered_slice(key, length)
        elif (array := _as_array(key)).ndim == 0:
            at = int(_checked_index(array, length, axis))
            ordered, back = slice(at, at + 1), 0
        else:
            ordered, back = _ordered_array(array, length, axis)
        wanted.append(ordered)
        if back is not None:
            undo.append((axis, back))
    # Integers drop their axis, so they come last and from the back.
    drops = sorted((u for u in undo if isinstance(u[1], int)), reverse=True, key=lambda u: u[0])
    keeps = [u for u in undo if not isinstance(u[1], int)]
    return OuterSelection(wanted=tuple(wanted), undo=(*keeps, *drops))


def _expand(selection: Any, ndim: int) -> list[Any]:
    keys = list(selection) if isinstance(selection, tuple) else [selection]
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
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


def _as_array(key: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(key)
    except ValueError as err:  # a ragged list
        raise _bad_index(key, str(err)) from err


def _ordered_array(array: npt.NDArray[Any], length: int, axis: int) -> tuple[Column, Column | None]:
    if array.ndim != 1:
        raise _bad_index(array, f"an index array of {array.ndim} dimensions on axis {axis}")
    if array.dtype == bool:
        if len(array) != length:
            raise _bad_index(array, f"{len(array)} booleans for axis {axis} of length {length}")
        return np.flatnonzero(array).astype(np.int64), None
    index = _checked_index(array, length, axis)
    if len(index) < 2 or bool((np.diff(index) >= 0).all()):
        return index, None
    ordered, back = np.unique(index, return_inverse=True)
    return ordered, back


def _checked_index(array: npt.NDArray[Any], length: int, axis: int) -> Column:
    """Return indices counted from the start of the axis, all inside it."""
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise _bad_index(array, f"an index of dtype {array.dtype} on axis {axis}")
    outside = (array < -length) | (array >= length)
    if outside.any():
        raise _bad_index(array, f"index {array[outside].flat[0]} on axis {axis} of length {length}")
    index = array.astype(np.int64)
    return np.where(index < 0, index + length, index)


def _bad_index(key: Any, found: str) -> SelectionError:
    return SelectionError(
        "the selection does not fit the array",
        tried=repr(key)[:120],
        found=found,
        do="use integers, slices, or 1-D arrays of integers or booleans that lie inside the array",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointGroups:
    """Points of an array, sorted by the chunk that holds them."""

    chunk: Column
    """shape (n_groups, ndim): chunk coordinate of each group, in C order."""
    bounds: Column
    """shape (n_groups + 1,): points ``[bounds[i], bounds[i + 1])`` lie in chunk ``chunk[i]``."""
    within: Column
    """shape (n_points, ndim): each point, counted from the start of its chunk."""
    position: Column
    """shape (n_points,): where each point goes in the flat result."""


def group_points(points: Sequence[Any], grid: ChunkGrid) -> PointGroups:
    """Sort points by chunk.

    Parameters
    ----------
    points : one integer array of shape (n_points,) per axis
        Coordinates; negative ones count from the end.
    grid : ChunkGrid

    Raises
    ------
    SelectionError
        A coordinate lies outside the array.
    """
    at = np.stack(
        [_checked_index(np.asarray(p), n, axis) for axis, (p, n) in enumerate(zip(points, grid.shape, strict=True))],
        axis=1,
    )
    chunk_shape = np.asarray(grid.chunk_shape, np.int64)
    chunk = at // chunk_shape
    flat = _numbered(chunk, grid.n_chunks)
    position = np.argsort(flat, kind="stable").astype(np.int64)
    ordered = flat[position]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(at) else position
    return PointGroups(
        chunk=chunk[position[first]],
        bounds=np.r_[first, len(at)].astype(np.int64),
        within=(at - chunk * chunk_shape)[position],
        position=position,
    )


def _numbered(chunk: Column, n_chunks: tuple[int, ...]) -> Column:
    """Return a number for each row of coordinates, in C order of the chunks."""
    if not len(chunk):
        return chunk[:, 0]
    if math.prod(n_chunks) >= 2**63:  # more chunks than there are numbers, of which few are asked for
        return np.unique(chunk, axis=0, return_inverse=True)[1].reshape(-1)
    numbers: Column = np.ravel_multi_index(tuple(chunk.T), n_chunks)
    return numbers


def blocks(
    pieces: Sequence[AxisPieces], chunks_per_shard: Sequence[int], *, sharded: bool, max_chunks: int
) -> Iterator[tuple[range, ...]]:
    """Cut the touched chunks into boxes that are planned at once.

    A box is one range of pieces per axis. Sharded arrays get one box per touched shard; others get boxes of at most
    `max_chunks` chunks, because each chunk is an object of its own.
    """
    per_axis: list[list[range]] = []
    room = max_chunks
    for axis_pieces, per_shard in reversed(list(zip(pieces, chunks_per_shard, strict=True))):
        n = len(axis_pieces.chunk)
        if sharded:
            shard = axis_pieces.chunk // per_shard
            cuts = [0, *(np.flatnonzero(np.diff(shard)) + 1).tolist(), n] if n else [0]
        else:
            length = max(1, min(n, room))
            room = max(1, room // length)
            cuts = [*range(0, n, length), n] if n else [0]
        per_axis.append([range(lo, hi) for lo, hi in pairwise(cuts)])
    yield from product(*reversed(per_axis))
