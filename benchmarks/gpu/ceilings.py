"""What no reader can beat: copies to the device and within it, and nvCOMP's own batches on resident data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from benchmarks.arrays.workloads import Workload
from benchmarks.gpu.clocks import device_seconds, wall_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.memory import Workspace
from benchmarks.gpu.resident import FORMATS, Resident, resident_streams
from benchmarks.gpu.stores import Stored
from benchmarks.runner.results import COPY_ROW, Sample
from benchmarks.runner.session import Contestant, Ready, WrongValuesError


def device_copy(gpu: Gpu, nbytes: int) -> Contestant:
    """Return a copy of device memory to device memory."""

    def prepare() -> Ready:
        space = Workspace(gpu)
        start, to = space.filled(nbytes, np.arange(256, dtype=np.uint8)), space.empty(nbytes)

        def launch() -> None:
            gpu.copy_within(to, start, nbytes, space.stream)

        return Ready(measure=lambda: device_seconds(gpu, space.stream, launch), close=space.close)

    return Contestant(name=COPY_ROW[1], side="bare", nbytes=nbytes, moved_nbytes=2 * nbytes, prepare=prepare)


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

    return Contestant(name="upload of the stored bytes, pinned", side="bare", nbytes=nbytes, prepare=prepare)


def resident(gpu: Gpu, workload: Workload, encoded: Sequence[bytes], n: int) -> Resident:
    """Bring the distinct chunks of an array to the device, `n` in all; check that they are decoded rightly there."""
    fmt, head, tail = FORMATS[workload.compressor.family]
    streams = [e[head : len(e) - tail] for e in encoded]
    chosen = [streams[i % len(streams)] for i in range(n)]
    batch = resident_streams(Workspace(gpu), fmt, chosen, workload.chunk_nbytes)
    tiles = workload.tiles()
    if wrong := batch.what_is_wrong(tiles[0].tobytes(), tiles[(n - 1) % len(streams)].tobytes()):
        raise WrongValuesError(wrong)
    return batch


def _of_store(gpu: Gpu, stored: Stored, n: int) -> Resident:
    return resident(gpu, stored.workload, stored.encoded, n)


def nvcomp_alone(gpu: Gpu, stored: Callable[[], Stored], n: int, *, nbytes: int) -> Contestant:
    """Return one call of nvCOMP for `n` chunks of a store; `nbytes` is what they decode to."""

    def prepare() -> Ready:
        batch = _of_store(gpu, stored(), n)
        measure = functools.partial(device_seconds, gpu, batch.space.stream, batch.launch)
        return Ready(measure=measure, close=batch.space.close)

    return Contestant(name=f"nvCOMP alone, one call, chunks: {n}", side="bare", nbytes=nbytes, prepare=prepare)


def nvcomp_side_by_side(gpu: Gpu, stored: Callable[[], Stored], n: int, *, n_streams: int, nbytes: int) -> Contestant:
    """Return as many calls of nvCOMP for `n` chunks each, on streams of their own."""

    def prepare() -> Ready:
        chunks = _of_store(gpu, stored(), n * n_streams)
        return Ready(measure=functools.partial(side_by_side, gpu, chunks, n, n_streams), close=chunks.space.close)

    name = f"nvCOMP alone, {n_streams} streams, chunks on each: {n}"
    return Contestant(name=name, side="bare", nbytes=nbytes, prepare=prepare)


def side_by_side(gpu: Gpu, chunks: Resident, n: int, n_streams: int) -> Sample:
    """Return how long the first chunks take, `n` of them on each stream; streams and scratch live only as long."""
    with ExitStack() as stack:
        parts = []
        for number in range(n_streams):
            space = stack.enter_context(closing(Workspace(gpu)))
            parts.append(chunks.part(space, number * n, n))
        return wall_seconds(gpu, lambda: [part.launch() for part in parts])
