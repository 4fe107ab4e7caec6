"""Pinned host memory that is lent out in turn, and lent again only once the device is done with it."""

from __future__ import annotations

from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Stream


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
        Length of a slot at first, in bytes. One that is asked to be longer is replaced, by one that is half as long
        again at least: pinning memory takes milliseconds, and what is asked for may grow by a little each time.
    full_nbytes : int or None
        Length that slots grow to; only a longer request makes one longer.
    kept_nbytes : int or None
        Slots that have become longer are given back by `rewind`; None: none are.
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
