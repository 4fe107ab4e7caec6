"""Arrays on disk as the GPU benchmarks use them: written anew, and dropped from the page cache at will."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.arrays.stores import object_files, write_tiled
from benchmarks.arrays.workloads import Workload


class Stored:
    """An array on disk."""

    def __init__(self, workload: Workload, path: Path, encoded: list[bytes]) -> None:
        self.workload = workload
        self.path = path
        self.files = object_files(workload, path)
        """Objects of the shards, in C order."""
        self.encoded = encoded
        """The distinct chunks, compressed."""

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(f.stat().st_size for f in self.files)

    @property
    def ratio(self) -> float:
        """Decoded bytes per stored byte."""
        return self.workload.nbytes / self.nbytes

    def drop_from_cache(self) -> float:
        """Ask the system to forget the shards; return the share of them that it still has in memory."""
        for file in self.files:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        return float(np.mean([in_cache for file in self.files for in_cache in _probe(file)]))


def _probe(file: Path, n: int = 32) -> Iterator[bool]:
    """Say of a few places in a file whether they can be read without the disk; asking brings none of them in."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for offset in np.linspace(0, max(0, file.stat().st_size - 4096), n).astype(int).tolist():
            try:
                yield os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                yield False
            except OSError:  # the file system cannot say: as if it were in memory
                yield True
    finally:
        os.close(descriptor)


def write(workload: Workload, folder: Path) -> Stored:
    """Write an array below `folder`."""
    path = folder / workload.name.replace(" ", "-")
    return Stored(workload, path, write_tiled(workload, path))
