"""Uses the memory of deleted results again: fresh memory costs page faults, read after read.

A reduction reads block after block, each dead before the next but one is read; a training loop drops batch after batch.
Results that the user keeps stay as they are: memory comes back only when neither the array nor a view of it is left.
"""

from __future__ import annotations

import os
import threading
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.process import host_memory

LEAST_NBYTES = 4 * 1024 * 1024
"""NumPy asks for huge pages from here on, and the C library mostly keeps what is smaller by itself."""
MOST_NBYTES = 128 * 1024 * 1024
KEPT_NBYTES = 128 * 1024 * 1024
"""Most that a process keeps for later results."""


class ResultMemory:
    """Memory of dead results, most recently used last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a garbage collection may run `take_back` at any point of this thread
        self._free: dict[int, npt.NDArray[np.uint8]] = {}

    @property
    def kept_nbytes(self) -> int:
        """Bytes that wait for a result."""
        return sum(memory.nbytes for memory in list(self._free.values()))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised C-ordered array, in the memory of a dead one of the same length if there is any.

        Where memory lacks, what is kept is let go.
        """
        try:
            return self._empty(shape, dtype)
        except MemoryError:
            self._free.clear()
            return self._empty(shape, dtype)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or not LEAST_NBYTES <= nbytes <= MOST_NBYTES:
            return host_memory.empty(shape, dtype)
        lent = _Lent(self._dead(nbytes))
        return np.frombuffer(lent, dtype).reshape(shape)

    def _dead(self, nbytes: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            for key, memory in list(self._free.items()):
                if memory.nbytes == nbytes and self._free.pop(key, None) is not None:
                    return memory
        return host_memory.aligned(nbytes)

    def take_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory for later results, in place of what has waited longest."""
        with self._lock:
            self._free[id(memory)] = memory
            while self.kept_nbytes > KEPT_NBYTES:
                self._free.pop(next(iter(self._free)), None)


class _Lent:
    """The owner of a result's memory, in the eyes of NumPy: alive as long as any array that uses it."""

    __slots__ = ("_memory",)

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._memory)

    def __del__(self) -> None:
        if result_memory is not None:  # not at exit
            result_memory.take_back(self._memory)


result_memory = ResultMemory()


def _after_fork() -> None:
    global result_memory  # noqa: PLW0603  # a held lock does not survive a fork
    result_memory = ResultMemory()


os.register_at_fork(after_in_child=_after_fork)
