"""Memory for all that one launch of a kernel works on: of the host, unless a test takes launches to a device."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.kernels.on_host import HostLaunches

Bytes = npt.NDArray[np.uint8]

PATTERN = 0xA5
GUARD = 0 if os.environ.get("XARRAY_GPUZARR_SANITIZE") == "1" else 64
"""Bytes around a result that no kernel may touch; a sanitizer watches them better than we can."""

_poison = getattr(ctypes.CDLL(None), "__asan_poison_memory_region", None)
if _poison is not None:
    _poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def aligned(nbytes: int, offset: int = 0) -> Bytes:
    """Return memory whose address is `offset` modulo 256; a sanitizer takes what is around it for unallocated."""
    memory = np.empty(nbytes + 1024, np.uint8)  # NumPy keeps smaller blocks for reuse, poisoned as they are
    first = -memory.ctypes.data % 256 + offset
    for lo, hi in ((0, first), (first + nbytes, len(memory))):
        if _poison is not None:
            _poison(memory.ctypes.data + lo, hi - lo)
    return memory[first : first + nbytes]


def as_bytes(content: bytes | npt.NDArray[Any]) -> Bytes:
    """Return what lies in memory, as a flat array."""
    if isinstance(content, bytes):
        return np.frombuffer(content, np.uint8)
    return np.ascontiguousarray(content).reshape(-1).view(np.uint8)


def columns(rows: Sequence[tuple[int, ...]], n_columns: int) -> npt.NDArray[np.uint64]:
    """Return a table of words as kernels take it, a column after another."""
    return np.array(rows, np.uint64).reshape(-1, n_columns).T.copy()


class HostMemory:
    """Pieces of host memory, each by itself."""

    def __init__(self) -> None:
        self._pieces: dict[int, Bytes] = {}
        self._guards: list[Bytes] = []

    def place(self, content: bytes | npt.NDArray[Any], offset: int = 0) -> int:
        """Return an address that is `offset` modulo 256, where these bytes are; no kernel may change them."""
        data = as_bytes(content)
        return self._keep(aligned(len(data), offset), data)

    def reserve(self, nbytes: int, offset: int = 0, *, byte: int = PATTERN) -> int:
        """Return the address of room for a result, which is `offset` modulo 64."""
        memory = aligned(nbytes + 2 * GUARD, offset)
        memory[:] = PATTERN
        end = GUARD + nbytes
        self._guards += [memory[:GUARD], memory[end:]]
        return self._keep(memory[GUARD:end], np.full(nbytes, byte, np.uint8))

    def fill(self, address: int, data: npt.NDArray[Any]) -> None:
        """Put other bytes where some were placed, or room is."""
        self._pieces[address][:] = as_bytes(data)

    def run(self, launch: Callable[[Any, Any], object]) -> None:
        launch(HostLaunches(), None)
        assert all((guard == PATTERN).all() for guard in self._guards)

    def content(self, address: int, nbytes: int) -> Bytes:
        return self._pieces[address][:nbytes]

    def _keep(self, piece: Bytes, content: Bytes) -> int:
        piece[:] = content
        address = int(piece.ctypes.data)
        self._pieces[address] = piece
        return address


make: Callable[[], Any] = HostMemory
"""Returns memory for a launch; tests replace it."""
