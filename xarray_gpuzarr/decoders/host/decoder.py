"""The host decoder, which carries out plans on threads, straight into one NumPy array.

The calling thread passes the plans of short reads of local files to the compiled loops. Longer reads, and reads of
other stores, are divided into tasks (`tasks`), which the calling thread and idle cores take from one queue. `schedule`
decides between the two.
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

from xarray_gpuzarr.decoders.host.cached_read import CachedRead, cached_read, counting_unfit
from xarray_gpuzarr.decoders.host.cached_tasks import CachedTasks
from xarray_gpuzarr.decoders.host.compressors import why_decoded_slowly
from xarray_gpuzarr.decoders.host.host_array import HostArray, host_array
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.decoders.host.loop_table import LoopTable
from xarray_gpuzarr.decoders.host.schedule import Costs, schedule
from xarray_gpuzarr.decoders.host.short_read import read_short
from xarray_gpuzarr.decoders.host.tasks import HostRead, PlanTasks, Task
from xarray_gpuzarr.decoders.protocol import Device, Route, StreamOf
from xarray_gpuzarr.fetch.source import ByteSource, FetchedBytes, ObjectSource, ReadAhead, Request
from xarray_gpuzarr.native.library import loops
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process import host_memory, threads
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.turns import turns
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast, cast_array


class HostDecoder:
    """Decodes on the host; results are NumPy arrays."""

    costs = Costs()
    """Costs of handing work to other threads."""
    device: Device = "host"

    def __init__(self, *, keeps_chunks: bool = True) -> None:
        self._keeps_chunks = keeps_chunks
        """Whether reads use and fill the cache of decoded chunks."""

    def route(self, spec: ArraySpec, cast: Cast) -> Route:  # noqa: ARG002  # the host casts anything
        """Return the route "host", or "host, by zarr-python" if only zarr-python knows a codec."""
        other = spec.codecs.other
        if other is None:
            return Route(where="host", why=why_decoded_slowly(spec.codecs))
        return Route(where="host, by zarr-python", why=f"codec {other} is decoded chunk by chunk")

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return `dtype`: NumPy arrays have any dtype."""
        return dtype

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised NumPy array."""
        return host_memory.result_memory.empty(shape, dtype)

    def read_without_plan(self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any) -> Any:
        """Read a few chunks of a local file, or of an object in memory, by one call of the compiled loops.

        See `Decoder.read_without_plan`, and `read_short` for the cases in which None is returned.
        """
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
        array = host_array(spec, cast, loops())  # raises if a setting is unusable, whatever is read
        thread = get_ident()
        lone_thread = object()  # stands for this thread while it works alone, see `carry_out`
        is_short = array.chunk_nbytes <= self.costs.short_chunk_nbytes
        # Callers take turns, see `process.turns`. A read inside another read of this thread has the turn of that one.
        takes_turn = is_short and not source.is_remote and thread not in turns.holders
        cached = cached_read(array, target, source) if self._keeps_chunks else None
        if self._keeps_chunks and cached is None:
            plans = counting_unfit(plans, array, target, source)  # the same plans
        try:
            if takes_turn:
                turns.begin(threads.n_cores)
            if out is None or (out.shape, out.dtype) != (target.shape, array.dtype) or not out.flags.writeable:
                out = self.empty(target.shape, array.dtype)
            carry_out(plans, host_read(array, target, out, source, self.costs), cached, lone_thread)
            if cached is not None:
                cached.check_versions()
            return out
        finally:
            try:
                crew.lone_threads.discard(lone_thread)
            finally:  # each step is a single call of C, which no signal can interrupt; see `process.waiting`
                try:
                    if cached is not None:  # those that wait for chunks of this read look for them again
                        cached.end_claim()
                finally:
                    if takes_turn:
                        turns.holders.pop(thread, None)
                        if turns.ended.waiting:
                            turns.ended.ring()

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:  # noqa: ARG002
        """Return a function that makes context managers. These do nothing: host memory is the same for all threads."""
        return nullcontext

    def may_retry(self, err: Exception) -> bool:  # noqa: ARG002
        """Return False: a read on the host that fails would fail again."""
        return False

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read`."""
        return read()

    def upload(self, block: npt.NDArray[Any], cast: Cast) -> npt.NDArray[Any]:
        """Cast a block. There is no upload: it is on the host already."""
        return cast_array(cast, block)


def host_read(array: HostArray, target: Target, out: npt.NDArray[Any], source: ByteSource, costs: Costs) -> HostRead:
    """Return a read with its schedule, and with its output for the compiled loops if they know the array's codecs."""
    read_schedule = schedule(
        array,
        target.n_chunks,
        out.nbytes,
        is_remote=source.is_remote,
        is_local=source.is_local,
        budget=threads.thread_budget(),
        costs=costs,
    )
    output = None if array.program is None else LoopOutput(array, target, out)
    return HostRead(array, target, out, source, read_schedule, output)


def carry_out(plans: Iterator[ReadPlan], read: HostRead, cached: CachedRead | None, lone_thread: object) -> None:
    """Carry out plans by calls of the loops, or by tasks.

    `lone_thread` is in `crew.lone_threads` while the calling thread works without helpers, so that other reads leave a
    thread of the budget to it. The caller removes it in the end, whatever happens.
    """
    output, rows_a_call = read.loop_output, read.schedule.rows_a_call
    if output is None or rows_a_call is None:
        run_plans(plans, read, cached)
        return
    crew.lone_threads.add(lone_thread)
    remaining = call_loops(plans, read, output, rows_a_call, cached)
    if remaining:
        crew.lone_threads.discard(lone_thread)
        # Threads divide the tasks among themselves, so each task's calls of the loops take one thread.
        read = replace(read, schedule=replace(read.schedule, n_loop_threads=1))
        run_tasks((task for plan, table, rows in remaining for task in PlanTasks(read, plan, table).tasks(rows)), read)


def run_tasks(tasks: Iterator[Task], read: HostRead) -> None:
    """Run tasks on as many threads as the schedule allows, including the calling thread."""

    def run_in_order(_go_on: Callable[[], bool]) -> None:
        for task in tasks:
            task.run(task.start(read.source))

    # A single task needs no queue. Of a single chunk, there are several tasks only if it comes in pieces from a server.
    has_one_task = read.target.n_chunks == 1 and not read.source.is_remote
    work = run_in_order if has_one_task else TaskQueue(tasks, read.source).drain
    crew.run(work, read.schedule.n_threads, read.schedule.budget)


def run_plans(plans: Iterator[ReadPlan], read: HostRead, cached: CachedRead | None) -> None:
    """Run the tasks of plans. `cached` is the cache of decoded chunks; None if the read does not use it."""
    if cached is None:
        run_tasks((task for plan in plans for task in PlanTasks(read, plan).tasks()), read)
        return
    tasks = CachedTasks(read, cached)
    run_tasks(tasks.tasks(plans), read)
    tasks.put()
    cached.forget_claim()


def call_loops(
    plans: Iterator[ReadPlan], read: HostRead, output: LoopOutput, rows_a_call: int, cached: CachedRead | None
) -> list[tuple[ReadPlan, LoopTable, Sequence[int] | None]]:
    """Carry out plans by the compiled loops, at most `rows_a_call` rows in each call.

    Returns the plans of which rows were left: each with its `LoopTable` and with these rows, or None for all rows.
    """
    remaining: list[tuple[ReadPlan, LoopTable, Sequence[int] | None]] = []
    for plan in plans:
        chunks = None if cached is None else cached.look_up(plan)
        table = LoopTable(output, plan, read.source, chunks)
        if not plan.n_stored or table.is_decoded:
            # No chunk has to be read. Such a plan is placed at once, and not by a task later, since a sparse array has
            # many of them.
            table.place(range(plan.n_chunks), read.schedule)
            continue
        if table.files is None:  # a name cannot be that of a file, and tasks raise the error for it
            remaining.append((plan, table, None))
            continue
        for start in range(0, plan.n_chunks, rows_a_call):
            rows = table.read(range(start, min(start + rows_a_call, plan.n_chunks)), read.schedule)
            if rows:
                remaining.append((plan, table, rows))
        if cached is not None and chunks is not None:
            cached.put(chunks, table.placed_rows(chunks.to_keep))
    if cached is not None:
        cached.forget_claim()
    return remaining


_MOST_READY = 256
"""Largest number of tasks that wait for a thread. This limits tasks that make no requests, such as those of missing
chunks. Others are limited by the number of their requests."""


class TaskQueue:
    """Tasks in order, with the requests of the next few already under way."""

    def __init__(self, tasks: Iterator[Task], source: ByteSource) -> None:
        self._tasks = tasks
        self._source = source
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._ready: deque[tuple[Task, Any]] = deque()
        """Tasks that wait for a thread, and their pending answers."""
        self._n_started = 0
        """Number of requests that the waiting tasks count as; see `_weight`."""
        self._stopped = False

    def drain(self, go_on: Callable[[], bool]) -> None:
        """Run tasks until none is left, a task on another thread fails, or `go_on` returns False."""
        try:
            while go_on():
                item = self._next()
                if item is None:
                    return
                task, pending = item
                task.run(pending)
        except BaseException:
            self._stopped = True
            raise

    def _next(self) -> tuple[Task, Any] | None:
        """Return the next task and its pending answers; None if none is left, or a task has failed.

        Requests of later tasks are started first.
        """
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
        """Return the number of requests that a task counts as.

        A task whose bytes have arrived, because its shard came whole, counts as all requests that may be under way. So
        no later task is started: it would hold the bytes of another shard in memory before a thread needs them.
        """
        return self._source.lookahead if isinstance(pending, FetchedBytes) else len(task.requests)
