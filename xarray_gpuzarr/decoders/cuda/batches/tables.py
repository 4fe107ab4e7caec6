"""Pointer and size columns of a batch: packed side by side, sent up in one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.resources import Workspace


class Tables:
    """Columns of 8-byte integers that one copy brings to the device."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.uint64]] = []
        self._n_words = 0

    def add(self, *columns: npt.NDArray[Any]) -> int:
        """Take in columns of 8-byte integers, to lie side by side; return the offset of the first in bytes."""
        offset = 8 * self._n_words
        for column in columns:
            if column.size:
                self._columns.append(column.reshape(-1).view(np.uint64))
                self._n_words += column.size
        return offset

    def send(self, workspace: Workspace, stream: Stream) -> DeviceMemory:
        """Copy all columns to device memory of the workspace on a stream; return it."""
        nbytes = 8 * self._n_words
        slot = workspace.tables.lend(nbytes)
        packed = slot.array[:nbytes]
        np.concatenate(self._columns, out=packed.view(np.uint64))
        memory = workspace.device_tables.lend(nbytes, stream)
        workspace.upload(memory.address, packed, stream)
        slot.give_back(stream)
        return memory
