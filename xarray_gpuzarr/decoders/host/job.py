"""One read by the host decoder: what its plans have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.array import Array, HostArray
from xarray_gpuzarr.decoders.host.native_rows import Axes, NativeJob
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.decoders.host.targets import Given, given_by
from xarray_gpuzarr.fetch import ByteSource, Request
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.plan.read_plan import BoxTarget, Target
from xarray_gpuzarr.stored.metadata import zarr_chunk_decoder

CALL_S = 20e-3
"""Decoding that a thread of the loops does in one call: Ctrl-C, and others who want the core, wait for its end."""

_ANY = 2**62


def rows_a_call(rate: float, chunk_nbytes: int) -> int:
    """Return how many chunks the loops get at once, of which one thread decodes `rate` bytes a second."""
    return max(1, int(CALL_S * rate / chunk_nbytes))


@dataclass(slots=True, eq=False)  # frozen ones take three times as long to make
class Task:
    """Work for one thread: requests, and what to do with their answers."""

    run: Callable[[Any], None]
    """Takes what `start` returned."""
    requests: Sequence[Request] = ()
    is_started: bool = True
    """Whether the requests are: local files are read where their bytes are decoded."""

    def start(self, source: ByteSource) -> Any:
        """Start the requests."""
        return source.start(self.requests) if self.is_started else None


class Job:
    """One read: what all its plans have in common."""

    def __init__(self, array: HostArray, target: Target, out: Array, source: ByteSource) -> None:
        self.array, self.target, self.out, self.source = array, target, out, source
        self.longest_nbytes = _ANY
        """Of parts: so that each thread gets some of a small read."""
        self.budget = 1
        """Threads of this process that may decode at once; 1 for a read that more would not end sooner."""
        self.most_threads = 1
        """Threads of the compiled loops that one thread of Python may be joined by, itself among them."""
        self.rows_a_part = _ANY
        """Chunks that one thread decodes before it asks for more."""

    @cached_property
    def rule(self) -> CoalesceRule:
        """Which neighbours are read together."""
        rule = self.source.rule
        return replace(rule, max_nbytes=min(rule.max_nbytes, self.longest_nbytes))

    @cached_property
    def given(self) -> Given:
        """What chunks give to the output."""
        return given_by(self.target)

    @cached_property
    def native(self) -> NativeJob | None:
        """The read as the compiled loops take it; None if there are none, or it is nothing for them."""
        array = self.array
        if array.loops is None or array.program is None:
            return None
        spans = self.target.spans if isinstance(self.target, BoxTarget) else None
        axes = Axes.of_pieces(self.given.axes) if spans is None else Axes.of_spans(array.loops, spans)
        samples = self.given.samples
        shape, strides = samples + array.chunk_shape, (0,) * len(samples) + array.placed_strides
        return NativeJob(array.loops, array.program, axes, (shape, strides), self.out, array.fill)

    def straight_to(self, numbers: list[int]) -> memoryview | None:
        """Return the memory of the output that Python decodes a chunk to; None if it needs scratch.

        A view of its own: without the global lock, CPython loses count of what threads cut from a view that they share,
        and releases it (python/cpython issue 127716).
        """
        if not self.array.may_be_direct or not isinstance(self.target, BoxTarget) or self.given.has_index:
            return None
        (key,) = self.given.keys(numbers)
        box = self.out[key]
        if box.shape != self.array.chunk_shape or not box.flags.c_contiguous:
            return None
        return memoryview(box.reshape(-1).view(np.uint8))

    def decode(self, src: memoryview) -> Array:
        """Decode one chunk to an array of the chunk's shape, valid until the next call on this thread.

        Raises
        ------
        FrameError
            The bytes are not a chunk of this array.
        """
        array = self.array
        if array.codec is None:
            return self._decode_by_zarr(src)
        if array.codec.in_place:
            return array.elements(array.codec.view(src))
        scratch = memoryview(buffer("scratch", array.chunk_nbytes))
        array.codec.into(src, scratch)
        return array.elements(scratch)

    @cached_property
    def _zarrs_own(self) -> Callable[[memoryview], Array]:
        return zarr_chunk_decoder(self.array.spec)

    def _decode_by_zarr(self, src: memoryview) -> Array:
        try:
            chunk = self._zarrs_own(src.toreadonly())
        except Exception as err:  # any codec may be installed; whatever it raises is named
            could_not_run = isinstance(err, ImportError | NotImplementedError | MemoryError) or (
                isinstance(err, OSError) and err.errno is not None
            )
            raise (CodecFailure if could_not_run else FrameError)(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self.array.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self.array.chunk_shape}")
        return chunk
