"""The limit: how fast these chunks can be decoded here by a plain loop on as many threads as there are cores.

The chunk table is made before the clock starts, and nothing is planned, selected or checked. Chunks are decoded one
after another into one fresh array in chunk order, so each is contiguous there. Where they would not be in the array
itself, `placing_limit` reads stored values instead, in C, and puts them into place. Shares no code with xarray_gpuzarr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import imagecodecs
import numpy as np
import zstandard

from benchmarks.host.chunk_table import Part, Piece, in_array_order, read_parts
from benchmarks.arrays.compressors import Family
from benchmarks.host.task import Array, Opened, Task
from benchmarks.host.plain_loop import CannotPlaceError, PlacingLoop, is_scattered
from benchmarks.arrays.workloads import PACKING, Workload

DecodeInto = Callable[[memoryview, memoryview], object]


class Scratch(threading.local):
    """Memory of one thread, reused."""

    def __init__(self) -> None:
        self.encoded = np.empty(0, np.uint8)
        self.decoded = np.empty(0, np.uint8)
        self.zstd = zstandard.ZstdDecompressor()


_scratch = Scratch()


def open_limit(task: Task) -> Opened:
    """Open a workload for the plain loop; see `Opened`."""
    workload, operation, path = task.workload, task.operation, task.path / task.workload.variable
    if is_scattered(workload) and (operation == "read" or (operation == "load" and not workload.packed)):
        try:
            return Opened(run=PlacingLoop(workload, path).read)
        except CannotPlaceError as reason:
            print(f"{workload.name}/{operation}: the limit puts nothing into place: {reason}", file=sys.stderr)
    loop = PlainLoop(workload, path, n_threads=task.concurrency if operation == "chunks" else None)
    if operation == "mean":
        return Opened(run=loop.mean)
    if operation == "chunks":
        return Opened(run=loop.visit, compared=False)
    run = loop.load if operation == "load" and workload.packed else loop.read
    return Opened(run=run, check=lambda: in_array_order(run(), workload))


class PlainLoop:
    """Chunks of one array, decoded in file order by threads that take the next part that is left.

    Parameters
    ----------
    workload : Workload
    path : pathlib.Path
        The array.
    n_threads : int, optional
        As many as there are cores, if left out.
    parts : list of Part, optional
        What to read; everything if left out.
    """

    def __init__(
        self, workload: Workload, path: Path, *, n_threads: int | None = None, parts: list[Part] | None = None
    ) -> None:
        self.workload = workload
        self.parts = read_parts(workload, path) if parts is None else parts
        self.n_elements = prod(workload.grid) * prod(workload.chunks)
        self.n_threads = n_threads or len(os.sched_getaffinity(0))
        self.pool = ThreadPoolExecutor(self.n_threads)
        self.fetch: Callable[[Part], memoryview] = _read_encoded
        """Where encoded bytes of a part come from."""
        if workload.packed:
            metadata = json.loads((path / "zarr.json").read_text())
            self.scale, self.offset = (metadata["attributes"][name] for name in ("scale_factor", "add_offset"))
            self.padding: int = metadata["fill_value"]

    def read(self) -> Array:
        """Return stored values in chunk order."""
        out = np.empty(self.n_elements, self.workload.dtype)
        view = memoryview(out.view(np.uint8))
        raw = self.workload.codec == "none"
        self._share((lambda part: _read_raw(part, view)) if raw else (lambda part: self._decode(part, view)))
        return out

    def visit(self) -> Array:
        """Decode every chunk into memory of its thread, and drop it; return nothing of use."""
        raw = self.workload.codec == "none"
        self._share(self.fetch if raw else (lambda part: sum(1 for _ in self._decoded_chunks(part))))
        return np.asarray(0)

    def load(self) -> Array:
        """Return decoded values in chunk order."""
        out = np.empty(self.n_elements, np.float64)
        self._share(lambda part: self._decode_scaled(part, out))
        return out

    def mean(self) -> Array:
        """Return the mean of decoded values, from integer sums."""
        total, count = np.array(self._share(self._partial_sum)).sum(axis=0)
        if self.padding != PACKING.missing:  # chunks at the edge are stored whole
            n_padding = self.n_elements - prod(self.workload.shape)
            total, count = total - n_padding * self.padding, count - n_padding
        return np.asarray(total / count * self.scale + self.offset)

    def _share(self, work: Callable[[Part], object]) -> list[object]:
        left, lock = iter(self.parts), threading.Lock()
        futures = [self.pool.submit(_drain, left, lock, work) for _ in range(self.n_threads)]
        return [result for future in futures for result in future.result()]

    def _decode(self, part: Part, out: memoryview) -> None:
        encoded, decode = self.fetch(part), _DECODERS[self.workload.compressor.family]
        for piece in part.pieces:
            first = piece.offset - part.offset
            decode(encoded[first : first + piece.nbytes], out[piece.out_start : piece.out_start + piece.out_nbytes])

    def _decoded_chunks(self, part: Part) -> Iterator[tuple[Piece, Array]]:
        encoded, decode = self.fetch(part), _DECODERS[self.workload.compressor.family]
        if len(_scratch.decoded) != self.workload.chunk_nbytes:
            _scratch.decoded = np.empty(self.workload.chunk_nbytes, np.uint8)
        for piece in part.pieces:
            first = piece.offset - part.offset
            decode(encoded[first : first + piece.nbytes], memoryview(_scratch.decoded))
            yield piece, _scratch.decoded.view(self.workload.dtype)

    def _decode_scaled(self, part: Part, out: Array) -> None:
        for piece, chunk in self._decoded_chunks(part):
            start = piece.out_start // chunk.itemsize
            values = out[start : start + len(chunk)]
            np.multiply(chunk, self.scale, out=values)
            values += self.offset
            np.copyto(values, np.nan, where=chunk == PACKING.missing)

    def _partial_sum(self, part: Part) -> tuple[int, int]:
        """Return sum and count of the stored integers that are not missing."""
        total = count = 0
        for _, chunk in self._decoded_chunks(part):
            n = int(np.count_nonzero(chunk != PACKING.missing))
            total += int(chunk.sum(dtype=np.int64)) - (len(chunk) - n) * PACKING.missing
            count += n
        return total, count


def _drain(left: Iterator[Part], lock: threading.Lock, work: Callable[[Part], object]) -> list[object]:
    results: list[object] = []
    while True:
        with lock:
            part = next(left, None)
        if part is None:
            return results
        results.append(work(part))


def _read_raw(part: Part, out: memoryview) -> None:
    _preadv(part, [out[p.out_start : p.out_start + p.nbytes] for p in part.pieces])


def _read_encoded(part: Part) -> memoryview:
    if len(_scratch.encoded) < part.nbytes:
        _scratch.encoded = np.empty(part.nbytes, np.uint8)
    buffer = memoryview(_scratch.encoded)[: part.nbytes]
    _preadv(part, [buffer])
    return buffer


def _preadv(part: Part, buffers: list[memoryview]) -> None:
    fd = os.open(part.path, os.O_RDONLY)
    try:
        done = os.preadv(fd, buffers, part.offset)
    finally:
        os.close(fd)
    if done != part.nbytes:
        raise OSError(f"{part.path}: {done} bytes at {part.offset}, expected {part.nbytes}")


def _zstd(src: memoryview, dst: memoryview) -> None:
    if _scratch.zstd.stream_reader(src, closefd=False).readinto(dst) != len(dst):
        raise ValueError("a zstd frame is too short")


def _gzip(src: memoryview, dst: memoryview) -> None:
    imagecodecs.gzip_decode(src, out=dst)


def _blosc(src: memoryview, dst: memoryview) -> None:
    imagecodecs.blosc_decode(src, numthreads=1, out=dst)


_DECODERS: dict[Family, DecodeInto] = {
    "zstd": _zstd,
    "gzip": _gzip,
    "blosc": _blosc,
}
