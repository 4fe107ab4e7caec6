"""What no reader can beat: copies to the device and within it, and nvCOMP's own batches on resident data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.clocks import device_seconds, wall_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.memory import Workspace
from benchmarks.gpu.stores import Stored
from benchmarks.measure import Contestant, Ready, WrongValuesError
from benchmarks.results import COPY_ROW
from xarray_gpuzarr.cuda.api import Address
from xarray_gpuzarr.cuda.nvcomp import Batch, Format

FORMATS: dict[str, tuple[Format, int, int]] = {
    "zstd": ("zstd", 0, 0),
    "gzip": ("gzip", 0, 0),
    "lz4": ("lz4", 4, 0),
    "zlib": ("deflate", 2, 4),
}
"""Codec -> what nvCOMP calls it, and the bytes before and behind that it does not take."""

Column = npt.NDArray[Any]


def device_copy(gpu: Gpu, nbytes: int) -> Contestant:
    """Return a copy of device memory to device memory."""

    def prepare() -> Ready:
        space = Workspace(gpu)
        start, to = space.filled(nbytes, np.arange(256, dtype=np.uint8)), space.empty(nbytes)

        def launch() -> None:
            gpu.copy_within(to, start, nbytes, space.stream)

        return Ready(measure=lambda: device_seconds(gpu, space.stream, launch), close=space.close)

    return Contestant(name=COPY_ROW[1], side="limit", nbytes=nbytes, moved_nbytes=2 * nbytes, prepare=prepare)


def pinned_upload(gpu: Gpu, stored_files: Callable[[], Sequence[Path]], *, nbytes: int) -> Contestant:
    """Return the upload of some files' bytes from pinned host memory."""

    def prepare() -> Ready:
        space = Workspace(gpu)
        files = stored_files()
        lengths = [f.stat().st_size for f in files]
        staged = gpu.api.allocate_pinned(max(lengths))
        first = np.fromfile(files[0], np.uint8)
        staged.array[: first.nbytes] = first
        to = space.empty(max(lengths))

        def launch() -> None:
            for length in lengths:
                gpu.api.upload(to, staged.array[:length], space.stream)

        facts = {"stored GB": sum(lengths) / 1e9}
        return Ready(measure=lambda: device_seconds(gpu, space.stream, launch), facts=facts, close=space.close)

    return Contestant(name="upload of the stored bytes, pinned", side="limit", nbytes=nbytes, prepare=prepare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Compressed chunks on the device, ready for one call of nvCOMP."""

    space: Workspace
    fmt: Format
    batch: Batch
    n: int
    nbytes: int
    """Of a decoded chunk."""
    temp: Address
    temp_nbytes: int
    result: Address

    def launch(self) -> None:
        """Enqueue the call."""
        self.space.api.nvcomp.decompress(
            self.fmt,
            self.batch,
            n_chunks=self.n,
            temp=self.temp if self.temp_nbytes else 0,
            temp_nbytes=self.temp_nbytes,
            stream=self.space.stream.handle,
        )

    def outcome(self) -> tuple[list[int], list[int]]:
        """Run it once; return the status and the actual length of every chunk."""
        self.launch()
        statuses = self.space.get(self.batch.statuses, "i4", self.n)
        return statuses.tolist(), self.space.get(self.batch.actual, "u8", self.n).tolist()

    def content(self, number: int = 0) -> bytes:
        """Return what was decoded for one chunk."""
        return self.space.get(Address(self.result + number * self.nbytes), "u1", self.nbytes).tobytes()

    def check(self, first: bytes) -> None:
        """Run it once; raise `WrongValuesError` if a chunk has not its length, or the first other bytes."""
        statuses, actual = self.outcome()
        if set(actual) != {self.nbytes} or any(statuses) or self.content() != first:
            raise WrongValuesError(f"statuses {set(statuses)}, lengths {set(actual)}")


def resident(gpu: Gpu, stored: Stored, n: int) -> Resident:
    """Bring the chunks of a store to the device, `n` in all."""
    fmt, head, tail = FORMATS[stored.workload.compressor.family]
    streams = [e[head : len(e) - tail] for e in stored.encoded]
    return resident_streams(gpu, fmt, [streams[i % len(streams)] for i in range(n)], stored.workload.chunk_nbytes)


def resident_streams(gpu: Gpu, fmt: Format, streams: Sequence[bytes], nbytes: int, *, shift: int = 0) -> Resident:
    """Bring streams to the device, each `shift` bytes behind a multiple of 16.

    Parameters
    ----------
    gpu : Gpu
    fmt : str
        What nvCOMP calls their format.
    streams : sequence of bytes
    nbytes : int
        What each decodes to.
    shift : int
        Below 16.
    """
    space, n = Workspace(gpu), len(streams)
    lengths = np.array([len(stream) for stream in streams])
    homes = -(-(lengths + shift) // 16) * 16
    starts = np.cumsum(homes) - homes + shift
    image = np.zeros(int(homes.sum()), np.uint8)
    for start, stream in zip(starts.tolist(), streams, strict=True):
        image[start : start + len(stream)] = np.frombuffer(stream, np.uint8)
    at, result = space.put(image), space.empty(n * nbytes)
    temp_nbytes = gpu.api.nvcomp.temp_nbytes(fmt, n_chunks=n, max_nbytes=nbytes, total_nbytes=n * nbytes)

    def column(values: Any) -> Address:
        return space.put(np.asarray(values, np.uint64))

    batch = Batch(
        sources=column(starts + at),
        source_nbytes=column(lengths),
        capacity=column(np.full(n, nbytes)),
        actual=column(np.zeros(n)),
        outputs=column(result + nbytes * np.arange(n)),
        statuses=space.put(np.full(n, -1, np.int32)),
    )
    temp = space.empty(temp_nbytes)
    return Resident(
        space=space, fmt=fmt, batch=batch, n=n, nbytes=nbytes, temp=temp, temp_nbytes=temp_nbytes, result=result
    )


def nvcomp_alone(gpu: Gpu, stored: Callable[[], Stored], n: int, *, nbytes: int) -> Contestant:
    """Return one call of nvCOMP for `n` chunks of a store; `nbytes` is what they decode to."""

    def prepare() -> Ready:
        batch = resident(gpu, stored(), n)
        batch.check(stored().workload.tiles()[0].tobytes())
        measure = functools.partial(device_seconds, gpu, batch.space.stream, batch.launch)
        return Ready(measure=measure, close=batch.space.close)

    return Contestant(name=f"nvCOMP alone, one call, chunks: {n}", side="limit", nbytes=nbytes, prepare=prepare)


def nvcomp_side_by_side(gpu: Gpu, stored: Callable[[], Stored], n: int, *, n_streams: int, nbytes: int) -> Contestant:
    """Return as many calls of nvCOMP for `n` chunks each, on streams of their own."""

    def prepare() -> Ready:
        batches = [resident(gpu, stored(), n) for _ in range(n_streams)]
        for batch in batches:
            batch.check(stored().workload.tiles()[0].tobytes())
        launch_all = functools.partial(_each, [batch.launch for batch in batches])
        close_all = functools.partial(_each, [batch.space.close for batch in batches])
        return Ready(measure=lambda: wall_seconds(gpu, launch_all), close=close_all)

    name = f"nvCOMP alone, {n_streams} streams, chunks on each: {n}"
    return Contestant(name=name, side="limit", nbytes=nbytes, prepare=prepare)


def _each(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
