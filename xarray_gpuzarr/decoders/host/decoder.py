"""The host decoder: the same plans, carried out with NumPy on threads, straight into one array.

Tasks are taken from one queue by the calling thread and by idle helpers. What a task does is in `blocks`
and `boxes`.
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
from xarray_gpuzarr.decoders.host.blocks import Block, PointBlock
from xarray_gpuzarr.decoders.host.boxes import BoxBlock
from xarray_gpuzarr.decoders.host.job import Job, Task, Workspace, rows_a_call
from xarray_gpuzarr.decoders.host.placing import cast_array
from xarray_gpuzarr.decoders.host.stacks import StackBlock
from xarray_gpuzarr.decoders.protocol import Device, Route, StreamOf
from xarray_gpuzarr.fetch import AtHand, ByteSource, ReadAhead, Request
from xarray_gpuzarr.native import loops
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, ReadPlan, Target
from xarray_gpuzarr.plan.stack import StackTarget
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
            most = _share_out(job)
            if job.rows_a_call is not None or (most == 1 and target.n_chunks == 1 and not source.is_remote):
                _run_here(plans, job)
                if job.left:
                    job.most_threads, job.rows_a_call = 1, None  # what the loops leave once more, tasks read themselves
                    _run(iter(job.left), job, most)
            else:
                _run((task for plan in plans for task in _BLOCKS[type(target)](job, plan).tasks()), job, most)
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


def _share_out(job: Job) -> int:
    """Say how many threads are to work on a read, by how long decoding takes; set up what each of them takes."""
    array, source, n_chunks = job.array, job.source, job.target.n_chunks
    # One chunk is decoded by one thread; of several, little may be wanted and much to be decoded.
    nbytes = max(job.out.nbytes, n_chunks * array.chunk_nbytes if n_chunks > 1 else 0)
    seconds = nbytes / array.rate
    most = threads.thread_budget() if seconds >= _SERIAL_S else 1
    if most > 1 and not source.is_remote:  # else latency tells how long requests should be
        job.longest_nbytes = max(_LEAST_PART_NBYTES, nbytes // most // _PARTS_A_THREAD)
        job.rows_a_part = _rows_a_part(n_chunks // most, array.rate, array.chunk_nbytes)
    # What is only copied, two threads do no sooner than one.
    by_loops = source.is_local and array.program is not None and seconds < (_SERIAL_S if array.is_copied else _LOOPS_S)
    if not array.is_copied and (by_loops or most == 1):
        job.most_threads = _most_threads(seconds)
    if by_loops:
        job.rows_a_call = rows_a_call(array.rate, array.chunk_nbytes)
    return most


def _most_threads(seconds: float) -> int:
    """Say how many threads of the compiled loops so much decoding is worth."""
    n = int(seconds / _LOOP_THREAD_S)
    return min(n, threads.thread_budget()) if n > 1 else 1


def _rows_a_part(share: int, rate: float, chunk_nbytes: int) -> int:
    """Say how many chunks a thread takes at once of its share: encoded, they may be as good as nothing."""
    least = -(-_LEAST_PART_NBYTES // chunk_nbytes)
    return max(least, min(share // _PARTS_A_THREAD, rows_a_call(rate, chunk_nbytes)))


_BLOCKS: dict[type[Target], Callable[[Job, ReadPlan], Block]] = {
    BoxTarget: BoxBlock,
    PointTarget: PointBlock,
    StackTarget: StackBlock,
}


def _run(tasks: Iterator[Task], job: Job, most: int) -> None:
    """Run tasks on up to so many threads, the caller's among them."""
    queue = TaskQueue(tasks, job.source)
    crew.run(lambda go_on: queue.drain(Workspace(job), go_on), most)


def _run_here(plans: Iterator[ReadPlan], job: Job) -> None:
    """Carry out plans on this thread, but for what the compiled loops cannot read."""
    workspace = Workspace(job)

    def run(_: Callable[[], bool]) -> None:
        for plan in plans:
            for task in _BLOCKS[type(job.target)](job, plan).tasks():
                if task.requests and job.rows_a_call is not None:
                    job.left.append(task)
                else:
                    task.run(workspace, task.start(job.source, task.requests))

    crew.run(run, 1)


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

    def drain(self, workspace: Workspace, go_on: Callable[[], bool]) -> None:
        """Run tasks until none is left, another thread failed, or `go_on` says no."""
        try:
            while go_on() and (item := self._next()) is not None:
                task, pending = item
                task.run(workspace, pending)
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
                pending = task.start(self._source, task.requests)
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
