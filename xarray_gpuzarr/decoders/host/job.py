"""One read by the host decoder: what its plans have in common, and the buffers of the threads that work on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import getitem
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.array import Array, HostArray
from xarray_gpuzarr.decoders.host.native_rows import Axes, NativeJob
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.fetch import ByteSource, Pending, Request
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.plan.axis_pieces import AxisPieces, largest_box
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.plan.output_boxes import OutputBoxes, Placement
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, Target
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.metadata import zarr_chunk_decoder

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
        return memoryview(buffer("scratch", self._job.array.chunk_nbytes))

    @cached_property
    def chunk(self) -> Array:
        """`scratch` as the elements of one chunk."""
        return self._job.array.elements(self.scratch)

    @cached_property
    def work(self) -> Array:
        """Memory for the elements of one box in the dtype of the result; empty where they are only copied."""
        job = self._job
        n_elements = 0 if job.array.is_same else job.box_elements
        return buffer("work", n_elements * job.out.itemsize).view(job.out.dtype)

    def staging(self, nbytes: int) -> memoryview:
        """Return memory for encoded bytes, valid until the next call."""
        return memoryview(buffer("staging", nbytes))


def _start(source: ByteSource, requests: Sequence[Request]) -> Pending:
    return source.start(requests)


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Task:
    """Work for one thread: requests, and what to do with their answers."""

    run: Callable[[Workspace, Any], None]
    """Takes what `start` returned."""
    requests: Sequence[Request] = ()
    start: Callable[[ByteSource, Sequence[Request]], Any] = _start
    """Starts the requests."""


@record
class StackBoxes:
    """The boxes of a stack, worked out once for all its plans."""

    rows: list[list[int]]
    """Of all boxes, piece numbers."""
    bounds: list[int]
    """As those of the groups."""


class Job:
    """One read: what all its plans have in common."""

    def __init__(self, array: HostArray, target: Target, out: Array, source: ByteSource) -> None:
        self.array, self.target, self.out, self.source = array, target, out, source
        self.longest_nbytes = _ANY
        """Of parts: so that each thread gets some of a small read."""
        self.most_threads = 1
        """Threads of the compiled loops that one thread of Python may be joined by, itself among them."""
        self.rows_a_part = _ANY
        """Chunks that one thread decodes before it asks for more."""
        self.rows_a_call: int | None = None
        """Chunks of local files that the compiled loops get at once, where one thread of Python reads them all."""
        self.left: list[Task] = []
        """Tasks for what the loops leave of those, most of it because it is not in memory."""

    @cached_property
    def rule(self) -> CoalesceRule:
        """Which neighbours are read together."""
        rule = self.source.rule
        return replace(rule, max_nbytes=min(rule.max_nbytes, self.longest_nbytes))

    @cached_property
    def pieces(self) -> tuple[AxisPieces, ...]:
        """Per axis of the output; none for points."""
        return () if isinstance(self.target, PointTarget) else self.target.pieces

    @property
    def _samples(self) -> tuple[int, ...]:
        """Those of a stack, which it has in front, are as if cut into chunks of one."""
        return (1,) if isinstance(self.target, StackTarget) else ()

    @cached_property
    def has_index(self) -> bool:
        """Whether the wanted elements along any axis are listed; not for points."""
        return any(p.index is not None for p in self.pieces)

    @cached_property
    def in_keys(self) -> list[list[slice | npt.NDArray[np.int64]]]:
        """Per axis and piece, the index into a chunk."""
        return [pieces.in_keys() for pieces in self.pieces]

    @cached_property
    def out_keys(self) -> list[list[slice]]:
        """Per axis and piece, the index into the output."""
        return [pieces.out_keys() for pieces in self.pieces]

    @cached_property
    def box_elements(self) -> int:
        """Elements of the largest box; not for points."""
        return largest_box(self.pieces) if self.has_index else prod(self.array.chunk_shape)

    @cached_property
    def places(self) -> OutputBoxes:
        """Where chunks go in the output, in bytes; not for points."""
        return OutputBoxes(self.pieces, self._samples + self.array.chunk_shape, self.out.strides)

    @cached_property
    def may_be_direct(self) -> bool:
        """Whether any chunk may be decoded straight into the output, by Python."""
        return self.array.may_be_direct and self.out.flags.c_contiguous and self.places.may_be_runs

    @cached_property
    def native(self) -> NativeJob | None:
        """The read as the compiled loops take it; None if there are none, or it is nothing for them."""
        array = self.array
        if array.loops is None or array.program is None:
            return None
        spans = self.target.spans if isinstance(self.target, BoxTarget) else None
        axes = Axes.of_pieces(self.pieces) if spans is None else Axes.of_spans(array.loops, spans)
        samples = self._samples
        shape, strides = samples + array.chunk_shape, (0,) * len(samples) + array.placed_strides
        return NativeJob(array.loops, array.program, axes, (shape, strides), self.out, array.fill)

    @cached_property
    def stack(self) -> StackBoxes:
        """The boxes of a stack; only for one."""
        assert isinstance(self.target, StackTarget)
        groups = self.target.groups
        return StackBoxes(rows=groups.row.tolist(), bounds=groups.bounds.tolist())

    @cached_property
    def alone(self) -> Placement:
        """Where each group of boxes of a stack goes that is a single box; only for one."""
        assert isinstance(self.target, StackTarget)
        groups = self.target.groups
        first = self.places.place(groups.row.take(groups.bounds[:-1], axis=0))
        is_alone = np.diff(groups.bounds) == 1
        return Placement(whole=first.whole & is_alone, contiguous=first.contiguous, out_at=first.out_at)

    def out_key(self, numbers: Sequence[int]) -> tuple[slice | EllipsisType, ...]:
        """Return what picks a box of the output."""
        # The ellipsis keeps an array without axes an array.
        return (*map(getitem, self.out_keys, numbers), ...)

    def fill(self, numbers: Sequence[int]) -> None:
        """Write the fill value to a box of the output."""
        self.out[self.out_key(numbers)] = self.array.fill[0]

    @cached_property
    def _out_run(self) -> Array:
        return self.out.reshape(-1).view(np.uint8)

    def out_bytes(self, first: int, nbytes: int) -> memoryview:
        """Return `nbytes` of the output, from byte `first`; only if `may_be_direct`.

        A view of its own, not a slice of one: without the global lock, CPython loses count of what threads cut from a
        view that they share, and releases it (python/cpython issue 127716).
        """
        return memoryview(self._out_run[first : first + nbytes])

    def decode(self, workspace: Workspace, src: memoryview) -> Array:
        """Decode one chunk to an array of the chunk's shape, valid until the next call on this thread.

        Raises
        ------
        FrameError
            The bytes are not a chunk of this array.
        """
        codec = self.array.codec
        if codec is None:
            return self._decode_by_zarr(src)
        if codec.in_place:
            return self.array.elements(codec.view(src))
        codec.into(src, workspace.scratch)
        return workspace.chunk

    @cached_property
    def _zarrs_own(self) -> Callable[[bytes], Array]:
        return zarr_chunk_decoder(self.array.spec)

    def _decode_by_zarr(self, src: memoryview) -> Array:
        try:
            chunk = self._zarrs_own(bytes(src))
        except Exception as err:  # any codec may be installed; whatever it raises is named
            could_not_run = isinstance(err, ImportError | NotImplementedError | MemoryError) or (
                isinstance(err, OSError) and err.errno is not None
            )
            raise (CodecFailure if could_not_run else FrameError)(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self.array.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self.array.chunk_shape}")
        return chunk
