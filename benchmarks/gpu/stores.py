"""Arrays on disk as the GPU benchmarks use them: written anew, and dropped from the page cache at will."""

from __future__ import annotations

from pathlib import Path

from benchmarks import page_cache
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
        page_cache.drop(self.files)
        return page_cache.share_in_memory(self.files)


def write(workload: Workload, folder: Path) -> Stored:
    """Write an array below `folder`."""
    path = folder / workload.name.replace(" ", "-")
    return Stored(workload, path, write_tiled(workload, path))
