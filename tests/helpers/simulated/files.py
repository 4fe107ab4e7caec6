"""Files that the simulated device reads by itself: late, on threads that no stream waits for unless it is told to."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from helpers.simulated.streams import Point, SimulatedStream, touch_of
from xarray_gpuzarr.errors import StoreReadError


class SimulatedFile:
    """One file, open for reads into simulated device memory."""

    def __init__(self, device: Any, path: str) -> None:
        self._device = device
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as err:
            raise StoreReadError(f"cannot read {path}", tried="open", found=str(err), do="look") from err
        self._reads: list[SimulatedFileRead] = []

    def read(self, to: int, nbytes: int, offset: int, stream: SimulatedStream) -> SimulatedFileRead:
        device = self._device
        with device._border.call("read_file", stream):
            name = f"read of {nbytes} bytes at {offset} of {self._path}"
            device._arena.find(to, nbytes, name)
            target = device._arena.view(to, nbytes)
            thread = device._scheduler.stream(0x7000_0000 + 0x10 * len(device._scheduler.streams))
            device._scheduler.hold(thread, device._scheduler.end_of(stream))
            read = SimulatedFileRead(device, nbytes)

            def run() -> None:
                data = np.frombuffer(os.pread(self._fd, nbytes, offset), np.uint8)
                target[: len(data)] = data
                read.n_read = len(data)

            device._scheduler.give(thread, name, run, touch_of(target, "write"))
            read.point = device._scheduler.end_of(thread)
            self._reads.append(read)
            return read

    def close(self) -> None:
        assert all(read.point.reached for read in self._reads), f"{self._path} is closed while it is read"
        os.close(self._fd)


class SimulatedFileRead:
    """A read that was started."""

    def __init__(self, device: Any, nbytes: int) -> None:
        self._device = device
        self.n_read = nbytes
        self.point: Point

    def finish(self) -> int:
        with self._device._border.call("finish_read") as ignored:
            if not ignored:
                self._device._scheduler.reach(self.point)
        return self.n_read
