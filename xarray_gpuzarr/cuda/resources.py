"""What a thread keeps between reads on one device: two streams and rings of pinned slots.

Everything is written against `DeviceApi`, so that the simulator exercises it. Bytes go up on the `copy` stream and are
decoded on the `work` stream; events order the two. A pinned slot is lent out again only once the device has read it, or
has written it, to the end.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory, Stream
from xarray_gpuzarr.cuda.options import ResourceOptions
from xarray_gpuzarr.errors import OptionError


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
        Length of a slot; a slot that is asked to be longer is replaced by a longer one and stays so.
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
            slot = self._slots[at] = Slot(self._api, max(nbytes, self._nbytes))
        return slot

    def rewind(self) -> None:
        """Start again with the first slot, only while none is lent: a short read then uses the slots it had before."""
        self._next = 0


_TABLE_NBYTES = 256 * 1024
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
        self.tables = PinnedRing(api, MAX_BATCHES + 1, _TABLE_NBYTES)
        """For pointer and size tables on their way up."""
        self.receipts = PinnedRing(api, MAX_BATCHES + 1, _TABLE_NBYTES)
        """For statuses and actual sizes on their way down."""
        self._held: dict[int, DeviceMemory] = {}

    @cached_property
    def scratch_nbytes(self) -> int:
        """Device memory that one batch of this thread may use besides results."""
        return self.options.scratch_nbytes or self.api.memory_nbytes()[0] // 4

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> Any:
        """Return an uninitialised device array that `stream` may write to from now on.

        Its memory belongs to the caller's stream, so that it is safe to free there.
        """
        consumer, ready = self.api.consumer_stream(), self.api.event()
        array = self.api.empty(shape, dtype, consumer)
        self.api.record(ready, consumer)
        self.api.wait(stream, ready)
        return array

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return device memory for `stream`, to be given back by `free`, or when a read fails."""
        memory = self.api.allocate(max(1, nbytes), stream)
        self._held[memory.address] = memory
        return memory

    def free(self, memory: DeviceMemory) -> None:
        """Give device memory back in the order of its stream."""
        del self._held[memory.address]
        memory.free()

    def settle(self) -> None:
        """Wait until both streams are idle."""
        self.api.synchronize(self.copy)
        self.api.synchronize(self.work)

    def free_all(self, but: Collection[DeviceMemory] = ()) -> None:
        """Give back everything that is held; only once both streams are idle."""
        kept = {m.address for m in but}
        for memory in [m for m in self._held.values() if m.address not in kept]:
            self.free(memory)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Clean up if the block raises: what the streams still write to must not be freed before they are idle."""
        for ring in (self.slots, self.tables, self.receipts):
            ring.rewind()
        try:
            yield
        except BaseException:
            self.settle()
            self.free_all()
            raise


class WorkerResources:
    """The lanes of all threads of this process on one device."""

    def __init__(self, api: DeviceApi, options: ResourceOptions) -> None:
        self.api = api
        self.options = options
        self._of_thread = threading.local()

    def lane(self) -> Lane:
        """Return the calling thread's lane, made when it is first asked for."""
        lane: Lane | None = getattr(self._of_thread, "lane", None)
        if lane is None:
            lane = self._of_thread.lane = Lane(self.api, self.options)
        return lane


_lock = threading.Lock()
_options: ResourceOptions | None = None


def resource_options() -> ResourceOptions:
    """Return the options in force: what `configure` set, else what the environment says."""
    global _options  # noqa: PLW0603  # one setting per process
    with _lock:
        if _options is None:
            _options = ResourceOptions.from_environment()
        return _options


def configure(*, share: bool = False, **options: object) -> ResourceOptions:
    """Set how much memory reads on a GPU may use, for this process and from the next read on.

    Parameters
    ----------
    share : bool
        Also make the memory resource of reads RMM's current one on the current device, and let CuPy allocate through
        RMM: one pool for reads and for what is computed from them. Needs a GPU.
    **options
        Fields of `ResourceOptions`; those left out go back to the environment's value or the default.

    Returns
    -------
    ResourceOptions
        What is in force now.

    Raises
    ------
    OptionError
        An unknown name or an unusable value.
    """
    global _options  # noqa: PLW0603  # one setting per process
    known = [f.name for f in fields(ResourceOptions)]
    if unknown := set(options) - set(known):
        raise OptionError(
            "unknown resource option",
            tried=", ".join(sorted(unknown)),
            found="the known ones are " + ", ".join(known),
            do="give one of them",
        )
    changed = replace(ResourceOptions.from_environment(), **options)  # type: ignore[arg-type]  # checked by the class
    with _lock:
        _options = changed
    if share:
        device = importlib.import_module("xarray_gpuzarr.cuda.device")  # imports CuPy and RMM
        device.native_device().share()
    return changed
