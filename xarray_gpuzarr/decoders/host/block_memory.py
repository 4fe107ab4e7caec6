"""Memory of dask blocks that is used again once the block is dead: fresh memory costs page faults, block after block.

A reduction reads block after block, each dead before the next but one is read. Blocks that the user keeps stay as they
are: memory comes back only when neither the array nor a view of it is left. Results that a user loads never come here.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host import memory as host_memory

_LEAST_NBYTES = 4 * 1024 * 1024
"""NumPy asks for huge pages from here on, and the C library mostly keeps what is smaller by itself."""
_MOST_NBYTES = 64 * 1024 * 1024
_KEPT_NBYTES = 128 * 1024 * 1024
"""Most that a process keeps for later blocks: two blocks of the largest kind."""


class BlockMemory:
    """Memory of dead blocks, most recently used last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection may run `take_back` at any point of this thread
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    @property
    def kept_nbytes(self) -> int:
        """Bytes that wait for a block."""
        with self._lock:
            return sum(memory.nbytes for memory in tuple(self._free))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised C-ordered array, in the memory of a dead block of the same length if there is one."""
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or not _LEAST_NBYTES <= nbytes <= _MOST_NBYTES:
            return host_memory.empty(shape, dtype)
        lent = _Lent(self._dead(nbytes))
        return np.frombuffer(lent, dtype).reshape(shape)

    def _dead(self, nbytes: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            for at, memory in enumerate(self._free):
                if memory.nbytes == nbytes:
                    del self._free[at]
                    return memory
        return host_memory.aligned(nbytes)

    def take_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory for later blocks, in place of what has waited longest."""
        with self._lock:
            self._free.append(memory)
            while self.kept_nbytes > _KEPT_NBYTES:
                self._free.popleft()


class _Lent:
    """The owner of a block's memory, in the eyes of NumPy: alive as long as any array that uses it."""

    __slots__ = ("_memory",)

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._memory)

    def __del__(self) -> None:
        if block_memory is not None:  # not at exit
            block_memory.take_back(self._memory)


block_memory = BlockMemory()


def _after_fork() -> None:
    global block_memory  # noqa: PLW0603  # a held lock does not survive a fork
    block_memory = BlockMemory()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
