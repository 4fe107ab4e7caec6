"""Pointer and size columns of a batch: packed side by side, sent up in one copy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from xarray_gpuzarr.cuda.api import Address, DeviceMemory
from xarray_gpuzarr.cuda.resources import Lane


class Tables:
    """Columns of 8-byte integers that one copy brings to the device."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[Any]] = []
        self._nbytes = 0

    def add(self, column: npt.NDArray[Any]) -> int:
        """Take in a column of 8-byte integers; return its offset in bytes."""
        offset = self._nbytes
        self._columns.append(column)
        self._nbytes += column.nbytes
        return offset

    def send(self, lane: Lane) -> DeviceMemory:
        """Copy all columns to new device memory on the lane's `work` stream."""
        slot = lane.tables.lend(self._nbytes)
        at = 0
        for column in self._columns:
            slot.array[at : at + column.nbytes].view(column.dtype).reshape(column.shape)[...] = column
            at += column.nbytes
        memory = lane.allocate(self._nbytes, lane.work)
        lane.upload(memory.address, slot.array[: self._nbytes], lane.work)
        slot.give_back(lane.work)
        return memory


def offset_by(memory: DeviceMemory, nbytes: int) -> Address:
    """Return the address `nbytes` bytes into device memory."""
    return Address(memory.address + nbytes)
