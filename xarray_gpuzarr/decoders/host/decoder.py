"""The host decoder: the same plans, carried out with NumPy on threads, straight into one array.

Short reads of local files are calls of the compiled loops. Others are tasks, taken from one queue by the calling thread
and by idle helpers. `schedule` decides which, and `tasks` has what a task does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.chunk_cache import CachedRead, cached_read
from xarray_gpuzarr.decoders.host.compressors import why_decoded_slowly
from xarray_gpuzarr.decoders.host.host_array import host_array
from xarray_gpuzarr.decoders.host.loop_call import LoopCall, LoopOutput
from xarray_gpuzarr.decoders.host.schedule import Costs, schedule
from xarray_gpuzarr.decoders.host.short_read import read_short
from xarray_gpuzarr.decoders.host.tasks import CachedTasks, HostRead, PlanTasks, Task
from xarray_gpuzarr.decoders.protocol import Device, Route, StreamOf
from xarray_gpuzarr.fetch.source import ByteSource, FetchedBytes, ObjectSource, ReadAhead, Request
from xarray_gpuzarr.native.library import loops
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process import host_memory, threads
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast, cast_array


class HostDecoder:
    """Decodes on the host; results are NumPy arrays."""

    costs = Costs()
    """Costs of handing over work."""
    device: Device = "host"

    def __init__(self, *, keeps_chunks: bool = True) -> None:
        self._keeps_chunks = keeps_chunks
        """Whether reads use, and fill, the cache of decoded chunks."""

    def route(self, spec: ArraySpec, cast: Cast) -> Route:  # noqa: ARG002  # the host casts anything
        """Say whether chunks are decoded in bulk or one by one by zarr-python."""
        other = spec.codecs.other
        if other is None:
            return Route(where="host", why=why_decoded_slowly(spec.codecs))
        return Route(where="host, by zarr-python", why=f"codec {other} is decoded chunk by chunk")

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return `dtype`: NumPy has them all."""
        return dtype

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised NumPy array."""
        return host_memory.result_memory.empty(shape, dtype)

    def read_at_once(self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any) -> Any:
        """Read a few chunks of a local file by one call of the compiled loops; see `Decoder.read_at_once`."""
        array = host_array(spec, cast, loops())
        return read_short(array, target, source, out, costs=self.costs, keeps_chunks=self._keeps_chunks)

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
        array = host_array(spec, cast, loops())  # a setting that is unusable fails every read
        thread, me = get_ident(), object()
        is_short = array.chunk_nbytes <= self.costs.short_chunk_nbytes
        takes_turn = is_short and not source.is_remote and thread not in crew.turns
        cached = cached_read(array, target, source) if self._keeps_chunks else None
        try:
            if takes_turn:
                crew.begin_turn(threads.n_cores)
            if out is None or (out.shape, out.dtype) != (target.shape, array.dtype) or not out.flags.writeable:
                out = self.empty(target.shape, array.dtype)
            kind = {"is_remote": source.is_remote, "is_local": source.is_local, "budget": threads.thread_budget()}
            shared = schedule(array, target.n_chunks, out.nbytes, costs=self.costs, **kind)
            output = None if array.program is None else LoopOutput(array, target, out)
            carry_out(plans, HostRead(array, target, out, source, shared, output), cached, me)
            if cached is not None:
                cached.check()
            return out
        finally:
            try:
                crew.alone.discard(me)
            finally:  # one call of C each, see `process.waiting`
                try:
                    if cached is not None:
                        cached.end_claim()
                finally:
                    if takes_turn:
                        crew.turns.pop(thread, None)
                        if crew.over.waiting:
                            crew.over.ring()

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:  # noqa: ARG002
        """Return what does nothing: host memory is the same for all threads."""
        return nullcontext

    def may_retry(self, err: Exception) -> bool:  # noqa: ARG002
        """Return False: host memory is the system's business."""
        return False

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read`."""
        return read()

    def upload(self, block: npt.NDArray[Any], cast: Cast) -> npt.NDArray[Any]:
        """Cast a block; it is on the host already."""
        return cast_array(cast, block)


def carry_out(plans: Iterator[ReadPlan], read: HostRead, cached: CachedRead | None, me: object) -> None:
    """Carry out plans by calls of the loops, or by tasks; `me` stands for the calling thread while it is alone."""
    output, rows_a_call = read.output, read.schedule.rows_a_call
    if output is None or rows_a_call is None:
        run_plans(plans, read, cached)
        return
    crew.alone.add(me)
    rest = call_loops(plans, read, output, rows_a_call, cached)
    if rest:
        crew.alone.discard(me)
        # There are many tasks, so each of their calls of the loops takes one thread.
        read = replace(read, schedule=replace(read.schedule, n_loop_threads=1))
        run_tasks((task for plan, call, rows in rest for task in PlanTasks(read, plan, call).tasks(rows)), read)


def run_tasks(tasks: Iterator[Task], read: HostRead) -> None:
    """Run tasks on as many threads as the schedule says, the caller's among them."""

    def alone(_: Callable[[], bool]) -> None:
        for task in tasks:
            task.run(task.start(read.source))

    nothing_ahead = read.target.n_chunks == 1 and not read.source.is_remote
    work = alone if nothing_ahead else TaskQueue(tasks, read.source).drain
    crew.run(work, read.schedule.n_threads, read.schedule.budget)


def run_plans(plans: Iterator[ReadPlan], read: HostRead, cached: CachedRead | None) -> None:
    """Run the tasks of plans; `cached` has the chunks of the read that were decoded before."""
    if cached is None:
        run_tasks((task for plan in plans for task in PlanTasks(read, plan).tasks()), read)
        return
    tasks = CachedTasks(read, cached)
    run_tasks(tasks.tasks(plans), read)
    tasks.put()
    cached.forget_claim()


def call_loops(
    plans: Iterator[ReadPlan], read: HostRead, output: LoopOutput, rows_a_call: int, cached: CachedRead | None
) -> list[tuple[ReadPlan, LoopCall, Sequence[int] | None]]:
    """Let the compiled loops carry out plans, so many rows a call; return the rows that are left, None for all."""
    remaining: list[tuple[ReadPlan, LoopCall, Sequence[int] | None]] = []
    source, shared = read.source, read.schedule
    for plan in plans:
        chunks = None if cached is None else cached.look_up(plan)
        call = LoopCall(output, plan, source, chunks)
        if not plan.n_stored or call.is_decoded:  # kept for later, the plans of a sparse array would take memory
            call.place(range(plan.n_chunks), shared)
            continue
        if call.files is None:
            remaining.append((plan, call, None))
            continue
        for at in range(0, plan.n_chunks, rows_a_call):
            rows = call.read(range(at, min(at + rows_a_call, plan.n_chunks)), shared)
            if rows:
                remaining.append((plan, call, rows))
        if cached is not None and chunks is not None:
            cached.put(chunks, call.decoded(chunks.kept))
    if cached is not None:
        cached.forget_claim()
    return remaining


_MOST_READY = 256
"""Number of tasks that wait for a thread: those of chunks that are not stored make no requests."""


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
            while not self._ready or (self._n_started < self._source.lookahead and len(self._ready) < _MOST_READY):
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
        return self._source.lookahead if isinstance(pending, FetchedBytes) else len(task.requests)
