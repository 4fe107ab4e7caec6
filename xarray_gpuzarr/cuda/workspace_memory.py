"""Memory that a workspace owns and reuses, so that no read waits for an allocation or for other reads.

Pinned host memory is reused once the device is done with it. Device memory is reused once the host, too, knows that the
device is done with it. No memory is given back to a pool while the device may still use it: the pool may hand it on to
another stream at once, and would then make that stream wait.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from operator import attrgetter

from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory, Stream

_ROUNDED_NBYTES = 16 * 1024**2
"""Length in bytes from which on requests are rounded up, so that the memory also fits slightly longer ones later."""


class WorkspaceMemory:
    """Device memory of a workspace for one purpose, such as tables. It is lent, and kept for later requests.

    Parameters
    ----------
    api : DeviceApi
        Device.
    idle_stream : Stream
        Stream without work. Memory that the device is done with is freed on it, so that its next owner waits for
        nothing.
    kept_nbytes : int
        Most bytes of idle memory that the workspace keeps between reads; see `Workspace.run`.
    """

    def __init__(self, api: DeviceApi, idle_stream: Stream, kept_nbytes: int = 0) -> None:
        self._api = api
        self._idle_stream = idle_stream
        self.kept_nbytes = kept_nbytes
        self._borrowed: dict[int, DeviceMemory] = {}
        """Memory in use, by its address."""
        self._idle: list[DeviceMemory] = []
        """Unused memory, the shortest first."""

    def borrow(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return at least `nbytes` bytes for use on `stream` until `take_back`. Raises as `DeviceApi.allocate` does."""
        for memory in self._idle:
            if memory.nbytes >= nbytes:
                self._idle.remove(memory)
                break
        else:
            self.free_idle()  # all idle memory is too short; its bytes may be needed for this request
            # Round long requests up by at most a sixteenth, to a multiple of a power of two.
            step = 1 if nbytes < _ROUNDED_NBYTES else 1 << (nbytes.bit_length() - 5)
            allocated_nbytes = max(1, -(-nbytes // step) * step)  # memory of 0 bytes has no address of its own
            memory = self._api.allocate(allocated_nbytes, stream)
        self._borrowed[memory.address] = memory
        return memory

    def take_back(self, memory: DeviceMemory) -> bool:
        """Take memory back if it was borrowed here; return whether it was. The device must be done with it."""
        borrowed = self._borrowed.pop(memory.address, None)
        if borrowed is not None:
            insort(self._idle, borrowed, key=attrgetter("nbytes"))
        return borrowed is not None

    def take_back_all(self, keep: Collection[DeviceMemory] = ()) -> None:
        """Take all borrowed memory back, except `keep`. The workspace's streams must be idle."""
        kept_addresses = {memory.address for memory in keep}
        for memory in [m for m in self._borrowed.values() if m.address not in kept_addresses]:
            self.take_back(memory)

    def free_idle(self, kept_nbytes: int = 0) -> None:
        """Free idle memory. Keep as many of the shortest pieces as have at most `kept_nbytes` bytes together."""
        idle, self._idle = self._idle, []
        for memory in idle:
            if memory.nbytes <= kept_nbytes:
                self._idle.append(memory)
                kept_nbytes -= memory.nbytes
            else:
                memory.free_behind(self._idle_stream)


def max_allocated_nbytes(nbytes: int) -> int:
    """Return the most bytes that a `WorkspaceMemory` allocates for one or more requests of `nbytes` bytes in all."""
    return nbytes if nbytes < _ROUNDED_NBYTES else nbytes + nbytes // 16


_N_LIMITED_READS = 64
"""Number of reads for which a limit holds after an allocation has failed."""


class Shortage:
    """Limit of the device memory of a batch after an allocation has failed; shared by the reads of a device.

    Memory may become free again without notice. The limit therefore ends after some reads, and the next one tries full
    batches again.
    """

    def __init__(self) -> None:
        self._limit_nbytes = 0
        self._n_reads = 0
        """Number of reads for which the limit still holds."""

    def set_limit(self, nbytes: int) -> None:
        """Let the batches of the next reads take at most `nbytes` bytes each."""
        self._limit_nbytes = nbytes
        self._n_reads = _N_LIMITED_READS

    def next_limit_nbytes(self) -> int | None:
        """Count one more read, and return the limit of its batches in bytes; None if only its options limit them."""
        if self._n_reads <= 0:  # below 0 if two threads counted the last read at once
            return None
        self._n_reads -= 1
        return self._limit_nbytes


class ResultOwner:
    """Keeps the memory of a result until the result is garbage collected.

    The memory was allocated on a stream of the workspace, so that decoding can begin at once. Results are used on the
    consumer's stream, so the memory is freed behind all work that the consumer's stream has been given before.
    """

    __slots__ = ("_consumer", "_memory")

    def __init__(self, memory: DeviceMemory, consumer: Stream) -> None:
        self._memory = memory
        self._consumer = consumer

    def __del__(self) -> None:
        self._memory.free_behind(self._consumer)


class Slot:
    """Pinned host memory of a `PinnedRing`, borrowed for one copy after another."""

    def __init__(self, api: DeviceApi, nbytes: int) -> None:
        self._api = api
        self._memory = api.allocate_pinned(nbytes)
        self.array: Bytes = self._memory.array
        """The whole slot, writable."""
        self._released = api.event()

    def release_after(self, stream: Stream) -> None:
        """Let the slot be borrowed again once `stream` has done the work that it has been given so far."""
        self._api.record(self._released, stream)

    def wait_until_released(self) -> None:
        """Block until the slot may be borrowed again."""
        self._api.synchronize_event(self._released)


class PinnedRing:
    """A fixed number of slots of pinned host memory, borrowed in turn.

    A slot that is too short for a request is replaced by one that is at least half as long again: pinning memory takes
    milliseconds, and requests may grow by a little each time.

    Parameters
    ----------
    api : DeviceApi
        Device.
    n_slots : int
        Number of slots.
    nbytes : int
        Length of each slot at first, in bytes.
    full_nbytes : int, optional
        Length to which `fill` allocates slots. Slots are longer only if that much is requested.
    kept_nbytes : int, optional
        Length above which `rewind` frees a slot; by default it frees none.
    """

    def __init__(
        self,
        api: DeviceApi,
        n_slots: int,
        nbytes: int,
        full_nbytes: int | None = None,
        *,
        kept_nbytes: int | None = None,
    ) -> None:
        self._api = api
        self._nbytes = nbytes
        self._full_nbytes = full_nbytes
        self._kept_nbytes = kept_nbytes
        self._slots: list[Slot | None] = [None] * n_slots
        self._next = 0

    def borrow(self, nbytes: int) -> Slot:
        """Return the slot that was borrowed longest ago, with at least `nbytes` bytes; blocks until it is released."""
        index = self._next
        self._next = (index + 1) % len(self._slots)
        slot = self._slots[index]
        if slot is not None:
            slot.wait_until_released()
        if slot is None or len(slot.array) < nbytes:
            grown_nbytes = self._nbytes if slot is None else max(self._nbytes, len(slot.array) * 3 // 2)
            if self._full_nbytes is not None:
                grown_nbytes = min(grown_nbytes, self._full_nbytes)
            self._slots[index] = slot = None  # frees the memory before more is allocated
            slot = self._slots[index] = Slot(self._api, max(nbytes, grown_nbytes))
        return slot

    def fill(self) -> None:
        """Allocate all slots at full length, so that no read has to."""
        nbytes = self._full_nbytes or self._nbytes
        for index, slot in enumerate(self._slots):
            if slot is None or len(slot.array) < nbytes:
                self._slots[index] = None  # frees the memory before more is allocated
                self._slots[index] = Slot(self._api, nbytes)

    def drop(self) -> None:
        """Forget all slots. No copy may be under way. A thread that still has a slot keeps its memory alive."""
        self._slots = [None] * len(self._slots)

    def rewind(self) -> None:
        """Start again with the first slot, so that short reads use the same slots. Free slots above `kept_nbytes`.

        No slot may be borrowed.
        """
        self._next = 0
        for index, slot in enumerate(self._slots):
            if self._kept_nbytes is not None and slot is not None and len(slot.array) > self._kept_nbytes:
                slot.wait_until_released()
                self._slots[index] = None
