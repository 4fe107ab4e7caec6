"""The host decoder: the same plans, carried out with NumPy on threads, straight into one array.

Parts are taken from one queue by the calling thread and by idle helpers. A thread reads a part into a buffer of its own
that stays in its cache, then decodes each chunk to its place in the output: directly where the chunk is one run of
memory there, else through scratch, neighbours along the last axis together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.byte_range import WHOLE_OBJECT, ByteRange
from xarray_gpuzarr.cf import Cast
from xarray_gpuzarr.decoders import threads
from xarray_gpuzarr.decoders.base import Device, Route
from xarray_gpuzarr.decoders.host_codecs import ChunkCodec
from xarray_gpuzarr.decoders.placing import cast_array, place
from xarray_gpuzarr.errors import CorruptChunkError, StoreReadError
from xarray_gpuzarr.fetch import Allocate, ByteSource, Pending
from xarray_gpuzarr.frames import FrameError
from xarray_gpuzarr.metadata import ArraySpec, zarr_chunk_decoder
from xarray_gpuzarr.plan import BoxTarget, Placement, PointTarget, ReadPlan, Target, place_boxes

Array = npt.NDArray[Any]

_KEPT_NBYTES = 8 * 1024 * 1024
"""A thread keeps buffers up to this size; fresh memory costs a page fault per 4 KiB."""
_GROUP_NBYTES = 1024 * 1024
_GROUP_CHUNKS = 8
_RAW_RUN_NBYTES = 8 * 1024 * 1024
_SERIAL_NBYTES = 256 * 1024
"""Results below this are not worth waking another thread for."""


class Workspace(threading.local):
    """Buffers of one thread, grown on demand and reused by every read."""

    def __init__(self) -> None:
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}

    def buffer(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return scratch of `nbytes` bytes, contents undefined, valid until `name` is asked for again."""
        kept = self._buffers.get(name)
        if kept is not None and len(kept) >= nbytes:
            return kept[:nbytes]
        fresh = np.empty(nbytes, np.uint8)
        if nbytes <= _KEPT_NBYTES:
            self._buffers[name] = fresh
        return fresh

    def staging(self, nbytes: int) -> memoryview:
        """Return memory for encoded bytes."""
        return memoryview(self.buffer("staging", nbytes))


workspace = Workspace()


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work for one thread: an optional request, and what to do once it is answered."""

    run: Callable[[Pending | None], None]
    request: tuple[str, ByteRange] | None = None


class TaskQueue:
    """Tasks in order, with the requests of the next few already under way."""

    def __init__(self, tasks: Iterator[Task], source: ByteSource) -> None:
        self._tasks = tasks
        self._source = source
        self._lock = threading.Lock()
        self._ready: deque[tuple[Task, Pending | None]] = deque()
        self._stopped = False

    def drain(self, go_on: Callable[[], bool]) -> None:
        """Run tasks until none is left, another thread failed, or `go_on` says no."""
        try:
            while go_on() and (item := self._next()) is not None:
                task, pending = item
                task.run(pending)
        except BaseException:
            self._stopped = True
            raise

    def _next(self) -> tuple[Task, Pending | None] | None:
        with self._lock:
            if self._stopped:
                return None
            while len(self._ready) <= self._source.lookahead:
                task = next(self._tasks, None)
                if task is None:
                    break
                pending = self._source.start(*task.request) if task.request else None
                self._ready.append((task, pending))
            return self._ready.popleft() if self._ready else None


class HostDecoder:
    """Decodes on the host; results are NumPy arrays."""

    @property
    def device(self) -> Device:
        """``"host"``."""
        return "host"

    def route(self, spec: ArraySpec) -> Route:
        """Say whether chunks are decoded in bulk or one by one by zarr-python."""
        other = spec.codecs.other
        if other is None:
            return Route(where="host", why="")
        return Route(where="host, by zarr-python", why=f"codec {other} is decoded chunk by chunk")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an uninitialised NumPy array."""
        return np.empty(shape, dtype)

    def decode(
        self,
        plans: Iterator[ReadPlan],
        source: ByteSource,
        *,
        spec: ArraySpec,
        target: Target,
        cast: Cast,
    ) -> Array:
        """Carry out plans; see `Decoder.decode`."""
        out = np.empty(target.shape, cast.dtype)
        job = Job(spec, cast, out)
        queue = TaskQueue((task for plan in plans for task in job.tasks(plan)), source)
        most = 1 if out.nbytes < _SERIAL_NBYTES else threads.thread_budget()
        threads.crew.run(queue.drain, most)
        return out

    def upload(self, block: Array, cast: Cast) -> Array:
        """Cast a block; it is on the host already."""
        return cast_array(cast, block)


class Job:
    """One read: what all its plans have in common."""

    def __init__(self, spec: ArraySpec, cast: Cast, out: Array) -> None:
        self.spec = spec
        self.cast = cast
        self.out = out
        self.out_bytes = memoryview(out.reshape(-1).view(np.uint8))
        self.stored = spec.numpy_dtype
        self.chunk_nbytes = spec.chunk_nbytes
        axes = spec.axes
        self.stored_shape = tuple(spec.grid.chunk_shape[axis] for axis in axes)
        self.from_stored = tuple(int(i) for i in np.argsort(axes))
        same_width = self.stored.newbyteorder("=") == out.dtype.newbyteorder("=")
        self.swap = same_width and self.stored != out.dtype
        self.direct = cast.is_copy and same_width and self.from_stored == tuple(range(out.ndim))
        self.by_zarr = spec.codecs.other is not None
        self.codec = None if self.by_zarr else ChunkCodec(spec.codecs, self.chunk_nbytes)
        chunk_elements = self.chunk_nbytes // self.stored.itemsize
        self.group = max(1, min(_GROUP_CHUNKS, _GROUP_NBYTES // max(1, self.chunk_nbytes)))
        self.work_nbytes = chunk_elements * out.itemsize

    def tasks(self, plan: ReadPlan) -> Iterator[Task]:
        """Turn one plan into tasks."""
        block = BoxBlock(self, plan) if isinstance(plan.target, BoxTarget) else PointBlock(self, plan)
        return block.tasks()

    def fill_scalar(self) -> np.generic:
        """Return the fill value as it appears in the output."""
        value: np.generic = cast_array(self.cast, np.asarray([self.spec.fill_value]))[0]
        return value

    def elements(self, decoded: memoryview | Array, n_chunks: int = 1) -> Array:
        """View decoded bytes of chunks as elements, shape (n_chunks, *chunk_shape)."""
        flat = np.frombuffer(decoded, self.stored)
        stored = flat.reshape(n_chunks, *self.stored_shape)
        return stored.transpose(0, *(axis + 1 for axis in self.from_stored))

    def corrupt(self, plan: ReadPlan, row: int, found: str) -> CorruptChunkError:
        """Build the error for one chunk that does not decode."""
        chunk = tuple(plan.chunk[row].tolist())
        key = plan.keys[int(plan.object[row])]
        size = int(plan.nbytes[row])
        extent = "the whole object" if size == WHOLE_OBJECT else f"{size} bytes"
        return CorruptChunkError(
            f"cannot decode chunk {chunk} of array '{self.spec.path}'",
            tried=f"shard '{key}', {extent} at {plan.offset[row]}: {self.spec.codecs}",
            found=found,
            do="the stored chunk is damaged: rewrite it, or leave it out of the selection",
        )


class _Block:
    """Shared by both targets: how the encoded chunks of one plan are reached."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        self.job = job
        self.plan = plan
        self.offset: list[int] = plan.offset.tolist()
        self.nbytes: list[int] = plan.nbytes.tolist()
        self.parts: list[int] = plan.parts.tolist()

    def part_tasks(self) -> Iterator[Task]:
        """Return one task per part."""
        for part in range(self.plan.n_parts):
            yield Task(self._runner(part), self.plan.part_range(part))

    def _runner(self, part: int) -> Callable[[Pending | None], None]:
        def run(pending: Pending | None) -> None:
            lo, hi = self.parts[part], self.parts[part + 1]
            data = self.read(pending, lo, workspace.staging)
            if data is None:
                self.fill_rows(lo, hi)
            else:
                self.decode_rows(data, lo, hi)

        return run

    def read(self, pending: Pending | None, lo: int, allocate: Allocate) -> memoryview | None:
        """Finish a request; None if the object is an unsharded chunk that was never written."""
        data = pending(allocate) if pending is not None else None
        if data is None and self.job.spec.index is not None:
            key = self.plan.keys[int(self.plan.object[lo])]
            raise StoreReadError(
                f"shard '{key}' of array '{self.job.spec.path}' has disappeared",
                tried="its chunks, after its index had been read",
                found="no such object",
                do="something deletes or rewrites the store: open it again once that has ended",
            )
        return data

    def encoded(self, data: memoryview, first: int, row: int) -> memoryview:
        """Return the encoded bytes of one chunk of a part that begins at byte `first`."""
        if self.nbytes[row] == WHOLE_OBJECT:
            return data
        at = self.offset[row] - first
        return data[at : at + self.nbytes[row]]

    def decoded(self, src: memoryview, row: int) -> Array:
        """Decode one chunk to an array of the chunk's shape, valid until the next call on this thread."""
        job = self.job
        try:
            if job.codec is None:
                return self._decoded_by_zarr(src, row)
            if job.codec.in_place:
                return job.elements(job.codec.view(src))[0]
            scratch = workspace.buffer("scratch", job.chunk_nbytes)
            job.codec.into(src, memoryview(scratch))
            return job.elements(scratch)[0]
        except FrameError as err:
            raise job.corrupt(self.plan, row, str(err)) from err

    def _decoded_by_zarr(self, src: memoryview, row: int) -> Array:
        job = self.job
        try:
            chunk = zarr_chunk_decoder(job.spec)(bytes(src))
        except Exception as err:  # any codec may be installed; whatever it raises is named
            raise job.corrupt(self.plan, row, f"{type(err).__name__}: {err}") from err
        if chunk.shape != job.spec.grid.chunk_shape:
            found = f"a chunk of shape {chunk.shape}, expected {job.spec.grid.chunk_shape}"
            raise job.corrupt(self.plan, row, found)
        return chunk

    def work(self, n_chunks: int = 1) -> Array:
        """Return scratch for the cast of `n_chunks` chunks."""
        job = self.job
        return workspace.buffer("work", n_chunks * job.work_nbytes).view(job.out.dtype)

    def fill_rows(self, lo: int, hi: int) -> None:
        """Write the fill value to the places of stored rows whose object does not exist."""
        raise NotImplementedError

    def decode_rows(self, data: memoryview, lo: int, hi: int) -> None:
        """Decode and place rows ``[lo, hi)``, whose bytes are `data`."""
        raise NotImplementedError


class BoxBlock(_Block):
    """One plan whose chunks fill boxes of the output."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        super().__init__(job, plan)
        assert isinstance(plan.target, BoxTarget)
        self.target = plan.target
        placed = place_boxes(plan.target, plan.row, job.spec.grid.chunk_shape)
        self.direct = placed.whole & placed.contiguous & job.direct
        self.whole: list[bool] = placed.whole.tolist()
        self.is_direct: list[bool] = self.direct.tolist()
        self.all_direct = bool(self.direct.all())
        self.out_byte: list[int] = (placed.out_index * job.out.itemsize).tolist()
        self.placed: Placement = placed

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        if len(self.plan.missing_row):
            yield Task(lambda _: self._fill_missing())
        codec = self.job.codec
        sharded = self.job.spec.index is not None
        if codec is not None and codec.raw and self.all_direct and sharded:
            yield from self._raw_tasks()
        else:
            yield from self.part_tasks()

    def _raw_tasks(self) -> Iterator[Task]:
        """Read runs of raw chunks that lie side by side, in the shard and in the output, with no copy at all."""
        plan, size = self.plan, self.job.chunk_nbytes
        wrong = np.flatnonzero(plan.nbytes != size)
        if len(wrong):
            row = int(wrong[0])
            raise self.job.corrupt(plan, row, f"bytes: {plan.nbytes[row]} bytes, expected {size}")
        out_byte = np.asarray(self.out_byte, np.int64)
        apart = (np.diff(plan.offset) != size) | (np.diff(out_byte) != size)
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(plan.offset)]
        for lo, hi in zip(bounds[:-1], bounds[1:], strict=True):
            for done in range(0, (hi - lo) * size, _RAW_RUN_NBYTES):
                yield self._raw_task(lo, done, min(_RAW_RUN_NBYTES, (hi - lo) * size - done))

    def _raw_task(self, row: int, done: int, nbytes: int) -> Task:
        job, first = self.job, self.out_byte[row] + done
        dst = job.out_bytes[first : first + nbytes]

        def run(pending: Pending | None) -> None:
            data = self.read(pending, row, lambda _: dst)
            if data is not None and data is not dst:
                dst[:] = data
            if job.swap:
                np.frombuffer(dst, job.out.dtype).byteswap(inplace=True)

        wanted = ByteRange(offset=self.offset[row] + done, nbytes=nbytes)
        return Task(run, (self.plan.keys[0], wanted))

    def decode_rows(self, data: memoryview, lo: int, hi: int) -> None:
        """Decode rows straight into the output where possible, the others through scratch."""
        first = self.offset[lo] if self.nbytes[lo] != WHOLE_OBJECT else 0
        if self.all_direct and self.job.codec is not None:
            for row in range(lo, hi):
                self._decode_direct(self.encoded(data, first, row), row)
            return
        for rows in self._neighbours(lo, hi):
            if len(rows) > 1:
                self._decode_group(data, first, rows)
            elif self.is_direct[rows[0]] and self.job.codec is not None:
                self._decode_direct(self.encoded(data, first, rows[0]), rows[0])
            else:
                self._decode_box(self.encoded(data, first, rows[0]), rows[0])

    def _decode_direct(self, src: memoryview, row: int) -> None:
        job, first = self.job, self.out_byte[row]
        dst = job.out_bytes[first : first + job.chunk_nbytes]
        assert job.codec is not None
        try:
            job.codec.into(src, dst)
        except FrameError as err:
            raise job.corrupt(self.plan, row, str(err)) from err
        if job.swap:
            np.frombuffer(dst, job.out.dtype).byteswap(inplace=True)

    def _decode_box(self, src: memoryview, row: int) -> None:
        chunk = self.decoded(src, row)
        pieces, numbers = self.target.pieces, self.plan.row[row].tolist()
        keys = [p.in_key(n) for p, n in zip(pieces, numbers, strict=True)]
        if any(isinstance(k, np.ndarray) for k in keys):
            ranges = zip(keys, chunk.shape, strict=True)
            chunk = chunk[np.ix_(*(np.arange(n)[k] for k, n in ranges))]
        else:
            chunk = chunk[tuple(keys)]
        place(self.job.cast, chunk, self.job.out[self._out_key(row, row)], self.work())

    def _neighbours(self, lo: int, hi: int) -> list[list[int]]:
        """Group rows whose boxes lie side by side along the last axis; others stand alone."""
        job, row = self.job, self.plan.row
        if job.group == 1 or job.codec is None or not job.out.ndim or hi - lo == 1:
            return [[r] for r in range(lo, hi)]
        order = lo + np.lexsort(row[lo:hi].T[::-1])
        ordered, whole = row[order], self.placed.whole[order]
        step = np.diff(ordered, axis=0)
        beside = (step[:, :-1] == 0).all(axis=1) & (step[:, -1] == 1) & whole[1:] & whole[:-1]
        groups: list[list[int]] = []
        for r, joined in zip(order.tolist(), [False, *beside.tolist()], strict=True):
            if joined and len(groups[-1]) < job.group:
                groups[-1].append(r)
            else:
                groups.append([r])
        return groups

    def _decode_group(self, data: memoryview, first: int, rows: list[int]) -> None:
        """Decode whole neighbours side by side and place them with one assignment."""
        job, size, n = self.job, self.job.chunk_nbytes, len(rows)
        assert job.codec is not None
        scratch = workspace.buffer("scratch", n * size)
        view = memoryview(scratch)
        for i, row in enumerate(rows):
            try:
                job.codec.into(self.encoded(data, first, row), view[i * size : (i + 1) * size])
            except FrameError as err:
                raise job.corrupt(self.plan, row, str(err)) from err
        chunks = np.moveaxis(job.elements(scratch, n), 0, -2)
        box = job.out[self._out_key(rows[0], rows[-1])]
        place(job.cast, chunks, box.reshape(chunks.shape, copy=False), self.work(n))

    def _out_key(self, first: int, last: int) -> tuple[slice, ...]:
        """Return the box of the output from one row's to another's, neighbours along the last axis."""
        start = self.placed.out_start[first].tolist()
        stop = (self.placed.out_start[last] + self.placed.count[last]).tolist()
        return tuple(map(slice, start, stop))

    def fill_rows(self, lo: int, hi: int) -> None:
        """Write the fill value to stored rows whose object does not exist."""
        for row in range(lo, hi):
            self.job.out[self._out_key(row, row)] = self.job.fill_scalar()

    def _fill_missing(self) -> None:
        """Write the fill value to missing chunks, in one go if the whole block is missing."""
        missing, value = self.plan.missing_row, self.job.fill_scalar()
        if not len(self.plan.row):
            missing_boxes = [(missing[0], missing[-1])]
        else:
            missing_boxes = [(m, m) for m in missing]
        for low, high in missing_boxes:
            key = tuple(
                slice(p.out_key(int(a)).start, p.out_key(int(b)).stop)
                for p, a, b in zip(self.target.pieces, low, high, strict=True)
            )
            self.job.out[key] = value


class PointBlock(_Block):
    """One plan whose chunks give scattered points of the output."""

    def __init__(self, job: Job, plan: ReadPlan) -> None:
        super().__init__(job, plan)
        assert isinstance(plan.target, PointTarget)
        self.groups = plan.target.groups

    def tasks(self) -> Iterator[Task]:
        """Return the tasks that fill and decode this block."""
        for group in self.plan.missing_row[:, 0].tolist():
            yield Task(lambda _, group=group: self._fill(group))  # type: ignore[misc]
        yield from self.part_tasks()

    def _members(self, group: int) -> slice:
        return slice(int(self.groups.bounds[group]), int(self.groups.bounds[group + 1]))

    def _fill(self, group: int) -> None:
        self.job.out[self.groups.position[self._members(group)]] = self.job.fill_scalar()

    def fill_rows(self, lo: int, hi: int) -> None:
        """Write the fill value to stored rows whose object does not exist."""
        for row in range(lo, hi):
            self._fill(int(self.plan.row[row, 0]))

    def decode_rows(self, data: memoryview, lo: int, hi: int) -> None:
        """Decode each chunk and pick its points."""
        first = self.offset[lo] if self.nbytes[lo] != WHOLE_OBJECT else 0
        for row in range(lo, hi):
            chunk = self.decoded(self.encoded(data, first, row), row)
            members = self._members(int(self.plan.row[row, 0]))
            points = chunk[tuple(self.groups.within[members].T)]
            self.job.out[self.groups.position[members]] = cast_array(self.job.cast, points)
