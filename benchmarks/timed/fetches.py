"""Reads of local files while the engine runs: noted down one by one, or modelled so that they cost no core.

A modelled read takes a lane for as long as its bytes need, on a thread that sleeps meanwhile. Memory receives what the
host looks at, the index and the headers of frames, and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from benchmarks.arrays.workloads import Workload
from benchmarks.timed.simulation import Simulation, Stream
from xarray_gpuzarr.fetch import LocalSource
from xarray_gpuzarr.frames.blosc import walk_blosc

_HEAD_NBYTES = 32
_INDEX_CRC_NBYTES = 4
_BUFFER_NBYTES = 64 << 20
"""Each thread's for plain reads: that of a pinned slot."""

Serve = Callable[[str, int, memoryview], None]
"""Fill memory with a range of a file: its path and the first byte."""


class Fetch(NamedTuple):
    """One read of a file."""

    thread: int
    start_s: float
    end_s: float
    path: str
    offset: int
    nbytes: int


@contextmanager
def watched(now: Callable[[], float], serve: Serve | None = None) -> Iterator[list[Fetch]]:
    """Note down reads of local files inside a ``with`` block; let `serve` carry them out, if it is given."""
    fetches: list[Fetch] = []
    plain = LocalSource.pread

    def pread(source: LocalSource, fd: int, key: str, offset: int, into: memoryview, version: Any = None) -> memoryview:
        start_s, path = now(), source.local_path(key)
        if serve is None:
            plain(source, fd, key, offset, into, version)
        else:
            serve(path, offset, into)
        fetches.append(Fetch(threading.get_ident(), start_s, now(), path, offset, len(into)))
        return into

    with patch.object(LocalSource, "pread", pread):
        yield fetches


def read_plainly(fetches: Sequence[Fetch], n_threads: int) -> float:
    """Read the same ranges, in order, with as many threads as said and nothing else; return the seconds it takes."""
    todo = iter([(fetch.path, fetch.offset, fetch.nbytes) for fetch in fetches])
    files = {path: os.open(path, os.O_RDONLY) for path in {fetch.path for fetch in fetches}}
    buffers = [_buffer(n, max(fetch.nbytes for fetch in fetches)) for n in range(n_threads)]
    lock = threading.Lock()

    def read(buffer: memoryview) -> None:
        at = 0
        while True:
            with lock:
                path, offset, nbytes = next(todo, (None, 0, 0))
            if path is None:
                return
            at = at if at + nbytes <= len(buffer) else 0
            os.preadv(files[path], [buffer[at : at + nbytes]], offset)
            at += nbytes

    threads = [threading.Thread(target=read, args=(buffer,)) for buffer in buffers]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    for file in files.values():
        os.close(file)
    return took


@cache
def _buffer(_thread: int, least_nbytes: int) -> memoryview:
    """Return memory that has been touched, the same for each thread every time."""
    return memoryview(bytearray(b"\1") * max(_BUFFER_NBYTES, least_nbytes))


class ModelledFiles:
    """Reads of the shards of a workload that take lanes and no core.

    Parameters
    ----------
    workload : Workload
    simulation : Simulation
        Has a resource ``"lane"``.
    seconds : callable
        Returns how long a lane needs for so many bytes.
    """

    def __init__(self, workload: Workload, simulation: Simulation, seconds: Callable[[int], float]) -> None:
        self._workload = workload
        self._simulation = simulation
        self._seconds = seconds
        self._known: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]] = {}

    def learn(self, path: str) -> None:
        """Note down what the host looks at of a file."""
        positions = self._looked_at(path)
        self._known[path] = positions, np.fromfile(path, np.uint8)[positions]

    def serve(self, path: str, offset: int, into: memoryview) -> None:
        """Take a lane, and write what the host looks at."""
        operation = self._simulation.enqueue(Stream(0), "lane", [(1, self._seconds(len(into)))], "read")
        positions, values = self._known[path]
        lo, hi = np.searchsorted(positions, (offset, offset + len(into)))
        np.frombuffer(into, np.uint8)[positions[lo:hi] - offset] = values[lo:hi]
        self._simulation.wait_for(operation)

    def _looked_at(self, path: str) -> npt.NDArray[np.int64]:
        """Return positions: of the index, and of headers and lengths of frames."""
        workload, nbytes = self._workload, Path(path).stat().st_size
        n_chunks = int(np.prod(workload.chunks_per_shard))
        first = nbytes - 16 * n_chunks - _INDEX_CRC_NBYTES
        data = np.fromfile(path, np.uint8)
        start, length = data[first : first + 16 * n_chunks].view("<i8").reshape(n_chunks, 2).T.copy()
        heads = [(start[:, None] + np.arange(_HEAD_NBYTES)).ravel(), np.arange(first, nbytes)]
        if workload.compressor.family == "blosc":
            streams = walk_blosc(data, start, length, workload.chunk_nbytes)
            n_blocks = len(streams.block_chunk) // n_chunks + 1
            heads += [(start[:, None] + 16 + np.arange(4 * n_blocks)).ravel()]
            heads += [(streams.source[:, None] - 4 + np.arange(4)).ravel()]
        return np.unique(np.concatenate(heads))
