"""Host memory: aligned arrays, memory of results that is reused, and buffers that threads keep.

Arrays that NumPy allocates begin 16 bytes after the start of a cache line. Rows of chunks often have a multiple of 64
bytes, so each would touch one cache line more than it fills. Volumes of short chunks are read 3 to 10 % faster into
memory that is aligned to cache lines (November 2026).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Buffer, Callable
from ctypes import addressof, c_char
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LINE_NBYTES = 64
"""Size of a cache line."""
MIN_ALIGNED_NBYTES = 64 * 1024
"""Smallest array that is aligned to cache lines. NumPy allocates smaller ones, which takes less time."""


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return uninitialised host memory at an address that 64 divides, as uint8 of shape (nbytes,)."""
    memory = np.empty(nbytes + _LINE_NBYTES, np.uint8)
    address = addressof(c_char.from_buffer(memory))  # takes half the time of NumPy's attributes
    first = -address % _LINE_NBYTES  # bytes from here to the next cache line
    return memory[first : first + nbytes]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array in C order. From `MIN_ALIGNED_NBYTES` on, its address is a multiple of 64."""
    nbytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes < MIN_ALIGNED_NBYTES:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, aligned(nbytes))


def available_nbytes() -> int | None:
    """Return the memory that can be allocated without swapping, including the page cache; None if it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024  # listed in KiB
    return None


MIN_REUSED_NBYTES = 4 * 1024 * 1024
"""Smallest result whose memory is reused. From this size on, NumPy asks for huge pages. The C library mostly reuses
smaller memory by itself."""
MAX_REUSED_NBYTES = 128 * 1024 * 1024
"""Largest result whose memory is reused. Longer ones could not be kept; see `MAX_KEPT_NBYTES`."""
MAX_KEPT_NBYTES = 128 * 1024 * 1024
"""Largest amount of memory that a process keeps for later results."""


class ResultMemory:
    """Memory of results that nothing refers to any more, which later results of the same size reuse.

    New memory costs page faults in each read. A reduction reads one block after another and drops each of them soon,
    and a training loop does the same with batches.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a garbage collection may call `take_back` at any point
        self._free: dict[int, npt.NDArray[np.uint8]] = {}
        """Memory that is kept, by its `id`, longest unused first."""

    @property
    def kept_nbytes(self) -> int:
        """Bytes that are kept for later results."""
        return sum(memory.nbytes for memory in list(self._free.values()))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialised array in C order, in kept memory of the same size if there is any.

        If memory is short, everything that this process keeps for later reads is released, and the allocation is tried
        again. Raises `MemoryError` if that does not suffice.
        """
        try:
            return self._empty(shape, dtype)
        except MemoryError:
            release_kept()
            return self._empty(shape, dtype)

    def clear(self) -> None:
        """Release all memory that is kept for later results."""
        self._free.clear()

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        nbytes = prod(shape) * dtype.itemsize
        if dtype.hasobject or not MIN_REUSED_NBYTES <= nbytes <= MAX_REUSED_NBYTES:
            return empty(shape, dtype)
        return np.frombuffer(_ResultOwner(self._memory(nbytes)), dtype).reshape(shape)

    def _memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return memory that is kept and has this size, or new memory."""
        with self._lock:
            for key, memory in list(self._free.items()):
                # `pop` returns None if a garbage collection, or `clear` on another thread, has removed the memory.
                if memory.nbytes == nbytes and self._free.pop(key, None) is not None:
                    return memory
        return aligned(nbytes)

    def take_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory for later results, and release the longest unused until `MAX_KEPT_NBYTES` is not exceeded."""
        with self._lock:
            self._free[id(memory)] = memory
            while self.kept_nbytes > MAX_KEPT_NBYTES:
                longest_unused = next(iter(self._free), -1)  # no `id` is -1; another thread may have called `clear`
                self._free.pop(longest_unused, None)


class _ResultOwner:
    """The buffer that a result and its views refer to. Once none of them is left, its memory is kept for reuse."""

    __slots__ = ("_memory",)

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._memory)

    def __del__(self) -> None:
        if result_memory is not None:  # at exit, the module may be cleared already
            result_memory.take_back(self._memory)


result_memory = ResultMemory()
# The lambda looks `result_memory` up when it is called, because a process that was forked off replaces it.
release_functions: list[Callable[[], object]] = [lambda: result_memory.clear()]  # noqa: PLW0108
"""Functions that release memory which is kept for later reads. They are called if memory is short."""


def release_kept() -> None:
    """Release all memory that is kept for later reads."""
    for release in release_functions:
        release()


def _after_fork() -> None:
    global result_memory  # noqa: PLW0603  # the lock may be held by a thread that the fork does not have
    result_memory = ResultMemory()


os.register_at_fork(after_in_child=_after_fork)


_MAX_BUFFER_NBYTES = 8 * 1024 * 1024
"""Largest buffer that a thread keeps."""

_buffers = threading.local()
"""For each thread, its buffers by name, each with its address."""


def buffer(name: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return scratch memory of this thread, uint8 of shape (nbytes,), uninitialised.

    It is valid until this thread asks for a buffer of this name again. Buffers are kept, since new memory costs a page
    fault for every 4 KiB; only what is longer than `_MAX_BUFFER_NBYTES` is new memory at each call.
    """
    memory, _ = borrow_buffer(name, nbytes)
    return aligned(nbytes) if memory is None else memory[:nbytes]


def borrow_buffer(name: str, nbytes: int) -> tuple[npt.NDArray[np.uint8] | None, int]:
    """Return scratch memory of this thread and its address.

    Returns
    -------
    memory : numpy.ndarray of uint8, or None
        At least `nbytes`, uninitialised, and valid until this thread borrows a buffer of this name again. None if
        `nbytes` exceeds `_MAX_BUFFER_NBYTES`.
    address : int
        Address of the memory; 0 if there is none.
    """
    kept: tuple[npt.NDArray[np.uint8], int] | None = getattr(_buffers, name, None)
    if kept is not None and len(kept[0]) >= nbytes:
        return kept
    if nbytes > _MAX_BUFFER_NBYTES:
        return None, 0
    memory = aligned(nbytes)
    kept = memory, addressof(c_char.from_buffer(memory))
    setattr(_buffers, name, kept)
    return kept


def copy_bytes(src: Buffer, dst: memoryview) -> None:
    """Copy `src` to `dst`, of the same length. The GIL is released meanwhile, which slice assignment does not do."""
    np.copyto(np.frombuffer(dst, np.uint8), np.frombuffer(src, np.uint8))
