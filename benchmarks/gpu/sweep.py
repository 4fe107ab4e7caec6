"""Where the device pays: reads of so many chunks of such a length, decoded by the device and by the host.

The cases are what `calibrate` makes a machine's calibration from.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.scene import Scene
from benchmarks.measure import AbsentError, Case, Contestant, Ready, WrongValuesError
from benchmarks.published import BLOG
from benchmarks.results import Sample
from xarray_gpuzarr import DeviceUnavailableError, read_array

CODECS = {
    "zstd": "zstd 3",
    "gzip": "gzip 5",
    "lz4": "lz4",
    "blosc lz4": "blosc lz4 5 shuffle",
    "blosc zstd": "blosc zstd 5 shuffle",
}
"""Name in a calibration -> how the sweep stores it."""
CHUNK_NBYTES = (16_384, 65_536, 262_144, 1_048_576, 4_194_304)
N_CHUNKS = tuple(2**k for k in range(13))
MOST_NBYTES = 2**30
"""Decoded bytes of a read, at most; longer reads are taken to be in proportion."""
_ONE_THREAD = "XARRAY_GPUZARR_NUM_THREADS"
_HOST_CHUNKS = 8
"""Chunks of a read on one thread of the host."""
_LONG_NBYTES = 2**29
_STORAGE_CHUNKS = 512
HOST = "host, then upload"
"""What the device is compared with."""


def sweep(gpu: Gpu, folder: Path, scale: float) -> Iterator[Case]:
    """Return all points of the sweep, the rates of the host's threads, and uploads."""
    for codec in CODECS:
        yield from _of_codec(gpu, folder, scale, codec)
    yield _uploads(gpu, scale)
    yield _storages(gpu, folder, scale)


def _of_codec(gpu: Gpu, folder: Path, scale: float, codec: str) -> Iterator[Case]:
    for nbytes in CHUNK_NBYTES:
        n_elements = max(16, round(nbytes // 4 * min(1.0, 100 * scale)))
        most = max(2, min(N_CHUNKS[-1], round(MOST_NBYTES * scale) // nbytes))
        workload = replace(
            BLOG.full,
            name=f"sweep {codec} {nbytes}",
            codec=CODECS[codec],
            chunks=(n_elements,),
            shards=(n_elements * most,),
            shape=(n_elements * most,),
        )
        scene = Scene(gpu=gpu, workload=workload, folder=folder)
        for n in (n for n in N_CHUNKS if n <= most):
            yield _point(scene, codec, nbytes, n)
        yield _one_thread(scene, codec, nbytes, min(most, _HOST_CHUNKS))


def _point(scene: Scene, codec: str, nbytes: int, n: int) -> Case:
    """Return a case of a read of `n` chunks, by the device and by the host."""
    gpu, box = scene.gpu, slice(0, n * scene.workload.chunks[0])
    decoded = n * scene.workload.chunk_nbytes

    def contestants() -> list[Contestant]:
        array = open_array(scene.stored)
        ways = {
            "device": lambda: read_array(array, box, device=gpu.device),
            HOST: lambda: gpu.upload(read_array(array, box, device="host")),
        }
        expected = gpu.put(np.asarray(array[box]))
        return [
            Contestant(name=way, nbytes=decoded, prepare=functools.partial(_ready, gpu, run, expected))
            for way, run in ways.items()
        ]

    about = {"codec": codec, "chunk_nbytes": nbytes, "n_chunks": n, "operation": "sweep"}
    return Case(
        name=f"sweep {codec} {nbytes} x {n}",
        summary="by the device, and by the host with one copy up",
        seconds=0.6,
        contestants=contestants,
        about=lambda: about,
    )


def _ready(gpu: Gpu, run: Any, expected: Any) -> Ready:
    if not gpu.same(run(), expected):
        raise WrongValuesError("other values than zarr-python's")
    return Ready(measure=lambda: wall_seconds(gpu, run))


def _ready_if_possible(gpu: Gpu, run: Any, expected: Any) -> Ready:
    try:
        return _ready(gpu, run, expected)
    except DeviceUnavailableError as error:
        raise AbsentError(str(error)) from error


def _one_thread(scene: Scene, codec: str, nbytes: int, n: int) -> Case:
    """Return a case of a read on one thread of the host, and on all of them."""
    whole = prod(scene.workload.grid)

    def contestants() -> list[Contestant]:
        array, edge = open_array(scene.stored), scene.workload.chunks[0]

        def run(n_chunks: int) -> Sample:
            return wall_seconds(scene.gpu, lambda: read_array(array, slice(0, n_chunks * edge), device="host"))

        def alone() -> Sample:
            with _threads(1):
                return run(n)

        return [
            Contestant(name="one thread", nbytes=n * scene.workload.chunk_nbytes, prepare=lambda: Ready(measure=alone)),
            Contestant(
                name="all threads", nbytes=scene.workload.nbytes, prepare=lambda: Ready(measure=lambda: run(whole))
            ),
        ]

    about = {"codec": codec, "chunk_nbytes": nbytes, "n_chunks": n, "operation": "host rates"}
    return Case(
        name=f"host {codec} {nbytes}",
        summary="threads of the host, no upload",
        seconds=0.6,
        contestants=contestants,
        about=lambda: about,
    )


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = os.environ.get(_ONE_THREAD)
    os.environ[_ONE_THREAD] = str(n)
    try:
        yield
    finally:
        del os.environ[_ONE_THREAD]
        if before is not None:
            os.environ[_ONE_THREAD] = before


def _storages(gpu: Gpu, folder: Path, scale: float) -> Case:
    """Return a case of a long read of a local file, through host memory and straight into the device's."""
    n_elements = max(16, round(_LONG_NBYTES * scale) // 4 // _STORAGE_CHUNKS)
    workload = replace(
        BLOG.full,
        name="storages",
        chunks=(n_elements,),
        shards=(n_elements * _STORAGE_CHUNKS,),
        shape=(n_elements * _STORAGE_CHUNKS,),
    )
    scene = Scene(gpu=gpu, workload=workload, folder=folder)

    def contestants() -> list[Contestant]:
        array = open_array(scene.stored)
        expected = gpu.put(np.asarray(array[:]))
        found = []
        for storage in ("posix", "gds"):
            run = functools.partial(read_array, array, device=gpu.device, storage=storage)
            prepare = functools.partial(_ready_if_possible, gpu, run, expected)
            found.append(Contestant(name=storage, nbytes=scene.workload.nbytes, prepare=prepare))
        return found

    return Case(name="storages", summary="ways of a local file to the device", seconds=2, contestants=contestants)


def _uploads(gpu: Gpu, scale: float) -> Case:
    """Return a case of uploads from ordinary host memory, as the decoder does them: a short one and a long one."""

    def contestants() -> list[Contestant]:
        found = []
        for name, nbytes in (("short", 4096), ("long", max(65_536, round(_LONG_NBYTES * scale)))):
            values = np.zeros(nbytes, np.uint8)
            run = functools.partial(gpu.upload, values)
            measure = functools.partial(wall_seconds, gpu, run)
            found.append(Contestant(name=name, nbytes=nbytes, prepare=functools.partial(Ready, measure=measure)))
        return found

    return Case(name="uploads", summary="of decoded bytes, by the decoder", seconds=5, contestants=contestants)
