"""What a thread keeps between reads on one device: two streams and rings of pinned slots.

Everything is written against `DeviceApi`, so that the simulator exercises it. Bytes go up on the `copy` stream and are
decoded on the `work` stream; events order the two. A pinned slot is lent out again only once the device has read it, or
has written it, to the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any
from weakref import WeakSet

import numpy as np

from xarray_gpuzarr.counters import STAGES, Stage, counters
from xarray_gpuzarr.cuda.api import Address, Bytes, DeviceApi, DeviceMemory, Event, Stream
from xarray_gpuzarr.cuda.options import ResourceOptions
from xarray_gpuzarr.cuda.turns import Turns


class Slot:
    """Pinned memory that is lent out and comes back."""

    def __init__(self, api: DeviceApi, nbytes: int) -> None:
        self._api = api
        self._memory = api.allocate_pinned(nbytes)
        self._returned = api.event()

    @property
    def array(self) -> Bytes:
        """The whole slot, writable."""
        return self._memory.array

    def give_back(self, stream: Stream) -> None:
        """Let the slot be lent out again once `stream` has done what it has been given so far."""
        self._api.record(self._returned, stream)

    def settle(self) -> None:
        """Block until the slot's last user is done with it."""
        self._api.synchronize_event(self._returned)


class PinnedRing:
    """A fixed number of slots, lent out in turn.

    Parameters
    ----------
    api : DeviceApi
    n_slots : int
    nbytes : int
        Length of a slot; a slot that is asked to be longer is replaced, by one that is half as long again at least:
        pinning memory takes milliseconds, and what is asked for may grow by a little each time.
    """

    def __init__(self, api: DeviceApi, n_slots: int, nbytes: int) -> None:
        self._api = api
        self._nbytes = nbytes
        self._slots: list[Slot | None] = [None] * n_slots
        self._next = 0

    def lend(self, nbytes: int) -> Slot:
        """Return the slot that has rested longest, at least `nbytes` long; blocks until it has been given back."""
        at, self._next = self._next, (self._next + 1) % len(self._slots)
        slot = self._slots[at]
        if slot is not None:
            slot.settle()
        if slot is None or len(slot.array) < nbytes:
            grown = 0 if slot is None else len(slot.array) * 3 // 2
            self._slots[at] = slot = None  # given back before more is taken
            slot = self._slots[at] = Slot(self._api, max(nbytes, self._nbytes, grown))
        return slot

    def fill(self) -> None:
        """Take the memory of all slots now, so that no read has to."""
        self._slots = [slot or Slot(self._api, self._nbytes) for slot in self._slots]

    def drop(self) -> None:
        """Give the memory of all slots back, only while none is lent and nothing is copied."""
        self._slots = [None] * len(self._slots)

    def rewind(self) -> None:
        """Start again with the first slot, only while none is lent: a short read then uses the slots it had before."""
        self._next = 0


TABLE_NBYTES = 256 * 1024
"""Room for the tables of a few thousand chunks."""
MAX_BATCHES = 3
"""Batches of one read that may be under way. The rings of tables and receipts have a slot more."""


class Lane:
    """Streams and pinned memory of one thread on one device."""

    def __init__(self, api: DeviceApi, options: ResourceOptions) -> None:
        self.api = api
        self.options = options
        self.copy = api.stream()
        self.work = api.stream()
        self.slots = PinnedRing(api, options.n_slots, options.slot_nbytes)
        """For encoded bytes."""
        self.tables = PinnedRing(api, MAX_BATCHES + 1, TABLE_NBYTES)
        """For pointer and size tables on their way up."""
        self.receipts = PinnedRing(api, MAX_BATCHES + 1, TABLE_NBYTES)
        """For statuses and actual sizes on their way down."""
        self._held: dict[int, DeviceMemory] = {}
        self._results: list[Any] = []
        """Of the read that is under way: streams may write to them even if nobody else knows of them any more."""
        self._is_clean = True
        """Whether the last read has ended, and left nothing behind."""
        self._was_interrupted = self._is_reading = False
        self._in_use = threading.RLock()

    @property
    def _rings(self) -> tuple[PinnedRing, ...]:
        return self.slots, self.tables, self.receipts

    @cached_property
    def scratch_nbytes(self) -> int:
        """Device memory that one batch of this thread may use besides results.

        A share of all memory: what is free says little where a pool holds nearly everything, or other threads read.
        """
        return self.options.scratch_nbytes or self.api.memory_nbytes()[1] // 4

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> Any:
        """Return an uninitialised device array that `stream` may write to from now on.

        Its memory belongs to the caller's stream, so that it is safe to free there.
        """
        consumer, ready = self.api.consumer_stream(), self.api.event()
        array = self.api.empty(shape, dtype, consumer)
        self._results.append(array)
        self.api.record(ready, consumer)
        self.api.wait(stream, ready)
        return array

    def lend_slot(self, nbytes: int) -> Slot:
        """Return a slot for encoded bytes. The other rings have slots for more batches than are under way."""
        with counters.stage("wait"):
            return self.slots.lend(nbytes)

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return device memory for `stream`, to be given back by `free`, or when a read fails."""
        memory = self.api.allocate(max(1, nbytes), stream)
        self._held[memory.address] = memory
        return memory

    def free(self, memory: DeviceMemory) -> None:
        """Give device memory back in the order of its stream."""
        del self._held[memory.address]
        memory.free()

    def stage(self, stage: Stage) -> AbstractContextManager[None]:
        """Count the seconds of a ``with`` block, and mark it on a profiler's timeline."""
        return _Staged(self.api.range(_RANGES[stage]), stage)

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Copy pinned host memory to the device; `data` must not change until that is done."""
        self.api.upload(to, data, stream)
        counters.add(copied_nbytes=data.nbytes)

    def wait_for(self, event: Event) -> None:
        """Block until `event`, as it was last recorded, has been reached."""
        with counters.stage("wait"):
            self.api.synchronize_event(event)

    def settle(self) -> None:
        """Wait until both streams are idle."""
        self.api.synchronize(self.copy)
        self.api.synchronize(self.work)

    def free_all(self, but: Collection[DeviceMemory] = ()) -> None:
        """Give back everything that is held; only once both streams are idle."""
        kept = {m.address for m in but}
        for memory in [m for m in self._held.values() if m.address not in kept]:
            self.free(memory)

    def reading[Result](self, read: Callable[[], Result]) -> Result:
        """Return what `read` does; if it raises, clean up: nothing is freed that the streams still write to.

        A cleaning that was interrupted is made up for before the next read.
        """
        with self._in_use:
            if self._is_reading:  # a read inside a read
                return read()
            try:
                self._is_reading = True
                self._clean()
                self._is_clean = False
                result = read()
                self._results.clear()
                self._is_clean = True
            except BaseException as error:
                self._was_interrupted = not isinstance(error, Exception)
                self._clean()
                raise
            finally:
                self._is_reading = False
            return result

    def _clean(self) -> None:
        """Bring the lane to where a read may begin."""
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

    def prepare(self) -> None:
        """Take all pinned memory now."""
        with self._in_use:
            for ring in self._rings:
                ring.fill()

    def close(self) -> None:
        """Give everything back once a read that is under way has ended; a later read takes it anew."""
        with self._in_use:
            self.settle()
            self.free_all()
            self._results.clear()
            for ring in self._rings:
                ring.drop()


_RANGES: dict[Stage, str] = {stage: f"read::{stage}" for stage in STAGES}


class _Staged:
    """A range and a clock; written out because ``contextlib`` takes longer than what a stage often lasts."""

    __slots__ = ("_before", "_range", "_stage")

    def __init__(self, profiled: AbstractContextManager[object], stage: Stage) -> None:
        self._range = profiled
        self._stage: Stage = stage

    def __enter__(self) -> None:
        self._range.__enter__()
        self._before = counters.switch(self._stage)

    def __exit__(self, *_: object) -> None:
        counters.switch(self._before)
        self._range.__exit__(None, None, None)


class WorkerResources:
    """The lanes of all threads of this process on one device."""

    def __init__(self, api: DeviceApi, options: ResourceOptions) -> None:
        self.api = api
        self.options = options
        self.turns = Turns()
        self._of_thread = threading.local()
        self._lanes: WeakSet[Lane] = WeakSet()
        self._lock = threading.Lock()

    def lane(self) -> Lane:
        """Return the calling thread's lane, made when it is first asked for; it ends with the thread."""
        lane: Lane | None = getattr(self._of_thread, "lane", None)
        if lane is None:
            lane = Lane(self.api, self.options)
            with self._lock:
                self._lanes.add(lane)
            self._of_thread.lane = lane
        return lane

    @property
    def is_shared(self) -> bool:
        """Whether several threads have read to this device."""
        return len(self._lanes) > 1

    def close(self) -> None:
        """Close the lanes of all threads, which waits for reads that are under way.

        Notes
        -----
        Streams are idle before memory goes, and both are gone before whoever calls this takes the pool away.
        """
        with self._lock:
            lanes = list(self._lanes)
            self._lanes.clear()
            self._of_thread = threading.local()
        for lane in lanes:
            lane.close()
