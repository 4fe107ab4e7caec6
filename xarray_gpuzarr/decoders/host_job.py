"""What the host decoder does with one plan: tasks that read, decode and place its chunks.

A thread reads a part into a buffer of its own that stays in its cache, then decodes each chunk to its place in the
output: directly where the chunk is one run of memory there, else through scratch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.byte_range import WHOLE_OBJECT, ByteRange
from xarray_gpuzarr.cf import Cast
from xarray_gpuzarr.decoders.host_codecs import ChunkCodec
from xarray_gpuzarr.decoders.placing import cast_array, place
from xarray_gpuzarr.errors import CorruptChunkError, StoreReadError
from xarray_gpuzarr.fetch import Allocate, Pending
from xarray_gpuzarr.frames import FrameError
from xarray_gpuzarr.metadata import ArraySpec, zarr_chunk_decoder
from xarray_gpuzarr.plan import BoxTarget, PointTarget, ReadPlan, Target, place_boxes

Array = npt.NDArray[Any]

_KEPT_NBYTES = 8 * 1024 * 1024
"""A thread keeps buffers up to this size; fresh memory costs a page fault per 4 KiB."""
_RAW_RUN_NBYTES = 8 * 1024 * 1024
"""Raw bytes that one task reads straight into the output."""

_kept = threading.local()


def _buffer(name: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return scratch of this thread, contents undefined, valid until `name` is asked for again."""
    kept: npt.NDArray[np.uint8] | None = getattr(_kept, name, None)
    if kept is None or len(kept) < nbytes:
        kept = np.empty(nbytes, np.uint8)
        if nbytes <= _KEPT_NBYTES:
            setattr(_kept, name, kept)
    return kept[:nbytes]


class Lane:
    """The buffers of one thread for one job, made when they are first needed."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def scratch(self) -> memoryview:
        """Memory for the decoded bytes of one chunk."""
        return memoryview(_buffer("scratch", self._job.chunk_nbytes))

    @cached_property
    def chunk(self) -> Array:
        """`scratch` as the elements of one chunk."""
        return self._job.elements(self.scratch)

    @cached_property
    def work(self) -> Array:
        """Memory for the elements of one chunk in the dtype of the result; empty where they are only copied."""
        job = self._job
        only_copied = job.cast.is_copy and job.stored == job.out.dtype
        n_elements = 0 if only_copied else job.chunk_nbytes // job.stored.itemsize
        return _buffer("work", n_elements * job.out.itemsize).view(job.out.dtype)

    def staging(self, nbytes: int) -> memoryview:
        """Return memory for encoded bytes, valid until the next call."""
        return memoryview(_buffer("staging", nbytes))


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one thread: requests, and what to do with their answers."""

    run: Callable[[Lane, list[Pending]], None]
    requests: Sequence[tuple[str, ByteRange]] = ()


class Job:
    """One read: what all its plans have in common."""

    def __init__(self, spec: ArraySpec, target: Target, cast: Cast, out: Array) -> None:
        self.spec = spec
        self.cast = cast
        self.out = out
        self.out_bytes = memoryview(out.reshape(-1).view(np.uint8))
        self.stored = spec.numpy_dtype
        self.chunk_nbytes = spec.chunk_nbytes
        axes = spec.axes
        self._stored_shape = tuple(spec.grid.chunk_shape[axis] for axis in axes)
        self._from_stored = tuple(int(i) for i in np.argsort(axes))
        in_order = axes == tuple(range(len(axes)))
        same_width = self.stored.newbyteorder("=") == out.dtype.newbyteorder("=")
        self.swap = self.stored != out.dtype
        """Whether chunks that are decoded straight into the output have the other byte order."""
        self.direct = cast.is_copy and same_width and in_order
        self.codec = None if spec.codecs.other else ChunkCodec(spec.codecs, self.chunk_nbytes)
        pieces = target.pieces if isinstance(target, BoxTarget) else ()
        self.in_keys = [[p.in_key(i) for i in range(len(p.chunk))] for p in pieces]
        self.out_keys = [[p.out_key(i) for i in range(len(p.chunk))] for p in pieces]
        self.has_index = any(p.index is not None for p in pieces)

    def tasks(self, plan: ReadPlan) -> Iterator[Task]:
        """Turn one plan into tasks."""
        boxes = isinstance(plan.target, BoxTarget)
        return BoxBlock(self, plan).tasks() if boxes else PointBlock(self, plan).tasks()

    def fill_scalar(self) -> np.generic:
        """Return the fill value as it appears in the output."""
        value: np.generic = cast_array(self.cast, np.asarray([self.spec.fill_value]))[0]
        return value

    def elements(self, decoded: memoryview | Array) -> Array:
        """View the decoded bytes of a chunk as an array of the chunk's shape."""
        stored = np.frombuffer(decoded, self.stored).reshape(self._stored_shape)
        chunk: Array = stored.transpose(self._from_stored)
        return chunk

    def decode(self, lane: Lane, src: memoryview) -> Array:
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
        self.codec.into(src, lane.scratch)
        return lane.chunk

    def _decode_by_zarr(self, src: memoryview) -> Array:
        try:
            chunk = zarr_chunk_decoder(self.spec)(bytes(src))
        except Exception as err:  # any codec may be installed; whatever it raises is named
            raise FrameError(f"{type(err).__name__}: {err}") from err
        if chunk.shape != self.spec.grid.chunk_shape:
            raise FrameError(f"shape {chunk.shape}, expected {self.spec.grid.chunk_shape}")
        return chunk

    def corrupt(self, plan: ReadPlan, row: int, found: str) -> CorruptChunkError:
        """Build the error for one chunk that does not decode."""
        chunk = tuple(plan.chunk[row].tolist())
        nbytes = int(plan.nbytes[row])
        extent = "whole" if nbytes == WHOLE_OBJECT else f"{nbytes} bytes at {plan.offset[row]}"
        return CorruptChunkError(
            f"cannot decode chunk {chunk} of array '{self.spec.path}'",
            tried=f"object '{plan.keys[int(plan.object[row])]}', {extent}: {self.spec.codecs}",
            found=found,
            do="the stored chunk is damaged: rewrite it, or leave it out of the selection",
        )


class _Block:
    """How the encoded chunks of one plan are reached; subclasses say where they go."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        self.job = job
        self.plan = plan
        self.offset: list[int] = plan.offset.tolist()
        self.nbytes: list[int] = plan.nbytes.tolist()
        self.rows: list[list[int]] = plan.row.tolist()

    def part_tasks(self) -> Iterator[Task]:
        """Return one task per part."""
        for lo, hi in pairwise(self.plan.parts.tolist()):
            yield Task(self._runner(lo, hi), self.plan.requests(lo, hi))

    def _runner(self, lo: int, hi: int) -> Callable[[Lane, list[Pending]], None]:
        def run_objects(lane: Lane, pending: list[Pending]) -> None:
            for row, finish in zip(range(lo, hi), pending, strict=True):
                data = self.read(finish, lane.staging)
                if data is None:
                    self.fill(self.rows[row])
                else:
                    self.place_row(lane, data, row)

        def run_range(lane: Lane, pending: list[Pending]) -> None:
            data, first = self.read(pending[0], lane.staging), self.offset[lo]
            assert data is not None
            for row in range(lo, hi):
                at = self.offset[row] - first
                self.place_row(lane, data[at : at + self.nbytes[row]], row)

        return run_objects if self.job.spec.index is None else run_range

    def read(self, finish: Pending, allocate: Allocate) -> memoryview | None:
        """Finish a request; None for an unsharded chunk that was never written.

        A shard must exist, since its index was read.
        """
        data = finish(allocate)
        if data is None and self.job.spec.index is not None:
            raise StoreReadError(
                f"shard '{self.plan.keys[0]}' of array '{self.job.spec.path}' has disappeared",
                tried="to read its chunks, after its index had been read",
                found="no such object",
                do="something deletes or rewrites the store: open it again once that has ended",
            )
        return data

    def place_row(self, lane: Lane, src: memoryview, row: int) -> None:
        """Decode one chunk and place it."""
        try:
            self.decode_row(lane, src, row)
        except FrameError as err:
            raise self.job.corrupt(self.plan, row, str(err)) from err

    def decode_row(self, lane: Lane, src: memoryview, row: int) -> None:
        """Decode one chunk and place it; raises `FrameError`."""
        raise NotImplementedError

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value where the chunk of a row would go."""
        raise NotImplementedError


class BoxBlock(_Block):
    """One plan whose chunks fill boxes of the output."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        super().__init__(job, plan)
        assert isinstance(plan.target, BoxTarget)
        placed = place_boxes(plan.target, plan.row, job.spec.grid.chunk_shape)
        direct = placed.whole & placed.contiguous & (job.direct and job.codec is not None)
        self.whole: list[bool] = placed.whole.tolist()
        self.direct: list[bool] = direct.tolist()
        self.out_byte: list[int] = (placed.out_index * job.out.itemsize).tolist()

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        if len(self.plan.missing_row):
            yield Task(lambda _lane, _pending: self._fill_missing())
        codec = self.job.codec
        if codec is not None and codec.raw and all(self.direct):
            yield from self._raw_tasks()
        else:
            yield from self.part_tasks()

    def _raw_tasks(self) -> Iterator[Task]:
        """Read runs of raw chunks that lie side by side, in the object and in the output, with no copy at all."""
        plan, nbytes = self.plan, self.job.chunk_nbytes
        wrong = np.flatnonzero((plan.nbytes != nbytes) & (plan.nbytes != WHOLE_OBJECT))
        if len(wrong):
            raise self._wrong_length(int(wrong[0]), int(plan.nbytes[wrong[0]]))
        out_byte = np.asarray(self.out_byte, np.int64)
        apart = (np.diff(plan.offset) != nbytes) | (np.diff(out_byte) != nbytes)
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(plan.offset)]
        for lo, hi in pairwise(bounds):
            total = (hi - lo) * nbytes
            for done in range(0, total, _RAW_RUN_NBYTES):
                yield self._raw_task(lo, done, min(_RAW_RUN_NBYTES, total - done))

    def _raw_task(self, row: int, done: int, nbytes: int) -> Task:
        first, total = self.out_byte[row] + done, done + nbytes
        dst = self.job.out_bytes[first : first + nbytes]
        # The last piece of an object of unknown length asks for all that is left, to see that it is no more.
        to_end = self.nbytes[row] == WHOLE_OBJECT and total == self.job.chunk_nbytes
        wanted = ByteRange(offset=self.offset[row] + done, nbytes=WHOLE_OBJECT if to_end else nbytes)

        def allocate(found: int) -> memoryview:
            if found != nbytes:
                raise self._wrong_length(row, done + found)
            return dst

        def run(_lane: Lane, pending: list[Pending]) -> None:
            data = self.read(pending[0], allocate)
            if data is None:
                np.frombuffer(dst, self.job.out.dtype)[:] = self.job.fill_scalar()
                return
            if data is not dst:
                allocate(len(data))[:] = data
            self._swap(dst)

        return Task(run, [(self.plan.keys[int(self.plan.object[row])], wanted)])

    def _wrong_length(self, row: int, found: int) -> CorruptChunkError:
        return self.job.corrupt(self.plan, row, f"bytes: {found} bytes, expected {self.job.chunk_nbytes}")

    def _swap(self, dst: memoryview) -> None:
        if self.job.swap:
            np.frombuffer(dst, self.job.out.dtype).byteswap(inplace=True)

    def decode_row(self, lane: Lane, src: memoryview, row: int) -> None:
        """Decode straight into the output where the chunk is one run of memory there, else through scratch."""
        job = self.job
        if self.direct[row] and job.codec is not None:
            first = self.out_byte[row]
            dst = job.out_bytes[first : first + job.chunk_nbytes]
            job.codec.into(src, dst)
            self._swap(dst)
            return
        chunk, numbers = job.decode(lane, src), self.rows[row]
        if not self.whole[row]:
            chunk = self._wanted(chunk, numbers)
        place(job.cast, chunk, job.out[self._out_key(numbers)], lane.work)

    def _wanted(self, chunk: Array, numbers: list[int]) -> Array:
        """Pick the wanted elements of a chunk."""
        keys = [axis[i] for axis, i in zip(self.job.in_keys, numbers, strict=True)]
        if not self.job.has_index:
            return chunk[(*keys, ...)]
        ranges = [np.arange(n)[key] for n, key in zip(chunk.shape, keys, strict=True)]
        picked: Array = chunk[np.ix_(*ranges)]
        return picked

    def _out_key(self, numbers: Sequence[int]) -> tuple[slice | EllipsisType, ...]:
        # The ellipsis keeps an array without axes an array.
        return (*[axis[i] for axis, i in zip(self.job.out_keys, numbers, strict=True)], ...)

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to one box."""
        self.job.out[self._out_key(numbers)] = self.job.fill_scalar()

    def _fill_missing(self) -> None:
        """Write the fill value to missing chunks, in one go if the whole block is missing."""
        missing = self.plan.missing_row.tolist()
        if self.rows:
            for numbers in missing:
                self.fill(numbers)
            return
        corners = zip(self.job.out_keys, missing[0], missing[-1], strict=True)
        box = tuple(slice(axis[low].start, axis[high].stop) for axis, low, high in corners)
        self.job.out[box] = self.job.fill_scalar()


class PointBlock(_Block):
    """One plan whose chunks give scattered points of the output."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        super().__init__(job, plan)
        assert isinstance(plan.target, PointTarget)
        self.groups = plan.target.groups

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        if len(self.plan.missing_row):
            yield Task(lambda _lane, _pending: self._fill_missing())
        yield from self.part_tasks()

    def _fill_missing(self) -> None:
        for numbers in self.plan.missing_row.tolist():
            self.fill(numbers)

    def _members(self, numbers: list[int]) -> slice:
        group = numbers[0]
        return slice(int(self.groups.bounds[group]), int(self.groups.bounds[group + 1]))

    def fill(self, numbers: list[int]) -> None:
        """Write the fill value to the points of one chunk."""
        self.job.out[self.groups.position[self._members(numbers)]] = self.job.fill_scalar()

    def decode_row(self, lane: Lane, src: memoryview, row: int) -> None:
        """Decode one chunk and pick its points."""
        members = self._members(self.rows[row])
        points = self.job.decode(lane, src)[tuple(self.groups.within[members].T)]
        self.job.out[self.groups.position[members]] = cast_array(self.job.cast, points)
