"""Our kernels alone, on resident data: what part of the rate of a device copy each one reaches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt

from benchmarks.arrays.fields import make_field
from benchmarks.gpu.clocks import device_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.memory import Workspace
from benchmarks.runner.session import Contestant, Ready, WrongValuesError
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.axes import AxisColumns
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.cuda.cast import ElementCast
from xarray_gpuzarr.cuda.checksum import Kind, checksum
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.placers import Points, Scatter
from xarray_gpuzarr.frames.blosc import BLOSCLZ, walk_blosc

Column = npt.NDArray[np.int64]
Launch = Callable[[], object]
Build = Callable[[Workspace], Launch]

_COPY_F4 = ElementCast(stored=np.dtype("f4"), result=np.dtype("f4"))
_COPY_U2 = ElementCast(stored=np.dtype("u2"), result=np.dtype("u2"))
_UNPACK = ElementCast(stored=np.dtype("i2"), result=np.dtype("f4"), mask=(-32767,), scale=0.02, offset=273.15)
_NOISE_NBYTES = 1 << 20


def kernel_contestants(gpu: Gpu, scale: float) -> list[Contestant]:
    """Return every family of kernels; at scale 1 they work on about half a gigabyte."""
    few = min(1.0, 100 * scale)
    series = ((max(4, round(400 * scale)) * round(256_000 * few),), (round(256_000 * few),))
    edge = max(4, round(32 * few))
    volume = ((max(2, round(16 * scale)) * edge, 16 * edge, 16 * edge), (edge, edge, edge))
    step = (max(5, round(181 * few)), max(10, round(360 * few)))
    grid = ((max(2, round(960 * scale)), step[0] * 2 - 1, step[1] * 2), (1, *step))
    n = max(1 << 16, round(scale * 2**29))
    return [
        *_placing(gpu, series, volume, grid),
        _points(gpu, *grid),
        *(_unshuffle(gpu, n, typesize, 1) for typesize in (2, 4, 8, 16)),
        *(_unshuffle(gpu, n, typesize, 2) for typesize in (1, 2, 4, 8)),
        *(_blosclz(gpu, n, shuffled=shuffled) for shuffled in (False, True)),
        *(_checksum(gpu, n, kind) for kind in ("crc32", "crc32c", "adler32")),
        _move(gpu, n),
    ]


def _contestant(gpu: Gpu, name: str, build: Build, *, nbytes: int, moved_nbytes: int) -> Contestant:
    def prepare() -> Ready:
        space = Workspace(gpu)
        launch = build(space)
        launch()  # compiles
        gpu.api.synchronize(space.stream)
        return Ready(measure=lambda: device_seconds(gpu, space.stream, launch), close=space.close)

    return Contestant(name=name, nbytes=nbytes, moved_nbytes=moved_nbytes, prepare=prepare)


# ---- placing

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def _placing(gpu: Gpu, series: Shapes, volume: Shapes, grid: Shapes) -> list[Contestant]:
    cases = [
        ("scatter, float32, runs", *series, _COPY_F4, False),
        ("scatter, uint16, boxes", *volume, _COPY_U2, False),
        ("scatter, int16 to float32, masked and scaled", *grid, _UNPACK, False),
        ("fill, float32, runs", *series, _COPY_F4, True),
        ("fill, uint16, boxes", *volume, _COPY_U2, True),
    ]
    found = []
    for name, shape, chunks, cast, missing in cases:
        build = functools.partial(_build_scatter, shape=shape, chunks=chunks, cast=cast, missing=missing)
        written, taken = prod(shape) * cast.result.itemsize, 0 if missing else prod(shape) * cast.stored.itemsize
        found.append(_contestant(gpu, name, build, nbytes=written, moved_nbytes=written + taken))
    return found


def _build_scatter(
    space: Workspace, *, shape: tuple[int, ...], chunks: tuple[int, ...], cast: ElementCast, missing: bool
) -> Launch:
    out = space.empty(prod(shape) * cast.result.itemsize)
    kernel = Scatter(_axes(shape, chunks), cast, out=out, fill=7)
    rows = np.array(list(product(*(range(-(-n // m)) for n, m in zip(shape, chunks, strict=True)))), np.int64)
    at, row = _packed(space, kernel), space.put(rows)
    places: dict[str, Any] = {"table": at, "row": row, "n_rows": len(rows)}
    if missing:
        return lambda: kernel.fill(space.api, space.stream, **places)
    nbytes = prod(chunks) * cast.stored.itemsize
    home = -(-nbytes // 16) * 16
    start = space.filled(home * len(rows), np.arange(_NOISE_NBYTES // 2, dtype="u2"))
    source = space.put((start + home * np.arange(len(rows))).astype(np.uint64))
    return lambda: kernel.launch(space.api, space.stream, source=source, **places)


def _axes(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[AxisColumns]:
    """Return the columns that cover a whole array."""
    axes = []
    for axis, (n, chunk) in enumerate(zip(shape, chunks, strict=True)):
        start = np.arange(0, n, chunk)
        axes.append(
            AxisColumns(
                in_start=np.zeros_like(start),
                count=np.minimum(chunk, n - start),
                out_start=start,
                index=None,
                step=1,
                in_stride=prod(chunks[axis + 1 :]),
                out_stride=prod(shape[axis + 1 :]),
            )
        )
    return axes


def _packed(space: Workspace, kernel: Scatter | Points) -> Address:
    """Return a kernel's table on the device."""
    staged, at = space.api.allocate_pinned(kernel.nbytes).array, space.empty(kernel.nbytes)
    kernel.pack(staged, at)
    space.api.upload(at, staged[: kernel.nbytes], space.stream)
    space.api.synchronize(space.stream)
    return at


def _points(gpu: Gpu, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Contestant:
    """Return the picking of one element in a hundred, from anywhere in its chunk to anywhere."""
    n_chunks = prod(-(-n // m) for n, m in zip(shape, chunks, strict=True))
    in_chunk, each = prod(chunks), max(1, prod(chunks) // 100)

    def build(space: Workspace) -> Launch:
        rng = np.random.default_rng(0)
        within = rng.integers(0, in_chunk, n_chunks * each)
        out = space.empty(within.size * _UNPACK.result.itemsize)
        bounds, position = np.arange(n_chunks + 1) * each, rng.permutation(within.size)
        kernel = Points(bounds, within, position, _UNPACK, out=out, fill=0)
        at, row = _packed(space, kernel), space.put(np.arange(n_chunks)[:, None])
        home = -(-in_chunk * 2 // 16) * 16
        start = space.filled(home * n_chunks, np.arange(_NOISE_NBYTES // 2, dtype="u2"))
        source = space.put((start + home * np.arange(n_chunks)).astype(np.uint64))
        return lambda: kernel.launch(space.api, space.stream, table=at, source=source, row=row, n_rows=n_chunks)

    nbytes = n_chunks * each * 4
    return _contestant(gpu, "points, one in a hundred", build, nbytes=nbytes, moved_nbytes=nbytes * 3 // 2)


# ---- runs of bytes


def _noise() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, _NOISE_NBYTES, np.uint8)


def _unshuffle(gpu: Gpu, nbytes: int, typesize: int, number: int) -> Contestant:
    """Return the unshuffling of blocks of 256 KiB, as C-Blosc cuts them for zstd."""
    block = min(256 << 10, nbytes // 2)
    n = nbytes // block

    def build(space: Workspace) -> Launch:
        start, out = space.filled(n * block, _noise()), space.empty(n * block)
        step = block * np.arange(n)
        rows = np.stack([start + step, out + step, *(np.full(n, v) for v in (block, typesize, number))])
        table = space.put(rows.astype(np.uint64))
        return lambda: unshuffle(space.api, space.stream, table=table, n=n, max_nbytes=block)

    name = f"{('', 'unshuffle', 'bitunshuffle')[number]}, typesize {typesize}"
    return _contestant(gpu, name, build, nbytes=n * block, moved_nbytes=2 * n * block)


def _blosclz(gpu: Gpu, nbytes: int, *, shuffled: bool) -> Contestant:
    """Return the decoding of one Blosc frame of 1 MB of float32, over and over."""
    frame_nbytes = min(1_024_000, nbytes // 2) // 4 * 4

    def build(space: Workspace) -> Launch:
        values = make_field("series", (frame_nbytes // 4,))
        frame = bytes(imagecodecs.blosc_encode(values, level=5, compressor="blosclz", shuffle=2 * shuffled))
        zero = np.zeros(1, np.int64)
        walked = walk_blosc(np.frombuffer(frame, np.uint8), zero, np.array([len(frame)]), frame_nbytes)
        coded = np.flatnonzero(walked.codec == BLOSCLZ)
        if not len(coded):
            raise WrongValuesError("the frame holds no stream of blosclz")
        n_frames = nbytes // frame_nbytes
        at, out = space.put(np.frombuffer(frame, np.uint8)), space.empty(n_frames * frame_nbytes)
        source = np.tile(at + walked.source[coded], n_frames)
        target = (out + frame_nbytes * np.arange(n_frames)[:, None] + walked.target[coded]).ravel()
        lengths = [np.tile(c[coded], n_frames) for c in (walked.source_nbytes, walked.target_nbytes)]
        table = space.put(np.stack([source, lengths[0], target, lengths[1]]).astype(np.uint64))
        n = len(source)
        results = {"actual": space.empty(8 * n), "status": space.put(np.full(n, -1, np.int32))}
        blosclz(space.api, space.stream, table=table, n=n, **results)
        if space.get(results["status"], "i4", n).any():
            raise WrongValuesError("a stream was not decoded")
        return lambda: blosclz(space.api, space.stream, table=table, n=n, **results)

    total = nbytes // frame_nbytes * frame_nbytes
    name = f"blosclz, {'bitshuffled' if shuffled else 'not shuffled'} float32"
    return _contestant(gpu, name, build, nbytes=total, moved_nbytes=total)


def _checksum(gpu: Gpu, nbytes: int, kind: Kind) -> Contestant:
    """Return one kind of checksum of messages of 1 MB."""
    message = min(1_024_000, nbytes // 3)
    n = nbytes // message

    def build(space: Workspace) -> Launch:
        start = space.filled(n * message, _noise())
        rows = np.stack([start + message * np.arange(n), np.full(n, message), np.zeros(n, np.int64)])
        table = space.put(rows.astype(np.uint64))
        result = Address(table + 16 * n)
        return lambda: checksum(space.api, space.stream, kind, table=table, n=n, max_nbytes=message, result=result)

    return _contestant(gpu, kind, build, nbytes=n * message, moved_nbytes=n * message)


def _move(gpu: Gpu, nbytes: int) -> Contestant:
    """Return the move of runs of 200 kB from odd addresses."""
    run = min(200_000, nbytes // 3)
    n = nbytes // (run + 16)

    def build(space: Workspace) -> Launch:
        start, out = space.filled(nbytes, _noise()), space.empty(nbytes)
        step = (run + 16) * np.arange(n)
        rows: Sequence[Column] = (start + step + 1, out + step, np.full(n, run))
        table = space.put(np.stack(rows).astype(np.uint64))
        return lambda: move(space.api, space.stream, table=table, n=n, max_nbytes=run)

    return _contestant(gpu, "move, misaligned runs", build, nbytes=n * run, moved_nbytes=2 * n * run)
