"""Device memory of one contestant that works below the readers, all of it on one stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.device import Gpu
from xarray_gpuzarr.cuda.api import Address, Bytes, DeviceMemory

_STAGING_NBYTES = 16 << 20


class Workspace:
    """A stream, and memory on it that lives as long as this.

    Parameters
    ----------
    gpu : Gpu
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.api = gpu.api
        self.stream = gpu.api.stream()
        self._held: list[DeviceMemory] = []

    def empty(self, nbytes: int) -> Address:
        """Return uninitialised memory."""
        self._held.append(self.api.allocate(max(1, nbytes), self.stream))
        return self._held[-1].address

    def put(self, values: npt.NDArray[Any]) -> Address:
        """Return memory that holds the bytes of an array; blocks until they are there."""
        data: Bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        to = self.empty(data.nbytes)
        staged = self.api.allocate_pinned(max(1, min(data.nbytes, _STAGING_NBYTES))).array
        for first in range(0, data.nbytes, _STAGING_NBYTES):
            part = data[first : first + _STAGING_NBYTES]
            staged[: part.nbytes] = part
            self.api.upload(Address(to + first), staged[: part.nbytes], self.stream)
            self.api.synchronize(self.stream)
        return to

    def filled(self, nbytes: int, values: npt.NDArray[Any]) -> Address:
        """Return memory that holds the bytes of an array over and over; as many as were asked for."""
        to, done = self.empty(nbytes), min(nbytes, values.nbytes)
        self.gpu.copy_within(to, self.put(values), done, self.stream)
        while done < nbytes:
            more = min(done, nbytes - done)
            self.gpu.copy_within(Address(to + done), to, more, self.stream)
            done += more
        return to

    def get(self, start: Address, dtype: str, n: int) -> npt.NDArray[Any]:
        """Return an array that lies in device memory."""
        staged = self.api.allocate_pinned(max(1, n * np.dtype(dtype).itemsize)).array
        view = staged[: n * np.dtype(dtype).itemsize]
        self.api.download(view, start, self.stream)
        self.api.synchronize(self.stream)
        return view.view(dtype).copy()

    def close(self) -> None:
        """Give the memory back."""
        self.api.synchronize(self.stream)
        for memory in self._held:
            memory.free()
        self._held.clear()
