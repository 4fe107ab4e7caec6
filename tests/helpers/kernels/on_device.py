"""Runs the kernels' own tests on a device: takes the place of the memory in which those run them on the host.

All that a launch works on lies in one run of device memory. It is laid out on the host, goes up, and comes down whole;
whatever no kernel may write to must come back as it went.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers.kernels import memory
from helpers.kernels.memory import PATTERN, as_bytes
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Stream

_GUARD_NBYTES = 256


class Image:
    """A run of device memory, as long as one launch may need with guards, and what it is to hold."""

    def __init__(self, api: DeviceApi, capacity: int) -> None:
        self.api = api
        self.stream: Stream = api.stream()
        self._memory = api.allocate(capacity, self.stream)
        self._staged = api.allocate_pinned(capacity).array
        self._down = api.allocate_pinned(capacity).array
        self._written: list[slice] = []
        self._used = 0

    def cleared(self) -> Image:
        self._used = 0
        self._written = []
        return self

    def place(self, content: bytes | npt.NDArray[Any], offset: int = 0) -> Address:
        """Lay down bytes at an address that is `offset` modulo 256; no kernel may change them."""
        data = as_bytes(content)
        at = self._take(data.nbytes, offset)
        self._staged[at] = data
        return Address(self._memory.address + at.start)

    def reserve(self, nbytes: int, offset: int = 0, *, byte: int = PATTERN) -> Address:
        """Return room for a result."""
        at = self._take(nbytes, offset)
        self._staged[at] = byte
        self._written.append(at)
        return Address(self._memory.address + at.start)

    def fill(self, address: Address, data: npt.NDArray[Any]) -> None:
        first = address - self._memory.address
        self._staged[first : first + data.nbytes] = as_bytes(data)

    def run(self, launch: Callable[[DeviceApi, Stream], object]) -> None:
        used = slice(0, self._used)
        self.api.upload(self._memory.address, self._staged[used], self.stream)
        launch(self.api, self.stream)
        self.api.download(self._down[used], self._memory.address, self.stream)
        self.api.synchronize(self.stream)
        differ = self._staged[used] != self._down[used]
        for at in self._written:
            differ[at] = False
        assert not differ.any(), f"{differ.sum()} bytes were changed that do not belong to a result"

    def content(self, address: Address, nbytes: int) -> npt.NDArray[np.uint8]:
        first = address - self._memory.address
        return self._down[first : first + nbytes].copy()

    def close(self) -> None:
        self._memory.free()

    def _take(self, nbytes: int, offset: int) -> slice:
        first = -(-self._used // 256) * 256 + offset
        end = first + nbytes + _GUARD_NBYTES
        assert end <= len(self._staged), f"{end} bytes in one launch"
        self._staged[self._used : end] = PATTERN
        self._used = end
        return slice(first, first + nbytes)


def use(image: Image, patch: pytest.MonkeyPatch) -> None:
    """Let the tests of all kernels run them there."""
    patch.setattr(memory, "make", image.cleared)
