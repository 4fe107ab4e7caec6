"""Files that the system is asked to forget, so that the next read of them waits for the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt


def drop(files: Sequence[Path]) -> None:
    """Ask the system to forget the contents of files; they are written to the disk before."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def share_in_memory(files: Sequence[Path]) -> float:
    """Return the share of the pages of files that the system has in memory; asking brings none of them in.

    A read that is not to wait (``RWF_NOWAIT``) could not say: it makes newer kernels read ahead.
    """
    pages = [_pages_in_memory(file) for file in files]
    return float(np.concatenate(pages).mean())


def _pages_in_memory(file: Path) -> npt.NDArray[np.bool_]:
    """Return, for each page of a file, whether it is in memory."""
    nbytes = file.stat().st_size
    n_pages = -(-nbytes // mmap.PAGESIZE)
    if not n_pages:
        return np.zeros(0, np.bool_)
    states = np.zeros(n_pages, np.uint8)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), nbytes, access=mmap.ACCESS_COPY) as mapped:
        mapping = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(mapping))
        failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(nbytes), ctypes.c_void_p(states.ctypes.data))
        del mapping
    if failed:
        raise OSError(f"the system does not say which pages of {file} are in memory")
    return (states & 1).astype(np.bool_)
