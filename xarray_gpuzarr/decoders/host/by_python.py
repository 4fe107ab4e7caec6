"""Decoding and placing of chunks in Python: those that the compiled loops leave, and all chunks without the loops.

`ChunkPlacer` decodes one chunk at a time. `BoxKeys` and `PointKeys` compute the NumPy indices that select a chunk's
elements and their places in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from operator import getitem
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.plan.targets import BoxTarget, PointTarget, Target
from xarray_gpuzarr.process.host_memory import buffer
from xarray_gpuzarr.stored.cf import cast_array
from xarray_gpuzarr.stored.zarr_decoder import zarr_chunk_decoder

Key = tuple[Any, ...]
"""NumPy index that selects a part of an array."""


class ChunkPlacer:
    """Decodes the chunks of one read, one by one, and places them in the output.

    `numbers` in its methods, and in those of `BoxKeys` and `PointKeys`, are the chunk's row of
    `ReadPlan.all_piece_numbers`: its piece numbers along the axes, or for stacks and points the number of its group.
    """

    def __init__(self, array: HostArray, target: Target, out: Array) -> None:
        self._array, self._target, self._out = array, target, out

    def place(self, src: memoryview, numbers: list[int]) -> None:
        """Decode a chunk and place it. Raises `FrameError`."""
        dst = self.contiguous_box(numbers)
        if dst is not None and self._array.codec is not None:
            self._array.codec.decode_into(src, dst)
            return
        self.place_chunk(self._decode(src), numbers)

    def place_and_keep(self, src: memoryview, numbers: list[int], memory: Array) -> None:
        """Decode a chunk into `memory`, uint8 of its decoded length, and place it. Raises `FrameError`."""
        chunk = self._array.elements(memory)
        chunk[...] = self._decode(src)
        self.place_chunk(chunk, numbers)

    def place_chunk(self, chunk: Array, numbers: list[int]) -> None:
        """Cast the requested elements of a decoded chunk, and write them to the output."""
        for key, elements in self._keys.boxes(chunk, numbers):
            self._out[key] = cast_array(self._array.cast, elements)

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to the boxes of a missing chunk."""
        for key in self._keys.out_keys(numbers):
            self._out[key] = self._array.fill[0]

    def contiguous_box(self, numbers: list[int]) -> memoryview | None:
        """Return the memory in the output that a chunk can be decoded straight into.

        Returns None unless `HostArray.may_be_direct`, the whole chunk is requested, and its box is contiguous.

        Each call makes a new view, so that threads do not share one: without the GIL, CPython miscounts the slices that
        several threads take from one view, and releases the view too early (python/cpython issue 127716).
        """
        if not self._array.may_be_direct or not isinstance(self._target, BoxTarget):
            return None
        if self._keys.has_index:  # the elements may be requested in another order than they are stored in
            return None
        (key,) = self._keys.out_keys(numbers)
        box = self._out[key]
        if box.shape != self._array.chunk_shape or not box.flags.c_contiguous:
            return None
        return memoryview(box.reshape(-1).view(np.uint8))

    @cached_property
    def _keys(self) -> BoxKeys | PointKeys:
        return PointKeys(self._target) if isinstance(self._target, PointTarget) else BoxKeys(self._target)

    def _decode(self, src: memoryview) -> Array:
        """Return a decoded chunk, of the chunk's shape, which is valid until the next call on this thread.

        Raises `FrameError` if the bytes are not a chunk of this array.
        """
        array = self._array
        if array.codec is None:
            return self._decode_by_zarr(src)
        if array.codec.is_view:
            return array.elements(array.codec.view(src))
        scratch = memoryview(buffer("scratch", array.chunk_nbytes))
        array.codec.decode_into(src, scratch)
        return array.elements(scratch)

    @cached_property
    def _zarr_decoder(self) -> Callable[[memoryview], Array]:
        """Function of zarr-python that decodes a chunk."""
        return zarr_chunk_decoder(self._array.spec, checked_metadata)

    def _decode_by_zarr(self, src: memoryview) -> Array:
        """Return a chunk decoded by zarr-python. Raises `CodecFailure` if the codec cannot run, else `FrameError`."""
        try:
            chunk = self._zarr_decoder(src.toreadonly())
        except FrameError:
            raise
        except Exception as err:  # a registered codec may raise anything
            # An OSError without an error number, such as `gzip.BadGzipFile`, means that the frame is damaged.
            is_system_error = isinstance(err, OSError) and err.errno is not None
            cannot_run = is_system_error or isinstance(err, ImportError | NotImplementedError | MemoryError)
            error_class = CodecFailure if cannot_run else FrameError
            raise error_class(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self._array.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self._array.chunk_shape}")
        return chunk


class BoxKeys:
    """Indices of the boxes that chunks fill: one box for each chunk, or any number of them in a stack of samples."""

    def __init__(self, target: BoxTarget | StackTarget) -> None:
        self._pieces = target.pieces
        self._stack = target if isinstance(target, StackTarget) else None
        self._in_keys = [pieces.in_keys() for pieces in self._pieces]
        self._out_keys = [pieces.out_keys() for pieces in self._pieces]
        self.has_index = any(axis_pieces.index is not None for axis_pieces in self._pieces)
        """Whether the requested elements along any axis are listed in an index array."""

    @cached_property
    def _stack_boxes(self) -> tuple[list[list[int]], list[int]]:
        """Boxes of a stack as rows of piece numbers, and the first box of each chunk."""
        assert self._stack is not None
        return self._stack.groups.boxes.tolist(), self._stack.groups.bounds.tolist()

    def _piece_numbers(self, numbers: list[int]) -> list[list[int]]:
        """Return the piece numbers of each box of a chunk; in a stack, the number of the sample comes first."""
        if self._stack is None:
            return [numbers]
        rows, bounds = self._stack_boxes
        group = numbers[0]
        return rows[bounds[group] : bounds[group + 1]]

    def out_keys(self, numbers: list[int]) -> Iterator[Key]:
        """Return an iterator over the boxes of a chunk: the index of each in the output."""
        # With an ellipsis, the index selects an array even if there are no axes, and not a scalar.
        return ((*map(getitem, self._out_keys, box), ...) for box in self._piece_numbers(numbers))

    def boxes(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Yield the boxes of a decoded chunk: the index of each in the output, and its elements."""
        # The boxes of a stack have a leading axis of samples, of length 1.
        chunk_of_stack = chunk if self._stack is None else chunk[None]
        for box, out_key in zip(self._piece_numbers(numbers), self.out_keys(numbers), strict=True):
            keys = tuple(map(getitem, self._in_keys, box))
            slices: Key = (*(key if isinstance(key, slice) else slice(None) for key in keys), ...)
            elements = chunk_of_stack[slices]
            listed = [(axis, key) for axis, key in enumerate(keys) if not isinstance(key, slice)]
            # Index arrays are applied axis by axis, the one that leaves the smallest share first. A single index of all
            # axes would have an entry for each element, and could take more memory than the chunk.
            listed.sort(key=lambda item: len(item[1]) / chunk_of_stack.shape[item[0]])
            for axis, key in listed:
                elements = elements.take(key, axis)
            yield out_key, elements


class PointKeys:
    """Indices of the scattered points that chunks fill."""

    has_index = True
    """Whether the requested elements are listed in index arrays, as `BoxKeys.has_index`. Points always are."""

    def __init__(self, target: PointTarget) -> None:
        self._groups = target.groups

    def _points(self, numbers: list[int]) -> slice:
        """Return the points of a chunk, as a slice of all points."""
        bounds = self._groups.bounds
        group = numbers[0]
        return slice(int(bounds[group]), int(bounds[group + 1]))

    def out_keys(self, numbers: list[int]) -> Iterator[Key]:
        """Yield one index, of all points of a chunk in the output."""
        yield (self._groups.position[self._points(numbers)],)

    def boxes(self, chunk: Array, numbers: list[int]) -> Iterator[tuple[Key, Array]]:
        """Yield the index of a decoded chunk's points in the output, and their elements."""
        for key in self.out_keys(numbers):
            yield key, chunk[tuple(self._groups.chunk_offset[self._points(numbers)].T)]
