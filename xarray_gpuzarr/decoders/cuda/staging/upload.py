"""Bytes on their way to the device: a pinned slot that many threads fill, and what does not fit it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceMemory
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import aligned
from xarray_gpuzarr.decoders.cuda.batches.streams import Rows
from xarray_gpuzarr.process.host_memory import copy_bytes

_APART = 1 << 48
"""Positions from here on lie outside the slot."""


class Upload:
    """Bytes that go to the device together: a pinned slot, and what did not fit or came decoded.

    The slot should have room for `nbytes`; one of full length may have less.
    """

    def __init__(self, workspace: Workspace, nbytes: int) -> None:
        self._workspace = workspace
        self._slot = workspace.lend_slot(min(nbytes, workspace.options.slot_nbytes))
        self._slot_view = memoryview(self._slot.array)
        self._used = 0
        self._apart: list[memoryview] = []
        self._apart_nbytes = 0
        self._lock = threading.Lock()

    def fits(self, nbytes: int) -> bool:
        """Say whether the slot has room for so much; once it has not, it never will."""
        return self._used + nbytes <= len(self._slot_view)

    def allocate(self, nbytes: int) -> tuple[int, memoryview]:
        """Set memory aside, of the slot if there is room, else of the heap; return its position and itself."""
        with self._lock:
            first, end = self._used, self._used + nbytes
            if end <= len(self._slot_view):
                self._used = aligned(end)
                return first, self._slot_view[first:end]
        data = memoryview(bytearray(nbytes))
        return self.append(data), data

    def append(self, data: memoryview) -> int:
        """Take in bytes that stay outside the slot; return their position."""
        with self._lock:
            first = _APART + self._apart_nbytes
            self._apart.append(data)
            self._apart_nbytes += aligned(len(data))
            return first

    def arrays(self) -> Iterator[tuple[Bytes, int]]:
        """Yield runs of memory and the position of their first byte."""
        yield self._slot.array[: self._used], 0
        first = _APART
        for data in self._apart:
            yield np.frombuffer(data, np.uint8), first
            first += aligned(len(data))

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return bytes of one run of memory."""
        if start < _APART:
            return self._slot_view[start : start + nbytes]
        data, first = next((d, f) for d, f in self.arrays() if f <= start < f + max(1, len(d)))
        return memoryview(data)[start - first :][:nbytes]

    def send(self, start: Rows) -> tuple[list[DeviceMemory], npt.NDArray[np.uint64]]:
        """Copy everything to the device; return the memory and the address of each position in `start`."""
        copy, memories, moved = self._workspace.copy, [], 0
        if self._used:
            memories.append(self._workspace.device_slots.lend(self._used, copy))
            self._workspace.upload(memories[-1].address, self._slot.array[: self._used], copy)
            self._slot.give_back(copy)
            moved = memories[-1].address
        address = (start + moved).view(np.uint64)
        if self._apart:
            memories.append(self._workspace.device_slots.lend(self._apart_nbytes, copy))
            upload_pageable(self._workspace, memories[-1].address, self._apart)
            apart = start >= _APART
            address[apart] = start[apart] - _APART + memories[-1].address
        return memories, address


class Destination:
    """Memory of an upload for one answer, set aside beforehand, or once the length of the answer is known."""

    __slots__ = ("_upload", "_view", "first", "nbytes")

    def __init__(self, upload: Upload, view: memoryview | None = None) -> None:
        self._upload = upload
        self._view = view
        self.first, self.nbytes = -1, 0
        """Position and length of an answer that had nothing set aside; -1 and 0 until it is there."""

    def __call__(self, nbytes: int) -> memoryview:
        """Return the memory."""
        if self._view is None:
            self.first, self._view = self._upload.allocate(nbytes)
            self.nbytes = nbytes
        return self._view

    def keep(self, data: memoryview) -> None:
        """Take in an answer, which lies in this memory or elsewhere."""
        if self._view is None and not self._upload.fits(len(data)):
            self.first, self.nbytes = self._upload.append(data), len(data)
            return
        view = self(len(data))
        if data is not view:
            copy_bytes(data, view)


def download_pageable(workspace: Workspace, start: int, nbytes: int) -> Bytes:
    """Return a copy of device memory in ordinary host memory, made on the `copy` stream; waits for it."""
    copied = np.empty(nbytes, np.uint8)
    for first in range(0, nbytes, workspace.options.slot_nbytes):
        part = copied[first : first + workspace.options.slot_nbytes]
        slot = workspace.lend_slot(len(part))
        workspace.api.download(slot.array[: len(part)], Address(start + first), workspace.copy)
        workspace.api.synchronize(workspace.copy)
        part[:] = slot.array[: len(part)]
        slot.give_back(workspace.copy)
    return copied


def upload_pageable(workspace: Workspace, to: int, runs: Sequence[memoryview]) -> None:
    """Copy runs of ordinary host memory to the device, each at a multiple of 16 bytes, through pinned slots."""
    for run in runs:
        source = np.frombuffer(run, np.uint8)
        for first in range(0, len(source), workspace.options.slot_nbytes):
            part = source[first : first + workspace.options.slot_nbytes]
            slot = workspace.lend_slot(len(part))
            slot.array[: len(part)] = part
            workspace.upload(Address(to + first), slot.array[: len(part)], workspace.copy)
            slot.give_back(workspace.copy)
        to += aligned(len(source))
