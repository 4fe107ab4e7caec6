"""Memory that a workspace owns: lent for one use after another, so no read waits for the pool, or for others.

Pinned host memory is lent again once the device is done with it, device memory once the host has seen that. A pool may
take memory that another stream has just freed, and lets the new owner wait for that stream. So nothing is given back to
it while work is under way.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from operator import attrgetter

from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory, Stream

_ROUNDED_NBYTES = 16 * 1024**2
"""Memory from this length on is taken a little longer than asked for, so that it fits what the next use asks for."""


class WorkspaceMemory:
    """Device memory for one purpose."""

    def __init__(self, api: DeviceApi, quiet: Stream, kept_nbytes: int = 0) -> None:
        self._api = api
        self._quiet = quiet
        """Runs nothing: memory that the device is done with is freed on it: whoever takes it waits for nothing."""
        self.kept_nbytes = kept_nbytes
        """Bytes that stay with the workspace when nothing is read."""
        self._lent: dict[int, DeviceMemory] = {}
        self._idle: list[DeviceMemory] = []
        """The shortest first."""

    def lend(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return memory for `stream`, to be given back by `give_back`; raises as `DeviceApi.allocate`."""
        for memory in self._idle:
            if memory.nbytes >= nbytes:
                self._idle.remove(memory)
                break
        else:
            self.free_idle()  # all too short: outgrown
            # Up to a sixteenth of the power of two below.
            step = 1 if nbytes < _ROUNDED_NBYTES else 1 << (nbytes.bit_length() - 5)
            memory = self._api.allocate(max(1, -(-nbytes // step) * step), stream)
        self._lent[memory.address] = memory
        return memory

    def give_back(self, memory: DeviceMemory) -> bool:
        """Take memory back, if it was lent from here; only once the device has done everything with it."""
        lent = self._lent.pop(memory.address, None)
        if lent is not None:
            insort(self._idle, lent, key=attrgetter("nbytes"))
        return lent is not None

    def take_back_all(self, but: Collection[DeviceMemory] = ()) -> None:
        """Take everything back that is lent; only once the workspace's streams are idle."""
        excepted = {memory.address for memory in but}
        for memory in [m for m in self._lent.values() if m.address not in excepted]:
            self.give_back(memory)

    def free_idle(self, kept_nbytes: int = 0) -> None:
        """Free what is not lent but for so many bytes, the longest memory first."""
        idle, self._idle = self._idle, []
        for memory in idle:
            if memory.nbytes <= kept_nbytes:
                self._idle.append(memory)
                kept_nbytes -= memory.nbytes
            else:
                memory.free_behind(self._quiet)


_N_SHORT_READS = 64


class Shortage:
    """How much device memory a batch may take since a longer one found none; shared by the reads of a device.

    Memory may come back, and who gives it back says nothing: after some reads, one tries full batches again.
    """

    def __init__(self) -> None:
        self._most_nbytes = 0
        self._n_reads = 0
        """Reads that are still to do with so little."""

    def note(self, most_nbytes: int) -> None:
        """Let the next reads have batches that take no more than so much."""
        self._most_nbytes, self._n_reads = most_nbytes, _N_SHORT_READS

    def most_nbytes(self) -> int | None:
        """Return how much a batch of the next read may take; None: as much as its options say."""
        if not self._n_reads:
            return None
        self._n_reads -= 1
        return self._most_nbytes


class ResultOwner:
    """Keeps a result's memory until nobody knows the result any more.

    It was taken on a stream of the workspace, for decoding to begin at once. Whoever uses the result does so on the
    consumer's stream, so it is given back behind what that stream has been given by then.
    """

    __slots__ = ("_consumer", "_memory")

    def __init__(self, memory: DeviceMemory, consumer: Stream) -> None:
        self._memory = memory
        self._consumer = consumer

    def __del__(self) -> None:
        self._memory.free_behind(self._consumer)


def most_taken(nbytes: int) -> int:
    """Return how much memory is taken at most for uses that need so many bytes together."""
    return nbytes if nbytes < _ROUNDED_NBYTES else nbytes + nbytes // 16


class Slot:
    """Pinned memory that is lent out and comes back."""

    def __init__(self, api: DeviceApi, nbytes: int) -> None:
        self._api = api
        self._memory = api.allocate_pinned(nbytes)
        self.array: Bytes = self._memory.array
        """The whole slot, writable."""
        self._returned = api.event()

    def give_back(self, stream: Stream) -> None:
        """Let the slot be lent out again once `stream` has done what it has been given so far."""
        self._api.record(self._returned, stream)

    def settle(self) -> None:
        """Block until the slot's last user is done with it."""
        self._api.synchronize_event(self._returned)


class PinnedRing:
    """A fixed number of slots, lent out in turn, each of `nbytes` at first.

    One that is asked to be longer is replaced, by one that is half as long again at least: pinning memory takes
    milliseconds, and what is asked for may grow by a little each time. Slots grow to `full_nbytes`; only a longer
    request makes one longer. Those that are longer than `kept_nbytes` are given back by `rewind`; None: none are.
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

    def lend(self, nbytes: int) -> Slot:
        """Return the slot that has rested longest, at least `nbytes` long; blocks until it has been given back."""
        at, self._next = self._next, (self._next + 1) % len(self._slots)
        slot = self._slots[at]
        if slot is not None:
            slot.settle()
        if slot is None or len(slot.array) < nbytes:
            grown = self._nbytes if slot is None else max(self._nbytes, len(slot.array) * 3 // 2)
            if self._full_nbytes is not None:
                grown = min(grown, self._full_nbytes)
            self._slots[at] = slot = None  # given back before more is taken
            slot = self._slots[at] = Slot(self._api, max(nbytes, grown))
        return slot

    def fill(self) -> None:
        """Take the memory of all slots now, at full length, so that no read has to."""
        nbytes = self._full_nbytes or self._nbytes
        for at, slot in enumerate(self._slots):
            if slot is None or len(slot.array) < nbytes:
                self._slots[at] = None
                self._slots[at] = Slot(self._api, nbytes)

    def drop(self) -> None:
        """Give the memory of all slots back, only while none is lent and nothing is copied."""
        self._slots = [None] * len(self._slots)

    def rewind(self) -> None:
        """Start again with the first slot, only while none is lent: a short read then uses the slots it had before."""
        self._next = 0
        for at, slot in enumerate(self._slots):
            if self._kept_nbytes is not None and slot is not None and len(slot.array) > self._kept_nbytes:
                slot.settle()
                self._slots[at] = None
