"""`Workspace`: streams, rings of pinned slots, and device memory, which one read at a time uses.

Uploads run on the `copy` stream, and batches are decoded on the `batch_streams` in turn, so that fetching, copying
and decoding overlap. Events order them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory, Event, Stream
from xarray_gpuzarr.cuda.workspace_memory import PinnedRing, ResultOwner, Shortage, Slot, WorkspaceMemory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.device_options import ResourceOptions

TABLE_NBYTES = 256 * 1024
"""Length in bytes that a slot for tables has at first. The tables of a few thousand chunks fit."""
_KEPT_TABLE_NBYTES = 8 * 1024**2
"""Length up to which slots for tables are kept between reads. The tables of some 50 000 chunks fit."""
_FIRST_SLOT_NBYTES = 256 * 1024
"""Length of a slot for encoded bytes until a read needs more, because pinning 64 MiB takes some 20 ms."""
_N_FURTHER_TABLES = 2
"""Number of slots that the rings of tables and of receipts have besides those of the `n_batches` batches under way: one
for the parameters of a read, and one for the batch that is being staged."""


def pinned_nbytes(options: ResourceOptions) -> int:
    """Return the largest number of bytes of pinned memory that a workspace keeps."""
    rings_nbytes = 2 * (options.n_batches + _N_FURTHER_TABLES) * _KEPT_TABLE_NBYTES  # tables and receipts
    return options.n_slots * options.slot_nbytes + rings_nbytes


def scratch_nbytes(options: ResourceOptions, device_nbytes: int) -> int:
    """Return the bytes of device memory that the batches of a read may use besides its result.

    If the options do not set it, the reads that run at once share three quarters of `device_nbytes`, all memory of the
    device; a quarter is left for results. The memory that is free now would be a poor measure: a pool may hold nearly
    everything, and other threads may be reading.
    """
    return options.scratch_nbytes or device_nbytes * 3 // 4 // options.n_reads


def _new_table_ring(api: DeviceApi, options: ResourceOptions) -> PinnedRing:
    """Return the ring of pinned slots for tables, or for receipts."""
    n_slots = options.n_batches + _N_FURTHER_TABLES
    return PinnedRing(api, n_slots, TABLE_NBYTES, kept_nbytes=_KEPT_TABLE_NBYTES)


class Workspace:
    """Streams and memory of one read at a time on one device.

    Parameters
    ----------
    api : DeviceApi
        Device.
    options : ResourceOptions
        Numbers and lengths of slots, batches and scratch memory.
    shortage : Shortage, optional
        Limit of a batch's memory after an allocation has failed, shared by the reads of a device. By default, this
        workspace has its own.
    is_own_consumer : bool
        Whether results are used on the `copy` stream alone, as in self-checks, rather than by an array library on its
        current stream.
    """

    def __init__(
        self,
        api: DeviceApi,
        options: ResourceOptions,
        *,
        shortage: Shortage | None = None,
        is_own_consumer: bool = False,
    ) -> None:
        self.api = api
        self.options = options
        self.shortage = shortage or Shortage()
        self.scratch_nbytes = scratch_nbytes(options, api.memory_nbytes()[1])
        """Bytes of device memory that the batches of a read may use besides results."""
        self.copy = api.stream()
        """Stream of uploads, and of the results of a workspace that is its own consumer."""
        self._consumer = self.copy if is_own_consumer else None
        self.batch_streams = tuple(api.stream() for _ in range(options.n_batches))
        """Streams that decode batches."""
        first_nbytes = min(_FIRST_SLOT_NBYTES, options.slot_nbytes)
        self.slots = PinnedRing(api, options.n_slots, first_nbytes, full_nbytes=options.slot_nbytes)
        """Pinned memory for encoded bytes."""
        self.tables = _new_table_ring(api, options)
        """Pinned memory for tables of pointers and sizes that are uploaded."""
        self.receipts = _new_table_ring(api, options)
        """Pinned memory for statuses and actual sizes that are downloaded."""
        self._rings = self.slots, self.tables, self.receipts
        idle_stream = api.stream()  # gets no work: memory that is freed on it can be reused without a wait
        self.device_slots = WorkspaceMemory(api, idle_stream, kept_nbytes=options.n_slots * options.slot_nbytes)
        """Device memory for encoded bytes, borrowed on the `copy` stream."""
        self.device_tables = WorkspaceMemory(api, idle_stream)
        """Device memory for tables."""
        self.scratch = WorkspaceMemory(api, idle_stream)
        """Device memory for what is neither encoded nor in the result."""
        self._memories = self.device_slots, self.device_tables, self.scratch
        self._outputs: list[Any] = []
        """Arrays of the current read that streams may still write to, kept alive here until the read ends."""
        self._is_clean = True
        """Whether no read is under way, and the last one has left nothing behind."""
        self._was_interrupted = False
        """Whether a signal has ended a read since the last cleaning, so that its helper threads may still run."""

    def new_result(self, shape: tuple[int, ...], dtype: np.dtype[Any], streams: Sequence[Stream]) -> Any:
        """Return an uninitialised device array that each of `streams` may write to without a further wait.

        The consumer, which is the library that uses the array, may use it once the host has waited for `streams`. When
        the array is dropped, its memory is freed on the consumer's stream, after all work that was enqueued there
        before.
        """
        consumer = self._consumer or self.api.consumer_stream()
        nbytes = max(1, math.prod(shape) * dtype.itemsize)  # memory of 0 bytes would have no address of its own
        memory = self.api.allocate(nbytes, streams[0])
        array = self.api.array_in(memory, shape, dtype, ResultOwner(memory, consumer))
        self._outputs.append(array)
        self.order(streams[0], streams[1:])  # the others wait until the memory is allocated
        return array

    def accept_output(self, array: Any, streams: Sequence[Stream]) -> None:
        """Let `streams` write to an array of the consumer, after what the consumer's stream has been given so far."""
        self._outputs.append(array)
        self.order(self.api.consumer_stream(), streams)

    def order(self, before: Stream, streams: Sequence[Stream]) -> None:
        """Let `streams` wait for what the stream `before` has been given so far."""
        event = self.api.event()
        self.api.record(event, before)
        for stream in streams:
            self.api.wait(stream, event)

    def borrow_slot(self, nbytes: int) -> Slot:
        """Return a slot for encoded bytes. Blocks until the next slot of the ring is released.

        The time is counted as waiting. `tables` and `receipts` need no such method: they never block, because they have
        more slots than there are batches under way.
        """
        with counters.stage("wait"):
            return self.slots.borrow(nbytes)

    def take_back(self, memory: DeviceMemory) -> None:
        """Take borrowed device memory back, for later reads. The device must be done with it."""
        for owner in self._memories:
            if owner.take_back(memory):
                return

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Enqueue a copy of pinned host memory to the device; `data` must not change until it is done."""
        self.api.upload(to, data, stream)
        counters.add(copied_nbytes=data.nbytes)

    def wait_for(self, event: Event) -> None:
        """Block until `event`, as it was last recorded, has been reached."""
        with counters.stage("wait"):
            self.api.synchronize_event(event)

    def wait_until_idle(self) -> None:
        """Block until all streams that reads use are idle."""
        for stream in (self.copy, *self.batch_streams):
            self.api.synchronize(stream)

    def free_all(self, keep: Collection[DeviceMemory] = ()) -> None:
        """Give all device memory, borrowed or idle, back to the pool, except `keep`. All streams must be idle."""
        for memory in self._memories:
            memory.take_back_all(keep)
            memory.free_idle()

    def run[Result](self, read: Callable[[Workspace], Result]) -> Result:
        """Return what `read` returns for this workspace, which no other read uses meanwhile.

        If `read` fails, its memory is freed once the streams no longer write to it. If a signal interrupts the freeing,
        the next call frees the memory before it reads.
        """
        try:
            self._clean()
            self._is_clean = False
            result = read(self)
            self._outputs.clear()
            for memory in self._memories:
                memory.free_idle(memory.kept_nbytes)
            self._is_clean = True
        finally:
            if not self._is_clean:
                # What signals raise, such as KeyboardInterrupt, is no `Exception`.
                self._was_interrupted |= not isinstance(sys.exception(), Exception)
            self._clean()
        return result

    def _clean(self) -> None:
        """Free what an earlier read has left behind, and rewind the rings, so that a read may begin."""
        if not self._is_clean:
            self.wait_until_idle()
            self.free_all()
            self._outputs.clear()
            if self._was_interrupted:  # helper threads that were left behind may still write to slots
                for ring in self._rings:
                    ring.drop()
            self._is_clean = True
            self._was_interrupted = False
        for ring in self._rings:
            ring.rewind()

    def trim(self) -> None:
        """Free the device memory that is kept for the next read."""
        for memory in self._memories:
            memory.free_idle()

    def prepare(self) -> None:
        """Allocate all pinned memory now."""
        # `fill` replaces slots that are too short. After an interrupted cleaning, streams may still copy from them, so
        # clean first.
        self._clean()
        for ring in self._rings:
            ring.fill()

    def close(self) -> None:
        """Free everything; a later read allocates it again."""
        self.wait_until_idle()
        self.free_all()
        self._outputs.clear()
        for ring in self._rings:
            ring.drop()
