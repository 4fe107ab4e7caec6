"""One read by the host decoder: what its plans have in common, and the buffers of the threads that work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import getitem
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.codecs import chunk_codec
from xarray_gpuzarr.decoders.host.native_program import NativeProgram, native_program
from xarray_gpuzarr.decoders.host.native_rows import NativeJob
from xarray_gpuzarr.decoders.host.placing import cast_array
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.fetch import ByteSource, Pending, Request
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.native import address_of, loops
from xarray_gpuzarr.plan.axis_pieces import largest_box
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.read_plan import PointTarget, Target
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.metadata import zarr_chunk_decoder

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

_STREAMED_NBYTES = 16 * 1024 * 1024
"""Chunks from this size on are decoded as they are read, where the codec can: no buffer holds them encoded."""

CALL_S = 20e-3
"""Decoding that a thread of the loops does in one call: Ctrl-C, and others who want the core, wait for its end."""


_ANY = 2**62


def rows_a_call(rate: float, chunk_nbytes: int) -> int:
    """Return how many chunks the loops get at once, of which one thread decodes `rate` bytes a second."""
    return max(1, int(CALL_S * rate / chunk_nbytes))


class Workspace:
    """The buffers of one thread for one job, made when they are first needed."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def scratch(self) -> memoryview:
        """Memory for the decoded bytes of one chunk."""
        return memoryview(self._room)[: self._job.chunk_nbytes]

    @cached_property
    def _room(self) -> Array:
        job = self._job
        nbytes = job.chunk_nbytes if job.program is None else max(job.chunk_nbytes, job.program.scratch_nbytes)
        return buffer("scratch", nbytes * job.most_threads)

    @cached_property
    def scratch_address(self) -> int:
        """Where the scratch of all threads of the compiled loops lies."""
        return address_of(memoryview(self._room))

    @cached_property
    def chunk(self) -> Array:
        """`scratch` as the elements of one chunk."""
        return self._job.elements(self.scratch)

    @cached_property
    def work(self) -> Array:
        """Memory for the elements of one box in the dtype of the result; empty where they are only copied."""
        job = self._job
        only_copied = job.cast.is_copy and job.stored == job.out.dtype
        n_elements = 0 if only_copied else job.box_elements
        return buffer("work", n_elements * job.out.itemsize).view(job.out.dtype)

    def encoded(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return memory for encoded bytes, shape (nbytes,), valid until the next call."""
        return buffer("staging", nbytes)

    def staging(self, nbytes: int) -> memoryview:
        """Return `encoded` as a view."""
        return memoryview(self.encoded(nbytes))


def each_alone(source: ByteSource, requests: Sequence[Request]) -> list[Pending]:
    """Start requests one by one."""
    return [source.start(*request) for request in requests]


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one thread: requests, and what to do with their answers."""

    run: Callable[[Workspace, list[Any]], None]
    """Takes what `start` returned for each request, or for all of them."""
    requests: Sequence[Request] = ()
    start: Callable[[ByteSource, Sequence[Request]], list[Any]] = each_alone
    """Starts the requests."""


@record
class Located:
    """Where boxes go; one row per box."""

    whole: Flags
    """The box is its chunk."""
    direct: Flags
    """The chunk may be decoded straight into the output."""
    out_byte: Column
    """First byte in the output."""


@record
class StackBoxes:
    """The boxes of a stack, worked out once for all its plans."""

    rows: list[list[int]]
    """Of all boxes, piece numbers."""
    bounds: list[int]
    """As those of the groups."""


class Job:
    """One read: what all its plans have in common."""

    def __init__(self, spec: ArraySpec, target: Target, cast: Cast, *, out: Array, rule: CoalesceRule) -> None:
        self.spec = spec
        self.rule = rule
        self._loops = loops()  # a setting that is unusable fails every read
        self.cast = cast
        self.out = out
        self.stored = spec.numpy_dtype
        self.chunk_nbytes = spec.chunk_nbytes
        axes = spec.axes
        in_order = axes == tuple(range(len(axes)))
        self.direct = cast.is_copy and self.stored == out.dtype and in_order and out.flags.c_contiguous
        self.codec = None if spec.codecs.other else chunk_codec(spec.codecs, self.chunk_nbytes)
        self.streams = self.codec is not None and self.codec.streams and self.chunk_nbytes >= _STREAMED_NBYTES
        pieces = () if isinstance(target, PointTarget) else target.pieces
        # Samples, which a stack has in front, are as if cut into chunks of one.
        self._box_shape = (1,) * (len(pieces) - len(axes)) + spec.grid.chunk_shape
        self.has_index = any(p.index is not None for p in pieces)
        self._target, self._pieces = target, pieces
        self.most_threads = 1
        """Threads of the compiled loops that one thread of Python may be joined by, itself among them."""
        self.is_local = False
        """Whether the objects are local files."""
        self.rows_a_part = _ANY
        """Chunks that one thread decodes before it asks for more."""
        self.rows_a_call: int | None = None
        """Chunks of local files that the compiled loops get at once, where one thread of Python reads them all."""
        self.left: list[Task] = []
        """Tasks for what the loops leave of those, most of it because it is not in memory."""

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """Of the elements of a decoded chunk, in bytes."""
        return self.spec.chunk_strides

    @cached_property
    def in_keys(self) -> list[list[slice | npt.NDArray[np.int64]]]:
        """Per axis and piece, the index into a chunk."""
        return [pieces.in_keys() for pieces in self._pieces]

    @cached_property
    def out_keys(self) -> list[list[slice]]:
        """Per axis and piece, the index into the output."""
        return [pieces.out_keys() for pieces in self._pieces]

    @cached_property
    def box_elements(self) -> int:
        """Elements of the largest box; not for points."""
        return largest_box(self._pieces) if self.has_index else prod(self.spec.grid.chunk_shape)

    @cached_property
    def places(self) -> OutputBoxes:
        """Where chunks go in the output, in bytes; not for points."""
        return OutputBoxes(self._pieces, self._box_shape, self.out.strides)

    @cached_property
    def may_be_direct(self) -> bool:
        """Whether any chunk may be decoded straight into the output."""
        return self.direct and self.codec is not None and self.places.may_be_runs

    def located(self, rows: Column) -> Located:
        """Say where boxes go, given the numbers of their pieces, shape (n, k); not for points."""
        placed = self.places.place(rows)
        direct = placed.whole & placed.contiguous & (self.direct and self.codec is not None)
        return Located(whole=placed.whole, direct=direct, out_byte=placed.out_at)

    @property
    def is_copied(self) -> bool:
        """Whether chunks are neither compressed nor changed."""
        in_place = self.codec is not None and self.codec.in_place
        return in_place and (self.program is None or self.program.is_copied)

    @cached_property
    def native(self) -> NativeJob | None:
        """The read as the compiled loops take it; None if there are none, or it is nothing for them."""
        program = self.program
        if self._loops is None or program is None:
            return None
        return NativeJob(self._loops, program, self._pieces, self.placed_strides, self.out)

    @property
    def placed_strides(self) -> tuple[int, ...]:
        """Of the elements of a chunk along the axes of the output, in bytes, as the loops place them."""
        assert self.program is not None
        samples = (0,) * max(0, len(self._pieces) - len(self._strides))
        return samples + self.program.strides(self.spec)

    @cached_property
    def program(self) -> NativeProgram | None:
        """What the compiled loops do to each chunk; None where there are none, or they do not know how."""
        if self._loops is None:
            return None
        return native_program(self.spec.codecs, self.chunk_nbytes, self.stored, self.cast)

    @cached_property
    def stack(self) -> StackBoxes:
        """The boxes of a stack; only for one."""
        assert isinstance(self._target, StackTarget)
        groups = self._target.groups
        return StackBoxes(rows=groups.row.tolist(), bounds=groups.bounds.tolist())

    @cached_property
    def alone(self) -> Located:
        """Where each group of boxes of a stack goes that is a single box; only for one."""
        assert isinstance(self._target, StackTarget)
        groups = self._target.groups
        first = self.located(groups.row.take(groups.bounds[:-1], axis=0))
        is_alone = np.diff(groups.bounds) == 1
        return Located(whole=first.whole & is_alone, direct=first.direct & is_alone, out_byte=first.out_byte)

    def out_key(self, numbers: Sequence[int]) -> tuple[slice | EllipsisType, ...]:
        """Return what picks a box of the output."""
        # The ellipsis keeps an array without axes an array.
        return (*map(getitem, self.out_keys, numbers), ...)

    def fill(self, numbers: Sequence[int]) -> None:
        """Write the fill value to a box of the output."""
        self.out[self.out_key(numbers)] = self.fill_scalar

    @cached_property
    def _out_run(self) -> Array:
        return self.out.reshape(-1).view(np.uint8)

    def out_bytes(self, first: int, nbytes: int) -> memoryview:
        """Return `nbytes` of the output, from byte `first`; only if `direct`.

        A view of its own, not a slice of one: without the global lock, CPython loses count of what threads cut from a
        view that they share, and releases it (python/cpython issue 127716).
        """
        return memoryview(self._out_run[first : first + nbytes])

    @cached_property
    def fill_scalar(self) -> np.generic:
        """The fill value as it appears in the output."""
        value: np.generic = cast_array(self.cast, np.asarray([self.spec.fill_value]))[0]
        return value

    def elements(self, decoded: memoryview | Array) -> Array:
        """View the decoded bytes of a chunk as an array of the chunk's shape."""
        return np.ndarray(self.spec.grid.chunk_shape, self.stored, decoded, strides=self._strides)

    def decode(self, workspace: Workspace, src: memoryview) -> Array:
        """Decode one chunk to an array of the chunk's shape, valid until the next call on this thread.

        Raises
        ------
        FrameError
            The bytes are not a chunk of this array.
        """
        if self.codec is None:
            return self._decode_by_zarr(src)
        if self.codec.in_place:
            return self.elements(self.codec.view(src))
        self.codec.into(src, workspace.scratch)
        return workspace.chunk

    @cached_property
    def _zarrs_own(self) -> Callable[[bytes], Array]:
        return zarr_chunk_decoder(self.spec)

    def _decode_by_zarr(self, src: memoryview) -> Array:
        try:
            chunk = self._zarrs_own(bytes(src))
        except Exception as err:  # any codec may be installed; whatever it raises is named
            could_not_run = isinstance(err, ImportError | NotImplementedError | MemoryError) or (
                isinstance(err, OSError) and err.errno is not None
            )
            raise (CodecFailure if could_not_run else FrameError)(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self.spec.grid.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self.spec.grid.chunk_shape}")
        return chunk
