"""Chunks that Python decodes and places: those that the compiled loops leave, and all where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from operator import getitem
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, Target
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.host_memory import buffer
from xarray_gpuzarr.stored.cf import cast_array
from xarray_gpuzarr.stored.metadata import zarr_chunk_decoder

Key = tuple[Any, ...]
"""Index that selects a part of an array."""


class ChunkPlacer:
    """Decodes chunks of one read and places them, one by one."""

    def __init__(self, array: HostArray, target: Target, out: Array) -> None:
        self._array, self._target, self._out = array, target, out

    def place(self, src: memoryview, numbers: list[int]) -> None:
        """Decode a chunk and place it; raises `FrameError`. `numbers` are its row of the plan."""
        dst = self.straight_to(numbers)
        if dst is not None and self._array.codec is not None:
            self._array.codec.into(src, dst)
            return
        self.place_chunk(self._decode(src), numbers)

    def place_and_keep(self, src: memoryview, numbers: list[int], memory: Array) -> None:
        """Decode a chunk to memory of its length, and place it; raises `FrameError`."""
        chunk = self._array.elements(memory)
        chunk[...] = self._decode(src)
        self.place_chunk(chunk, numbers)

    def place_chunk(self, chunk: Array, numbers: list[int]) -> None:
        """Place a chunk that is decoded."""
        for key, elements in self._keys.parts(chunk, numbers):
            self._out[key] = cast_array(self._array.cast, elements)

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value where a chunk would go."""
        for key in self._keys.of(numbers):
            self._out[key] = self._array.fill[0]

    def straight_to(self, numbers: list[int]) -> memoryview | None:
        """Return the memory of the output that a chunk is decoded to; None if it needs scratch.

        A view of its own: without the global lock, CPython loses count of what threads cut from a view that they share,
        and releases it (python/cpython issue 127716).
        """
        if not self._array.may_be_direct or not isinstance(self._target, BoxTarget) or self._keys.has_index:
            return None
        (key,) = self._keys.of(numbers)
        box = self._out[key]
        if box.shape != self._array.chunk_shape or not box.flags.c_contiguous:
            return None
        return memoryview(box.reshape(-1).view(np.uint8))

    @cached_property
    def _keys(self) -> BoxKeys | PointKeys:
        return PointKeys(self._target) if isinstance(self._target, PointTarget) else BoxKeys(self._target)

    def _decode(self, src: memoryview) -> Array:
        """Decode one chunk to an array of the chunk's shape, valid until the next call on this thread.

        Raises `FrameError` if the bytes are not a chunk of this array.
        """
        array = self._array
        if array.codec is None:
            return self._decode_by_zarr(src)
        if array.codec.is_view:
            return array.elements(array.codec.view(src))
        scratch = memoryview(buffer("scratch", array.chunk_nbytes))
        array.codec.into(src, scratch)
        return array.elements(scratch)

    @cached_property
    def _zarrs_own(self) -> Callable[[memoryview], Array]:
        return zarr_chunk_decoder(self._array.spec, checked_metadata)

    def _decode_by_zarr(self, src: memoryview) -> Array:
        try:
            chunk = self._zarrs_own(src.toreadonly())
        except FrameError:
            raise
        except Exception as err:  # any codec may be installed; whatever it raises is named
            could_not_run = isinstance(err, ImportError | NotImplementedError | MemoryError) or (
                isinstance(err, OSError) and err.errno is not None
            )
            raise (CodecFailure if could_not_run else FrameError)(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self._array.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self._array.chunk_shape}")
        return chunk


class BoxKeys:
    """Boxes of the output, one of each chunk; or, where samples are stacked, any number."""

    def __init__(self, target: BoxTarget | StackTarget) -> None:
        self._pieces, self._stack = target.pieces, target if isinstance(target, StackTarget) else None
        self._in_keys = [pieces.in_keys() for pieces in self._pieces]
        self._out_keys = [pieces.out_keys() for pieces in self._pieces]
        self.has_index = any(p.index is not None for p in self._pieces)
        """Whether the wanted elements along any axis are listed."""

    @cached_property
    def _rows(self) -> tuple[list[list[int]], list[int]]:
        """Boxes of a stack, and the first one of each chunk."""
        assert self._stack is not None
        return self._stack.groups.row.tolist(), self._stack.groups.bounds.tolist()

    def _boxes(self, numbers: list[int]) -> list[list[int]]:
        if self._stack is None:
            return [numbers]
        rows, bounds = self._rows
        return rows[bounds[numbers[0]] : bounds[numbers[0] + 1]]

    def of(self, numbers: list[int]) -> Iterator[Key]:
        """Return what picks each box of the output that a chunk gives."""
        # The ellipsis keeps an array without axes an array.
        return ((*map(getitem, self._out_keys, box), ...) for box in self._boxes(numbers))

    def parts(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Return the boxes of a chunk, each with what picks its place."""
        seen = chunk if self._stack is None else chunk[None]
        for box, out_key in zip(self._boxes(numbers), self.of(numbers), strict=True):
            keys = tuple(map(getitem, self._in_keys, box))
            slices: Key = (*(key if isinstance(key, slice) else slice(None) for key in keys), ...)
            picked = seen[slices]
            listed = [(axis, key) for axis, key in enumerate(keys) if not isinstance(key, slice)]
            # Axis by axis, that which leaves least first: one index of all axes may be longer than the chunk.
            for axis, key in sorted(listed, key=lambda each: len(each[1]) / seen.shape[each[0]]):
                picked = picked.take(key, axis)
            yield out_key, picked


class PointKeys:
    """Scattered points of the output."""

    has_index = True

    def __init__(self, target: PointTarget) -> None:
        self._groups = target.groups

    def _members(self, numbers: list[int]) -> slice:
        bounds = self._groups.bounds
        return slice(int(bounds[numbers[0]]), int(bounds[numbers[0] + 1]))

    def of(self, numbers: list[int]) -> Iterator[Key]:
        """Return what picks the points of the output that a chunk gives, all at once."""
        yield (self._groups.position[self._members(numbers)],)

    def parts(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Return the points of a chunk, with what picks their places."""
        for key in self.of(numbers):
            yield key, chunk[tuple(self._groups.within[self._members(numbers)].T)]
