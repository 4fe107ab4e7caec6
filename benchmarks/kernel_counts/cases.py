"""The launches that are counted: every kernel on shapes that stores have.

A case runs a kernel through the tests' stand-in for CUDA, with the tests' own functions that lay out its operands, on
few chunks: what is counted is one element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.kernels import blosc_runs, filter_runs  # type: ignore[import-not-found]
from helpers.kernels import on_host as host_kernels
from helpers.kernels import runs as kernel_runs

from xarray_gpuzarr.cuda.checksum import Kind, checksum
from xarray_gpuzarr.cuda.elements import ElementCast
from xarray_gpuzarr.cuda.filters import Delta, Elements, Filter, PackBits
from xarray_gpuzarr.cuda.launch import move

ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel on one shape."""

    kernel: str
    what: str
    """Types, options."""
    shape: str
    """Of a chunk."""
    n_elements: int
    """Elements of all chunks together: what is counted per element."""
    nbytes: float
    """Bytes read and written per element."""
    run: Callable[[], object]
    """Launches the kernel once, among others perhaps."""


def all_cases() -> list[Case]:
    """Return every case, in the order of the table."""
    return [*_scatters(), *_points(), *_elements(), *_runs(), *_deltas(), *_unshuffles(), *_checksums()]


# ---- placing

_CF: dict[str, Any] = {"mask": (-32767,), "scale": 0.02, "offset": 273.15}


def _scatter(what: str, chunk: tuple[int, ...], cast: ElementCast, **more: Any) -> Case:
    order = more.get("order", tuple(range(len(chunk))))
    # Two chunks along the last axis, so that rows of the output are not runs of memory.
    array = np.zeros((*chunk[:-1], 2 * chunk[-1]), cast.stored)
    stored = kernel_runs.Stored(array=array, chunk_shape=chunk, order=order)
    return Case(
        kernel="scatter",
        what=what,
        shape=" x ".join(map(str, chunk)),
        n_elements=array.size,
        nbytes=cast.stored.itemsize + cast.result.itemsize,
        run=lambda: kernel_runs.scattered(stored, cast, [ALL] * len(chunk)),
    )


def _cast(stored: str, result: str, **steps: Any) -> ElementCast:
    return ElementCast(stored=np.dtype(stored), result=np.dtype(result), **steps)


def _scatters() -> list[Case]:
    cf = "mask, scale, offset"
    return [
        _scatter("f4 copy, 16 bytes at once", (32, 256), _cast("f4", "f4")),
        _scatter("u2 copy, 8 bytes at once", (32, 32, 36), _cast("u2", "u2")),
        _scatter("u2 copy, odd rows", (33, 33, 33), _cast("u2", "u2")),
        _scatter("u2 copy, transposed", (181, 360), _cast("u2", "u2"), order=(1, 0)),
        _scatter("f4 copy, transposed", (181, 360), _cast("f4", "f4"), order=(1, 0)),
        _scatter("u2 -> f4", (32, 32, 32), _cast("u2", "f4")),
        _scatter("i2 -> f4, transposed", (181, 360), _cast("i2", "f4", **_CF), order=(1, 0)),
        _scatter(f"i2 -> f4, {cf}", (181, 360), _cast("i2", "f4", **_CF)),
        _scatter(f"i2 -> f8, {cf}", (181, 360), _cast("i2", "f8", **_CF)),
        _scatter(f"u1 -> f4, {cf}", (181, 360), _cast("u1", "f4", **(_CF | {"mask": (255,)}))),
        _scatter("f4, mask", (181, 360), _cast("f4", "f4", mask=(9.96921e36,))),
        _scatter("f8, mask", (181, 360), _cast("f8", "f8", mask=(9.96921e36,))),
        _scatter("f4 big-endian, mask", (181, 360), _cast(">f4", "f4", mask=(9.96921e36,))),
    ]


def _points() -> list[Case]:
    cast, n = _cast("i2", "f4", **_CF), 2000
    stored = kernel_runs.Stored(array=np.zeros((181, 360), "i2"), chunk_shape=(181, 360), order=(0, 1))
    at = [np.random.default_rng(0).integers(0, length, n) for length in (181, 360)]
    # A point has two places of 8 bytes, too.
    run = lambda: kernel_runs.picked(stored, cast, at)  # noqa: E731
    case = Case(kernel="points", what="i2 -> f4", shape="181 x 360", n_elements=n, nbytes=22, run=run)
    return [case]


# ---- filters


def _filter(
    kernel: str, what: str, codec: Filter, encoded: np.ndarray, *, n: int, itemsize: int, offset: int = 0
) -> Case:
    data = encoded.tobytes()
    return Case(
        kernel=kernel,
        what=what,
        shape=str(n),
        n_elements=2 * n,
        nbytes=len(data) / n + itemsize,
        run=lambda: filter_runs.run_filter(codec, [data, data], n, itemsize, (offset,)),
    )


def _elements() -> list[Case]:
    n = 16384
    found = []
    for encoded, decoded, rule, more in (
        ("i2", "f4", "scaled", {"scale": 10.0, "offset": 273.15}),
        ("u1", "f8", "scaled", {"scale": 10.0, "offset": 273.15}),
        ("f4", "f8", "astype", {}),
        ("i4", "i2", "astype", {}),
        ("i2", "i2", "scaled_integer", {"scale": 4, "offset": 7}),
        ("i2", "f4", "cast_value", {}),
        ("f4", "i2", "cast_value", {}),
    ):
        codec = Elements(encoded=np.dtype(encoded), decoded=np.dtype(decoded), rule=rule, **more)  # type: ignore[arg-type]
        values = (np.arange(n) % 25 * 4).astype(encoded)
        what = f"{encoded} -> {decoded}, {rule}"
        found.append(_filter("elements", what, codec, values, n=n, itemsize=codec.decoded.itemsize))
    return found


def _deltas() -> list[Case]:
    n = 16384
    found = []
    for kernel, name in (("delta", "i2"), ("delta", "i4"), ("float_delta", "f4"), ("float_delta", "f8")):
        codec = Delta(encoded=np.dtype(name), decoded=np.dtype(name))
        found.append(_filter(kernel, name, codec, np.ones(n, name), n=n, itemsize=codec.decoded.itemsize))
    return found


# ---- runs of bytes


def _runs() -> list[Case]:
    n = 65536
    packed = np.zeros(1 + n // 8, "u1")
    return [
        _filter("packbits", "aligned", PackBits(), packed, n=n, itemsize=1),
        _filter("packbits", "not aligned", PackBits(), packed, n=n, itemsize=1, offset=1),
        *(_move(offset) for offset in (0, 1)),
    ]


def _move(offset: int) -> Case:
    nbytes = 200_000

    def run() -> None:
        source, target = kernel_runs.aligned(nbytes, offset), kernel_runs.aligned(nbytes)
        source[:] = 0
        table = np.array([[source.ctypes.data], [target.ctypes.data], [nbytes]], np.uint64)
        move(host_kernels.HostLaunches(), None, table=table.ctypes.data, n=1, max_nbytes=nbytes)

    what = f"{offset} bytes apart"
    return Case(kernel="move", what=what, shape=f"{nbytes} bytes", n_elements=nbytes, nbytes=2, run=run)


def _unshuffles() -> list[Case]:
    found = []
    for which, name in ((blosc_runs.SHUFFLE, "shuffle"), (blosc_runs.BITSHUFFLE, "bitshuffle")):
        for typesize in (1, 2, 4, 8):
            nbytes = 65536
            block = blosc_runs.Block(content=bytes(nbytes), typesize=typesize, filter=which)
            found.append(
                Case(
                    kernel="unshuffle",
                    what=f"{name}, typesize {typesize}",
                    shape=f"{nbytes} bytes",
                    n_elements=nbytes,
                    nbytes=2,
                    run=lambda block=block: blosc_runs.run_unshuffle([block]),
                )
            )
    return found


def _checksums() -> list[Case]:
    return [_checksum(kind) for kind in ("crc32", "crc32c", "adler32")]


def _checksum(kind: Kind) -> Case:
    nbytes = 1 << 18

    def run() -> None:
        message = kernel_runs.aligned(nbytes)
        message[:] = 7
        table = np.array([[message.ctypes.data], [nbytes], [0]], np.uint64)
        places: dict[str, Any] = {"table": table.ctypes.data, "result": table[2:].ctypes.data}
        checksum(host_kernels.HostLaunches(), None, kind, n=1, max_nbytes=nbytes, **places)

    return Case(kernel="checksum", what=kind, shape=f"{nbytes} bytes", n_elements=nbytes, nbytes=1, run=run)
