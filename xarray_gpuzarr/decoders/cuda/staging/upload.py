"""Bytes on their way to the device: a pinned slot that many threads fill, and memory for what does not fit the slot.

Bytes of an upload have positions: from 0 in the slot, and from a large constant in memory on the heap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceMemory
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import aligned
from xarray_gpuzarr.process.host_memory import copy_bytes

_HEAP_START = 1 << 48
"""First position outside the slot."""


class Upload:
    """Bytes that go to the device together: a pinned slot, and runs of heap memory.

    On the heap are bytes that do not fit into the slot, and chunks that the host has decoded. The slot has room for
    `nbytes` bytes, or for those of the option `slot_nbytes` if they are fewer.
    """

    def __init__(self, workspace: Workspace, nbytes: int) -> None:
        self._workspace = workspace
        self._slot = workspace.borrow_slot(min(nbytes, workspace.options.slot_nbytes))
        self._slot_view = memoryview(self._slot.array)
        self._used_nbytes = 0
        self._heap: list[memoryview] = []
        self._heap_nbytes = 0
        self._lock = threading.Lock()

    def fits(self, nbytes: int) -> bool:
        """Whether the slot has room for `nbytes` bytes. Once this is False, it stays False for the same length."""
        return self._used_nbytes + nbytes <= len(self._slot_view)

    def allocate(self, nbytes: int) -> tuple[int, memoryview]:
        """Set memory aside, in the slot if it has room, otherwise on the heap; return its position and the memory."""
        with self._lock:
            first = self._used_nbytes
            end = first + nbytes
            if end <= len(self._slot_view):
                self._used_nbytes = aligned(end)
                return first, self._slot_view[first:end]
        data = memoryview(bytearray(nbytes))
        return self.append(data), data

    def append(self, data: memoryview) -> int:
        """Add bytes that stay outside the slot, without copying them; return their position."""
        with self._lock:
            first = _HEAP_START + self._heap_nbytes
            self._heap.append(data)
            self._heap_nbytes += aligned(len(data))
            return first

    def arrays(self) -> Iterator[tuple[Bytes, int]]:
        """Yield each run of memory, and the position of its first byte."""
        yield self._slot.array[: self._used_nbytes], 0
        first = _HEAP_START
        for data in self._heap:
            yield np.frombuffer(data, np.uint8), first
            first += aligned(len(data))

    def view(self, start: int, nbytes: int) -> memoryview:
        """Return the bytes at a position, which lie in one run of memory."""
        if start < _HEAP_START:
            return self._slot_view[start : start + nbytes]
        for data, first in self.arrays():
            if first <= start < first + max(1, len(data)):  # a run without bytes has a position, too
                return memoryview(data)[start - first :][:nbytes]
        raise IndexError(start)

    def send(self, start: Rows) -> tuple[list[DeviceMemory], npt.NDArray[np.uint64]]:
        """Copy everything to the device on the workspace's `copy` stream.

        Returns the device memory, and the address there of each position in `start`, shape (n,). The address for the
        position -1 is meaningless.
        """
        copy = self._workspace.copy
        memories: list[DeviceMemory] = []
        slot_address = 0
        if self._used_nbytes:  # an unused slot need not be released: no work of the device has to end first
            memory = self._workspace.device_slots.borrow(self._used_nbytes, copy)
            memories.append(memory)
            self._workspace.upload(memory.address, self._slot.array[: self._used_nbytes], copy)
            self._slot.release_after(copy)
            slot_address = memory.address
        address = (start + slot_address).view(np.uint64)
        if self._heap:
            memory = self._workspace.device_slots.borrow(self._heap_nbytes, copy)
            memories.append(memory)
            upload_pageable(self._workspace, memory.address, self._heap)
            on_heap = start >= _HEAP_START
            address[on_heap] = start[on_heap] - _HEAP_START + memory.address
        return memories, address


class Destination:
    """Memory of an upload for the answer to one request.

    It is set aside beforehand (`view`), or once the length of the answer is known.
    """

    __slots__ = ("_upload", "_view", "first", "nbytes")

    def __init__(self, upload: Upload, view: memoryview | None = None) -> None:
        self._upload = upload
        self._view = view
        self.first = -1
        """Position of an answer for which no memory was set aside beforehand; -1 until there is an answer."""
        self.nbytes = 0
        """Length in bytes of the same answer; 0 until there is one."""

    def __call__(self, nbytes: int) -> memoryview:
        """Return the memory for an answer of `nbytes` bytes."""
        if self._view is None:
            self.first, self._view = self._upload.allocate(nbytes)
            self.nbytes = nbytes
        return self._view

    def keep(self, data: memoryview) -> None:
        """Store an answer: bytes in this memory, in which case nothing is left to do, or in memory of the source."""
        if self._view is None and not self._upload.fits(len(data)):  # the source's memory becomes part of the upload
            self.first = self._upload.append(data)
            self.nbytes = len(data)
            return
        view = self(len(data))
        if data is not view:
            copy_bytes(data, view)


def download_pageable(workspace: Workspace, start: int, nbytes: int) -> Bytes:
    """Return a copy of device memory in ordinary host memory; blocks until it is complete.

    The copy is made on the workspace's `copy` stream, through a pinned slot.
    """
    copied = np.empty(nbytes, np.uint8)
    for first in range(0, nbytes, workspace.options.slot_nbytes):
        part = copied[first : first + workspace.options.slot_nbytes]
        slot = workspace.borrow_slot(len(part))
        workspace.api.download(slot.array[: len(part)], Address(start + first), workspace.copy)
        workspace.api.synchronize(workspace.copy)
        part[:] = slot.array[: len(part)]
        slot.release_after(workspace.copy)
    return copied


def upload_pageable(workspace: Workspace, address: int, runs: Sequence[memoryview]) -> None:
    """Copy runs of ordinary host memory to the device, through pinned slots, on the workspace's `copy` stream.

    The first run goes to `address`, and each of the others to the next multiple of 16 bytes after the one before.
    """
    for run in runs:
        source = np.frombuffer(run, np.uint8)
        for first in range(0, len(source), workspace.options.slot_nbytes):
            part = source[first : first + workspace.options.slot_nbytes]
            slot = workspace.borrow_slot(len(part))
            slot.array[: len(part)] = part
            workspace.upload(Address(address + first), slot.array[: len(part)], workspace.copy)
            slot.release_after(workspace.copy)
        address += aligned(len(source))
