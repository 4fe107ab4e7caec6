"""The host decoder: the same plans, carried out with NumPy on threads, straight into one array.

Short reads of local files are calls of the compiled loops. Others are tasks, taken from one queue by the calling thread
and by idle helpers. What a task does is in `blocks`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.array import HostArray, host_array
from xarray_gpuzarr.decoders.host.blocks import Block
from xarray_gpuzarr.decoders.host.casting import cast_array
from xarray_gpuzarr.decoders.host.job import Job, Task, rows_a_call
from xarray_gpuzarr.decoders.protocol import Device, Route, StreamOf
from xarray_gpuzarr.fetch import AtHand, ByteSource, ReadAhead, Request
from xarray_gpuzarr.native import loops
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process import result_memory, threads
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

_PARTS_A_THREAD = 4
_LEAST_PART_NBYTES = 256 * 1024
"""Handing over a part costs a few hundredths of reading and decoding this much."""
_SERIAL_S = 1.2e-3
"""What takes one thread no longer to decode is not worth waking another for: crops of 8 raw chunks of 64 KiB took one
thread 312 us and two 415, of 63 chunks of zstd 4.3 and 3.0 ms (November 2026, EPYC, two cores)."""
_LOOPS_S = 0.1
"""What takes one thread no longer to decode is read by the caller's thread, and by threads of the compiled loops: these
hand over nothing, and share what they do by the chunk. A longer read had better have threads that come and go."""
_LOOP_THREAD_S = 150e-6
"""Decoding that is worth a thread of the compiled loops, which never waits for Python: to start one takes 20 us."""
_LOOP_COPY_NBYTES = 8 * 1024 * 1024
"""Of a single raw chunk: what the loops share among threads."""
_SHORT_CHUNK_NBYTES = 256 * 1024
"""Threads that decode chunks up to this ask for Python's lock so often that more of them than cores get less done."""


class HostDecoder:
    """Decodes on the host; results are NumPy arrays."""

    @property
    def device(self) -> Device:
        """``"host"``."""
        return "host"

    def route(self, spec: ArraySpec, cast: Cast) -> Route:  # noqa: ARG002  # the host casts anything
        """Say whether chunks are decoded in bulk or one by one by zarr-python."""
        other = spec.codecs.other
        if other is None:
            return Route(where="host", why="")
        return Route(where="host, by zarr-python", why=f"codec {other} is decoded chunk by chunk")

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return `dtype`: NumPy has them all."""
        return dtype

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised NumPy array."""
        return result_memory.result_memory.empty(shape, dtype)

    def decode(
        self,
        plans: Iterator[ReadPlan],
        source: ByteSource,
        *,
        spec: ArraySpec,
        target: Target,
        cast: Cast,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Carry out plans; see `Decoder.decode`."""
        array, shape = host_array(spec, cast, loops()), target.shape  # a setting that is unusable fails every read
        fits = out is not None and (out.shape, out.dtype) == (shape, array.dtype) and out.flags.writeable
        given = out if fits else None

        def decode() -> npt.NDArray[Any]:
            out = self.empty(shape, array.dtype) if given is None else given
            job = Job(array, target, out, source)
            most, a_call = _share_out(job)
            if a_call is not None:
                left = _call_loops(plans, job, a_call)
                job.most_threads = 1
                if left:
                    _run(iter(left), job, most)
            else:
                _run((task for plan in plans for task in Block(job, plan).tasks()), job, most)
            return out

        return decode() if source.is_remote else _in_turn(array, decode)

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:  # noqa: ARG002
        """Return what does nothing: host memory is the same for all threads."""
        return nullcontext

    def with_memory[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read`: host memory is the system's business."""
        return read()

    def upload(self, block: npt.NDArray[Any], cast: Cast) -> npt.NDArray[Any]:
        """Cast a block; it is on the host already."""
        return cast_array(cast, block)


def _in_turn[Result](array: HostArray, decode: Callable[[], Result]) -> Result:
    """Return what `decode` does, once a core is free for it if chunks are short."""
    return crew.in_turn(threads.n_cores(), decode) if array.chunk_nbytes <= _SHORT_CHUNK_NBYTES else decode()


def _share_out(job: Job) -> tuple[int, int | None]:
    """Say how many threads are to work on a read, by how long decoding takes; set up what each of them takes.

    Returns
    -------
    n_threads, rows : int, int or None
        Chunks of local files that the compiled loops get at once, if the calling thread reads them all.
    """
    array, source, n_chunks = job.array, job.source, job.target.n_chunks
    # One chunk is decoded by one thread; of several, little may be wanted and much to be decoded.
    nbytes = max(job.out.nbytes, n_chunks * array.chunk_nbytes if n_chunks > 1 else 0)
    seconds = nbytes / array.rate
    is_long, is_single = seconds >= _SERIAL_S, n_chunks == 1
    job.budget = threads.thread_budget() if seconds >= min(_SERIAL_S, 2 * _LOOP_THREAD_S) else 1
    most = job.budget if is_long and not is_single else 1
    if most > 1 and not source.is_remote:  # else latency tells how long requests should be
        job.longest_nbytes = max(_LEAST_PART_NBYTES, nbytes // most // _PARTS_A_THREAD)
        job.rows_a_part = _rows_a_part(n_chunks // most, array.rate, array.chunk_nbytes)
    # What is only copied, two threads do no sooner than one, unless it is long.
    is_short = not is_long if array.is_copied else seconds < _LOOPS_S
    by_loops = source.is_local and array.program is not None and (is_single or is_short)
    if is_single and array.is_copied:
        job.most_threads = max(1, min(nbytes // _LOOP_COPY_NBYTES, job.budget))
    elif not array.is_copied and (by_loops or most == 1):
        job.most_threads = max(1, min(int(seconds / _LOOP_THREAD_S), job.budget))
    return most, rows_a_call(array.rate, array.chunk_nbytes) if by_loops else None


def _rows_a_part(share: int, rate: float, chunk_nbytes: int) -> int:
    """Say how many chunks a thread takes at once of its share: encoded, they may be as good as nothing."""
    least = -(-_LEAST_PART_NBYTES // chunk_nbytes)
    return max(least, min(share // _PARTS_A_THREAD, rows_a_call(rate, chunk_nbytes)))


def _run(tasks: Iterator[Task], job: Job, most: int) -> None:
    """Run tasks on up to so many threads, the caller's among them."""

    def alone(_: Callable[[], bool]) -> None:
        for task in tasks:
            task.run(task.start(job.source))

    nothing_ahead = job.target.n_chunks == 1 and not job.source.is_remote
    crew.run(alone if nothing_ahead else TaskQueue(tasks, job.source).drain, most, job.budget)


def _call_loops(plans: Iterator[ReadPlan], job: Job, n_rows: int) -> list[Task]:
    """Let the compiled loops carry out plans, so many rows a call; return tasks for what they cannot read."""
    left: list[Task] = []

    def run(_: Callable[[], bool]) -> None:
        for plan in plans:
            block = Block(job, plan)
            if block.files is None:
                left.extend(block.tasks())
                continue
            for at in range(0, plan.n_chunks, n_rows):
                left.extend(block.read_local(range(at, min(at + n_rows, plan.n_chunks))))

    crew.run(run, 1)
    return left


class TaskQueue:
    """Tasks in order, with the requests of the next few already under way."""

    def __init__(self, tasks: Iterator[Task], source: ByteSource) -> None:
        self._tasks = tasks
        self._source = source
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._ready: deque[tuple[Task, Any]] = deque()
        self._n_started = 0
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

    def _next(self) -> tuple[Task, Any] | None:
        queued: list[Request] = []
        with self._lock:
            if self._stopped:
                return None
            while not self._ready or self._n_started < self._source.lookahead:
                task = next(self._tasks, None)
                if task is None:
                    break
                pending = task.start(self._source)
                self._ready.append((task, pending))
                self._n_started += self._weight(task, pending)
                queued += task.requests
            if not self._ready:
                return None
            item = self._ready.popleft()
            self._n_started -= self._weight(*item)
        self._read_ahead(queued)
        return item

    def _weight(self, task: Task, pending: Any) -> int:
        """Return the requests that a task counts as; bytes at hand would only pile up if more were drawn."""
        return self._source.lookahead if isinstance(pending, AtHand) else len(task.requests)
