"""Host memory for bytes on their way: buffers that are kept for the next chunk, and copies without Python's lock."""

from __future__ import annotations

import threading
from collections.abc import Buffer

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.native import address
from xarray_gpuzarr.process.host_memory import aligned

_KEPT_NBYTES = 8 * 1024 * 1024
"""A thread keeps buffers up to this size."""

_kept = threading.local()


def buffer(name: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return scratch of this thread, contents undefined, valid until `name` is asked for again.

    Fresh memory costs a page fault per 4 KiB.

    Returns
    -------
    uint8, shape (nbytes,), host memory
    """
    memory, _ = lent(name, nbytes)
    return aligned(nbytes) if memory is None else memory[:nbytes]


def lent(name: str, nbytes: int) -> tuple[npt.NDArray[np.uint8] | None, int]:
    """Return what `buffer` does, perhaps more of it, and its address; None and 0 for more than is kept."""
    buffer: tuple[npt.NDArray[np.uint8], int] | None = getattr(_kept, name, None)
    if buffer is not None and len(buffer[0]) >= nbytes:
        return buffer
    if nbytes > _KEPT_NBYTES:
        return None, 0
    memory = aligned(nbytes)
    buffer = memory, address(memory)
    setattr(_kept, name, buffer)
    return buffer


def copy_bytes(src: Buffer, dst: memoryview) -> None:
    """Fill `dst` with as many bytes; other threads go on meanwhile, as they cannot while one is assigned to."""
    np.copyto(np.frombuffer(dst, np.uint8), np.frombuffer(src, np.uint8))
