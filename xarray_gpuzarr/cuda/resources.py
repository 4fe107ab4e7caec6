"""Resources that reads of one device use: streams, rings of pinned slots, device memory for encoded bytes.

A workspace is lent to one read after another, whatever their threads; few reads run at once, and others wait.

Everything is written against `DeviceApi`, so that the simulator exercises it. Bytes go up on the `copy` stream; batches
are decoded on the streams of `works` in turn, so that fetching, copying and decoding overlap. Events order them.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory, Event, Stream
from xarray_gpuzarr.cuda.workspace_memory import PinnedRing, ResultOwner, Shortage, Slot, WorkspaceMemory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.waiting import Bell


@dataclass(slots=True, eq=False)
class _Read:
    """One that is under way, or waits for its turn."""

    thread: int
    is_under_way: bool = False


class SharedLock:
    """Lets reads of several threads run together, or one alone; those that wait begin in the order in which they came.

    Signals may interrupt whoever holds it or waits for it. `n_together` threads may read at once.
    """

    def __init__(self, n_together: int = sys.maxsize) -> None:
        self._n_together = n_together
        self._lock = Lock()
        self._changed = Bell()
        self._reads: dict[_Read, None] = {}
        """In the order in which they came."""
        self._alone: int | None = None
        """The thread that reads alone, or waits until it does."""

    @property
    def n_reading(self) -> int:
        """Reads that are under way."""
        return sum(read.is_under_way for read in list(self._reads))

    @property
    def is_alone(self) -> bool:
        """Whether the calling thread reads alone."""
        return self._alone == get_ident()

    def shared[*Arguments, Result](self, read: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Read beside others; waits while too many do, or one alone. A read inside a read never waits."""
        mine = _Read(get_ident())
        try:
            self._reads[mine] = None
            if not self._begins(mine):
                self._changed.wait_until(lambda: self._begins(mine))
            return read(*arguments)
        finally:
            self._reads.pop(mine, None)
            if self._changed.waiting:
                self._changed.ring_for_all()

    def exclusive[Result](self, read: Callable[[], Result]) -> Result:
        """Wait until nobody else reads, and let nobody else begin."""
        me = get_ident()
        try:
            self._changed.wait_until(lambda: self._claims(me))
            self._changed.wait_until(lambda: all(r.thread == me for r in list(self._reads) if r.is_under_way))
            return read()
        finally:
            if self._alone == me:
                self._alone = None
            self._changed.ring_for_all()

    def _begins(self, mine: _Read) -> bool:
        me = mine.thread
        with self._lock:
            reads = list(self._reads)
            earlier = reads[: reads.index(mine)]
            is_inside = me in [read.thread for read in earlier if read.is_under_way]
            may_begin = self._alone is None and len({read.thread for read in earlier}) < self._n_together
            if not (is_inside or may_begin or self._alone == me):  # whoever is alone comes before all that wait
                return False
            mine.is_under_way = True
            return True

    def _claims(self, me: int) -> bool:
        with self._lock:
            if self._alone not in (None, me):
                return False
            self._alone = me
            return True


TABLE_NBYTES = 256 * 1024
"""Room for the tables of a few thousand chunks."""
_KEPT_TABLE_NBYTES = 8 * 1024**2
"""Longer ones, of some 50 000 chunks, are given back when their read has ended."""
_FIRST_SLOT_NBYTES = 256 * 1024
"""Length of a pinned slot until a read needs more: pinning 64 MiB takes some 20 ms."""


def pinned_nbytes(options: ResourceOptions) -> int:
    """Return the pinned memory that a workspace keeps at most."""
    return options.n_slots * options.slot_nbytes + 2 * (options.n_batches + 2) * _KEPT_TABLE_NBYTES


def scratch_nbytes(options: ResourceOptions, device_nbytes: int) -> int:
    """Return the device memory that the batches of a read may use besides its result."""
    return options.scratch_nbytes or device_nbytes * 3 // 4 // options.n_reads


class Workspace:
    """Streams and memory of one read at a time on one device.

    Where it `keeps_results`, nobody but its `copy` stream looks at results: the array library may work on any stream.
    """

    def __init__(
        self,
        api: DeviceApi,
        options: ResourceOptions,
        *,
        shortage: Shortage | None = None,
        keeps_results: bool = False,
    ) -> None:
        self.api = api
        self.options = options
        self.shortage = shortage or Shortage()
        self.scratch_nbytes = scratch_nbytes(options, api.memory_nbytes()[1])
        """Device memory that the batches of a read may use besides results.

        A share of all memory: what is free says little where a pool holds nearly everything, or other threads read.
        """
        self.copy = api.stream()
        self._consumer = self.copy if keeps_results else None
        self.works = tuple(api.stream() for _ in range(options.n_batches))
        self.slots = PinnedRing(api, options.n_slots, min(_FIRST_SLOT_NBYTES, options.slot_nbytes), options.slot_nbytes)
        """For encoded bytes."""
        self.tables = PinnedRing(api, options.n_batches + 2, TABLE_NBYTES, kept_nbytes=_KEPT_TABLE_NBYTES)
        """For pointer and size tables on their way up."""
        self.receipts = PinnedRing(api, options.n_batches + 2, TABLE_NBYTES, kept_nbytes=_KEPT_TABLE_NBYTES)
        """For statuses and actual sizes on their way down."""
        self._rings = self.slots, self.tables, self.receipts
        quiet = api.stream()
        self.device_slots = WorkspaceMemory(api, quiet, options.n_slots * options.slot_nbytes)
        """For encoded bytes; lent on the `copy` stream."""
        self.device_tables = WorkspaceMemory(api, quiet)
        self.scratch = WorkspaceMemory(api, quiet)
        """For what is between encoded bytes and the result."""
        self._memories = self.device_slots, self.device_tables, self.scratch
        self._results: list[Any] = []
        """Results of the read that is under way: streams may write to them although nobody else knows them."""
        self._is_clean = True
        """Whether the last read has ended, and left nothing behind."""
        self._was_interrupted = False

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any], streams: Sequence[Stream]) -> Any:
        """Return an uninitialised device array that `streams` may write to; the consumer, once the host has waited.

        `streams` do not wait for what the consumer has been given: the memory comes back behind that, and not here.
        """
        consumer = self._consumer or self.api.consumer_stream()
        memory = self.api.allocate(max(1, math.prod(shape) * dtype.itemsize), streams[0])
        array = self.api.array_in(memory, shape, dtype, ResultOwner(memory, consumer))
        self._results.append(array)
        self.order(streams[0], streams[1:])
        return array

    def fill(self, array: Any, streams: Sequence[Stream]) -> None:
        """Let `streams` write to an array of the consumer's, after what the consumer has been given."""
        self._results.append(array)
        self.order(self.api.consumer_stream(), streams)

    def order(self, before: Stream, streams: Sequence[Stream]) -> None:
        """Let streams wait for what another one has been given so far."""
        event = self.api.event()
        self.api.record(event, before)
        for stream in streams:
            self.api.wait(stream, event)

    def lend_slot(self, nbytes: int) -> Slot:
        """Return a slot for encoded bytes. The other rings have slots for more batches than are under way."""
        with counters.stage("wait"):
            return self.slots.lend(nbytes)

    def free(self, memory: DeviceMemory) -> None:
        """Take back device memory that was lent; only once the device has done everything with it."""
        for owner in self._memories:
            if owner.give_back(memory):
                return

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Copy pinned host memory to the device; `data` must not change until that is done."""
        self.api.upload(to, data, stream)
        counters.add(copied_nbytes=data.nbytes)

    def wait_for(self, event: Event) -> None:
        """Block until `event`, as it was last recorded, has been reached."""
        with counters.stage("wait"):
            self.api.synchronize_event(event)

    def settle(self) -> None:
        """Wait until all streams that reads use are idle."""
        for stream in (self.copy, *self.works):
            self.api.synchronize(stream)

    def free_all(self, but: Collection[DeviceMemory] = ()) -> None:
        """Give everything back to the pool but what is lent and named; only once all streams are idle."""
        for memory in self._memories:
            memory.take_back_all(but)
            memory.free_idle()

    def run[Result](self, read: Callable[[Workspace], Result]) -> Result:
        """Return what a read does with this workspace, lent to nobody else.

        A cleaning that was interrupted is made up for first. A read that fails is cleaned up after: nothing is freed
        that the streams still write to.
        """
        try:
            self._clean()
            self._is_clean = False
            result = read(self)
            self._results.clear()
            for memory in self._memories:
                memory.free_idle(memory.kept_nbytes)
            self._is_clean = True
        finally:
            if not self._is_clean:
                self._was_interrupted |= not isinstance(sys.exception(), Exception)
            self._clean()
        return result

    def _clean(self) -> None:
        """Bring the workspace to where a read may begin."""
        if not self._is_clean:
            self.settle()
            self.free_all()
            self._results.clear()
            if self._was_interrupted:  # threads that it perhaps left behind may still write to slots
                for ring in self._rings:
                    ring.drop()
            self._is_clean, self._was_interrupted = True, False
        for ring in self._rings:
            ring.rewind()

    def trim(self) -> None:
        """Give device memory back that is kept for the next read."""
        for memory in self._memories:
            memory.free_idle()

    def prepare(self) -> None:
        """Take all pinned memory now; the streams may still copy from what an interrupted cleaning left behind."""
        self._clean()
        for ring in self._rings:
            ring.fill()

    def close(self) -> None:
        """Give everything back; a later read takes it anew."""
        self.settle()
        self.free_all()
        self._results.clear()
        for ring in self._rings:
            ring.drop()


class WorkerResources:
    """The workspaces of this process on one device, lent to one read after another."""

    def __init__(self, api: DeviceApi, options: ResourceOptions) -> None:
        self.api = api
        self.options = options
        self.lock = SharedLock(options.n_reads)
        self._shortage = Shortage()
        self._workspaces: list[Workspace] = []
        self._lent: dict[int, Workspace] = {}
        """By the thread that reads."""
        self._threads: set[int] = set()
        """All that have read."""
        self._lock = threading.Lock()

    def reading[Result](self, read: Callable[[Workspace], Result]) -> Result:
        """Return what `read` does with a workspace that nobody else uses; waits while too many others read.

        A read inside a read has the workspace of the outer one.
        """
        me = threading.get_ident()
        outer = self._lent.get(me)
        if outer is not None:
            return read(outer)
        with self.api.activate():
            return self.lock.shared(self._read_with_own, me, read)

    def _read_with_own[Result](self, me: int, read: Callable[[Workspace], Result]) -> Result:
        try:
            with self._lock:
                idle = self._idle()
                if not idle:
                    idle = [Workspace(self.api, self.options, shortage=self._shortage)]
                    self._workspaces += idle
                self._threads.add(me)
                workspace = self._lent[me] = idle[0]
            return workspace.run(read)
        finally:
            self._lent.pop(me, None)

    def _idle(self) -> list[Workspace]:
        """Return the workspaces that nobody uses, the oldest first: its slots have grown most."""
        lent = list(self._lent.values())
        return [workspace for workspace in self._workspaces if workspace not in lent]

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread reads just now: what it reads inside that has the same workspace."""
        return threading.get_ident() in self._lent or self.lock.is_alone

    @property
    def is_shared(self) -> bool:
        """Whether several threads have read to this device."""
        return len(self._threads) > 1

    def prepare(self, n_threads: int) -> None:
        """Take the streams and pinned memory that reads of so many more threads use."""
        with self._lock:
            more = min(n_threads, self.options.n_reads - len(self._workspaces))
            self._workspaces += [Workspace(self.api, self.options, shortage=self._shortage) for _ in range(more)]
            for workspace in self._idle():
                workspace.prepare()

    def trim(self) -> None:
        """Give back device memory that nobody uses; only while no other thread reads."""
        self.api.trim()
        with self._lock:
            for workspace in self._idle():
                workspace.trim()

    def close(self) -> None:
        """Close all workspaces, once the reads that are under way have ended.

        Streams are idle before memory goes, and both are gone before whoever calls this takes the pool away.
        """

        def close() -> None:
            while self._workspaces:  # an interrupted one stays, to be settled by the next
                self._workspaces[-1].close()
                self._workspaces.pop()

        self.lock.exclusive(close)
