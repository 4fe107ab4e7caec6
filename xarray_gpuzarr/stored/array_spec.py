"""`ArraySpec`: everything that planning and decoding need to know about a stored array.

`metadata.parse_metadata` makes it from Zarr metadata. An array that cannot be planned is `Unplanned`.
"""

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

_MAX_CHUNK_NBYTES = 2**56
"""Largest length in bytes of a decoded chunk or a shard index. No machine has as much memory. Even with the bytes that
codecs add, lengths fit int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEncoding:
    """Encoding of a shard's coordinate as the store key of its object."""

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
        """Return the coordinate of the shard with a store key. Raises `ValueError` if it is not a key of this array."""
        names = key.removeprefix(self.prefix).split(self.separator)
        if self.style == "default":
            names = names[1:]  # without the leading "c"
        # Only the first `ndim` names are coordinates: without axes, the key of style "v2" is "0". A key of another
        # array that has more names is refused by the comparison below.
        coord = tuple(map(int, names[:ndim]))
        if self.key(coord) != key:
            raise ValueError(key)
        return coord


@dataclass(frozen=True, kw_only=True)  # without slots, so that properties can be cached
class ArraySpec:
    """A stored array that can be planned.

    Raises
    ------
    TooLargeError
        If a chunk or a shard index is longer than `_MAX_CHUNK_NBYTES`.
    """

    path: str
    """Path of the array inside the store, with a leading slash."""
    dtype: str
    """Dtype of the elements of a decoded chunk as NumPy writes it, byte order included, such as ``">f4"``."""
    grid: ChunkGrid
    codecs: PipelineSpec
    """Codecs of one inner chunk."""
    index: ShardIndexSpec | None
    """Encoding of the shard indexes; None if chunks are unsharded."""
    fill: bytes
    """Fill value: the bytes of one element of `dtype`."""
    keys: KeyEncoding
    """Encoding of the store keys."""
    metadata: str
    """The array's metadata as JSON text, for zarr-python's own codecs."""

    def __post_init__(self) -> None:
        if self.chunk_nbytes > _MAX_CHUNK_NBYTES:
            raise TooLargeError(f"a chunk of {self.chunk_nbytes} bytes")
        if self.index is not None and self.index.nbytes > _MAX_CHUNK_NBYTES:
            raise TooLargeError(f"a shard index of {self.index.nbytes} bytes")

    def __hash__(self) -> int:
        return hash((self.path, self.metadata))  # a hash of all fields would cost each read 1 us

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """`dtype` as a `numpy.dtype`."""
        return np.dtype(self.dtype)

    @property
    def fill_value(self) -> np.generic:
        """Fill value as an element of the stored dtype."""
        value: np.generic = np.frombuffer(self.fill, self.dtype)[0]
        return value

    @cached_property
    def chunk_nbytes(self) -> int:
        """Length in bytes of one decoded inner chunk."""
        return math.prod(self.grid.chunk_shape) * self.numpy_dtype.itemsize

    @cached_property
    def expected_nbytes(self) -> int:
        """Length in bytes that a stored inner chunk usually does not exceed.

        Incompressible data grow by at most 1/128 and 4 KiB with the usual writers.
        """
        nbytes = self.chunk_nbytes
        for stage in reversed(self.codecs.stages):
            # Compressors have no fixed length (None): they are assumed not to compress.
            nbytes = encoded_nbytes(stage, nbytes) or nbytes
        return nbytes + nbytes // 128 + 4096

    @cached_property
    def max_encoded_nbytes(self) -> int:
        """Largest encoded length in bytes that an inner chunk can have; a longer chunk is damaged.

        See `PipelineSpec.max_encoded_nbytes`. Reads compare the longest chunk of a plan, `ReadPlan.longest_nbytes`,
        with it.
        """
        return self.codecs.max_encoded_nbytes(self.chunk_nbytes)

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes of the array, from the slowest to the fastest in a chunk's decompressed bytes.

        They are (0, 1, ...), that is C order, unless there are transposes. Decoding undoes these later, when it places
        the elements.
        """
        order = tuple(range(self.grid.ndim))
        for codec in self.codecs.array_to_array:
            if isinstance(codec, TransposeSpec):
                order = tuple(order[axis] for axis in codec.order)
        return order

    @property
    def chunk_strides(self) -> tuple[int, ...]:
        """Strides of the elements in a chunk's decompressed bytes, along the axes of the array, in bytes."""
        axes, shape = self.axes, self.grid.chunk_shape
        strides = []
        for axis in range(len(axes)):
            faster_axes = axes[axes.index(axis) + 1 :]
            strides.append(self.numpy_dtype.itemsize * math.prod(shape[faster] for faster in faster_axes))
        return tuple(strides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """An array that zarr-python reads, because its chunks cannot be planned."""

    reason: str
    """Why they cannot be planned, as part of a sentence."""
