"""Checks of what all reads rest on, copies, moves and checksums, and of the kernels that bring elements to a result.

The latter for each pair of dtypes; the host is the oracle.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.cast import UNIT_NBYTES, ElementCast
from xarray_gpuzarr.cuda.checksum import checksum, finish
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known import content
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, Trial, compare, download, sent
from xarray_gpuzarr.decoders.cuda.decoding.placing import element_cast
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import BytesSpec, PipelineSpec, TransposeSpec

COPY = "copies"
"""Name of the check without which nothing works."""


def _copies(workspace: Workspace) -> int:
    data = content("noise", 100_003)
    memory = sent(workspace, data)
    compare(download(workspace, memory.address, (len(data),), np.dtype("u1")), np.frombuffer(data, "u1"))
    return len(data)


def _moves(workspace: Workspace) -> int:
    data, first, nbytes = content("noise", 80_000), np.array([1, 801, 1602, 2003]), np.array([777, 800, 3, 77_000])
    to = np.array([16, 1029, 2048, 2064])
    source, target = sent(workspace, data), sent(workspace, bytes(len(data)))
    table = sent(workspace, np.array((first + source.address, to + target.address, nbytes), np.uint64).tobytes())
    move(workspace.api, workspace.copy, table=table.address, n=len(first), max_nbytes=int(nbytes.max()))
    expected = np.zeros(len(data), np.uint8)
    for start, place, length in zip(first, to, nbytes, strict=True):
        expected[place : place + length] = np.frombuffer(data, "u1")[start : start + length]
    compare(download(workspace, target.address, expected.shape, expected.dtype), expected)
    return int(nbytes.sum())


def _sums(workspace: Workspace) -> int:
    data, first, nbytes = content("noise", 70_000), np.array([0, 1, 778, 803]), np.array([1, 777, 0, 69_000])
    api, n, longest, source = workspace.api, len(first), int(nbytes.max()), sent(workspace, data)
    columns = np.array((first + source.address, nbytes, 0 * nbytes), np.uint64)
    table = sent(workspace, columns.tobytes())
    result = Address(table.address + columns[:2].nbytes)
    checksum(api, workspace.copy, "crc32", table=table.address, n=n, max_nbytes=longest, result=result)
    sums = finish("crc32", download(workspace, result, first.shape, np.dtype("u8")))
    compare(sums, np.array([zlib.crc32(data[a : a + n]) for a, n in zip(first, nbytes, strict=True)], "u4"))
    return int(nbytes.sum())


COPIES = Check(COPY, lambda workspace: workspace.run(_copies))
MOVES = Check("moves", lambda workspace: workspace.run(_moves))
SUMS = Check("crc32", lambda workspace: workspace.run(_sums))


_BYTES = BytesSpec(endian=None)


def placing(dtype: str, cast: Cast, *, points: bool) -> Check:
    """Return the check of the kernels that bring elements of a dtype to a result."""
    stored, result = cast.seen_as(np.dtype(dtype)).newbyteorder("="), np.dtype(cast.dtype).newbyteorder("=")
    element = element_cast(stored, replace(cast, dtype=result.str))
    what = "points" if points else "boxes"
    if element.is_copy:
        name = f"placing of {what}, {stored.itemsize}-byte elements"
        ways = [(np.dtype(copied), Cast(dtype=copied)) for copied in _COPIED[stored.itemsize]]
    else:
        name = f"placing of {what}, {stored.name} as {result.name}" + f" by {element.work.name}" * bool(cast.wide_dtype)
        converts = not ElementCast(stored=stored, result=result).is_copy  # else the kernel of copies would be checked
        casts = [Cast(dtype=result.str)] if converts and element.wide is None else []
        scaled = Cast(dtype=result.str, mask=(7.0, 1.0), scale=0.37, offset=-3.0, wide_dtype=cast.wide_dtype)
        casts += [scaled] * (result.kind == "f")
        ways = [(stored, one) for one in casts]

    def run(workspace: Workspace) -> int:
        orders = [(order, one) for way, one in ways for order in {way.newbyteorder("<").str, way.newbyteorder(">").str}]
        return sum(_place(workspace, order, one, points=points) for order, one in sorted(orders, key=str))

    return Check(name, run)


_COPIED = {1: ("|u1",), 2: ("=u2",), 4: ("=u4",), 8: ("=u8", "=c8"), 16: ("=c16",)}
"""Dtypes of so many bytes: those that are only copied share kernels, and differ in what is swapped."""


def _place(workspace: Workspace, dtype: str, cast: Cast, *, points: bool) -> int:
    """Bring elements to a result in several ways, so that every width that is moved at once is used."""
    stored = np.dtype(dtype)
    widths = [n // stored.itemsize for n in UNIT_NBYTES if n >= stored.itemsize] if cast.scale is None else [1]
    n_compared = 0
    for width in [1] if points else widths:
        shape, chunk_shape = (7, 7 * width), (3, 3 * width)
        elements = _elements(stored, np.dtype(cast.dtype), 9 * 9 * width).reshape(9, -1)
        chunks: list[bytes | None] = [row.tobytes() for row in elements]
        chunks[4] = None
        fill = elements[0, :1].tobytes()
        for order in ((), (TransposeSpec(order=(1, 0)),)):
            codecs = PipelineSpec(array_to_array=order, array_to_bytes=_BYTES)
            trial = Trial(chunks, dtype=dtype, chunk_shape=chunk_shape, codecs=codecs, shape=shape, fill=fill)
            if points:
                targets = [trial.points([6, 0, 3, 3, 5, 0], [0, 6, 4, 1, 2, 6])]
            else:
                targets = [trial.box((slice(1, None, 2), slice(width, None)))]
                targets += [trial.box(([0, 2, 5, 6], slice(1, None, 2)))] * (width == 1)
            for target in targets:
                placed, _ = trial.by_device(workspace, target, cast)
                with np.errstate(all="ignore"):
                    compare(placed, trial.by_host(target, cast))
                n_compared += placed.nbytes
    return n_compared


def _elements(stored: np.dtype[Any], result: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    """Return elements with all that is special about their dtype, as far as the result has a value for it."""
    small = np.arange(n) % 97
    if stored.kind == "b":
        small = small % 2
    if stored.kind == "b" or (result.kind not in "fc" and stored.kind == "f"):
        return small.astype(stored)
    values = np.frombuffer(content("noise", n * stored.itemsize), stored.newbyteorder("=")).copy()
    values[: n // 2] = small[: n // 2]
    if stored.kind == "f":
        info = np.finfo(stored)
        special = [np.nan, np.inf, -np.inf, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal]
    elif stored.kind == "c":
        special = []
    else:
        special = [np.iinfo(stored).min, np.iinfo(stored).max]
    values[1 : 1 + len(special)] = special
    in_order: npt.NDArray[Any] = values.astype(stored)
    return in_order
