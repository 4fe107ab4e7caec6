"""`ArraySpec`: all that planning and decoding need to know about one stored array. `metadata` makes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from xarray_gpuzarr.stored.chunk_grid import ChunkGrid, TooLargeError
from xarray_gpuzarr.stored.codecs import PipelineSpec, TransposeSpec, encoded_nbytes
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

NUMERIC_KINDS = frozenset("biufc")
"""`numpy.dtype.kind` of the dtypes that this package decodes itself."""

_MOST_NBYTES = 2**56
"""Most bytes in a decoded chunk or a shard index: more than any machine addresses; int64 holds what codecs add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEncoding:
    """How the coordinate of a shard becomes the name of its object."""

    prefix: str
    """Path of the array inside the store, with a trailing slash unless it is the root."""
    style: Literal["default", "v2"]
    separator: str

    def key(self, coord: tuple[int, ...]) -> str:
        """Return the store key of the shard at `coord`."""
        names = [str(i) for i in coord]
        if self.style == "default":
            return self.prefix + self.separator.join(["c", *names])
        return self.prefix + (self.separator.join(names) or "0")

    def coord(self, key: str, ndim: int) -> tuple[int, ...]:
        """Return the coordinate of the shard whose store key is `key`; `ValueError` if it is none of this array."""
        names = key.removeprefix(self.prefix).split(self.separator)
        coord = tuple(map(int, names[self.style == "default" :][:ndim]))
        if self.key(coord) != key:
            raise ValueError(key)
        return coord


@dataclass(frozen=True, kw_only=True)  # without slots, what follows from the fields is worked out once
class ArraySpec:
    """One stored array, ready to be planned."""

    path: str
    """Path of the array inside the store, with a leading slash."""
    dtype: str
    """Dtype of the elements of a decoded chunk as NumPy writes it, byte order included, such as ``">f4"``."""
    grid: ChunkGrid
    codecs: PipelineSpec
    """How one inner chunk is encoded."""
    index: ShardIndexSpec | None
    """How shards are indexed; None if every chunk is an object of its own."""
    fill: bytes
    """One element of `dtype` that stands for chunks that were never written."""
    keys: KeyEncoding
    metadata: str
    """The array's metadata as JSON text, for zarr-python's own codecs."""

    def __post_init__(self) -> None:
        for what, nbytes in (("a chunk", self.chunk_nbytes), ("a shard index", self.index.nbytes if self.index else 0)):
            if nbytes > _MOST_NBYTES:
                raise TooLargeError(f"{what} of {nbytes} bytes")

    def __hash__(self) -> int:
        return hash((self.path, self.metadata))  # of all fields, it takes 1 us for each read

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Stored dtype, byte order included."""
        return np.dtype(self.dtype)

    @property
    def fill_value(self) -> np.generic:
        """Value of chunks that were never written, in the stored dtype."""
        value: np.generic = np.frombuffer(self.fill, self.dtype)[0]
        return value

    @cached_property
    def chunk_nbytes(self) -> int:
        """Bytes of one decoded inner chunk."""
        return math.prod(self.grid.chunk_shape) * self.numpy_dtype.itemsize

    @cached_property
    def expected_nbytes(self) -> int:
        """Bytes that have room for a stored inner chunk: usual writers lengthen it by no more than 1/128 and 4 KiB."""
        nbytes = self.chunk_nbytes
        for stage in reversed(self.codecs.stages):  # as filters have encoded it, and no compressor yet
            nbytes = encoded_nbytes(stage, nbytes) or nbytes
        return nbytes + nbytes // 128 + 4096

    @cached_property
    def most_nbytes(self) -> int:
        """Bytes of one stored inner chunk, at most: a longer one is damaged; see `PipelineSpec.most_nbytes`."""
        return self.codecs.most_nbytes(self.chunk_nbytes)

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis of the array that each axis of a decoded chunk holds (all transposes together)."""
        order = tuple(range(self.grid.ndim))
        for codec in self.codecs.array_to_array:
            if isinstance(codec, TransposeSpec):
                order = tuple(order[axis] for axis in codec.order)
        return order

    @property
    def chunk_strides(self) -> tuple[int, ...]:
        """Strides of the elements of a decoded chunk along the axes of the array, in bytes."""
        axes, shape = self.axes, self.grid.chunk_shape
        after = [axes[axes.index(axis) + 1 :] for axis in range(len(axes))]
        return tuple(self.numpy_dtype.itemsize * math.prod(shape[a] for a in axes) for axes in after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """Why an array is read by zarr-python as a whole."""

    reason: str
