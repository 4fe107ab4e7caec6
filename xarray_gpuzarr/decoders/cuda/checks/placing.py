"""Checks of what all reads depend on (copies, moves, checksums), and of the kernels that place elements in a result.

The kernels are checked for each pair of a stored dtype and a result dtype, against the host.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.cast import UNIT_LENGTHS, ElementCast
from xarray_gpuzarr.cuda.checksum import checksum, final_checksums
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known_frames import content
from xarray_gpuzarr.decoders.cuda.checks.trial import Check, Trial, compare, download, upload
from xarray_gpuzarr.decoders.cuda.decoding.placing import element_cast
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import BytesSpec, PipelineSpec, TransposeSpec

COPIES_NAME = "copies"
"""Name of the check that a device cannot be used without."""


def _check_copies(workspace: Workspace) -> int:
    data = content("noise", 100_003)
    memory = upload(workspace, data)
    compare(download(workspace, memory.address, (len(data),), np.dtype("u1")), np.frombuffer(data, "u1"))
    return len(data)


def _check_moves(workspace: Workspace) -> int:
    data = content("noise", 80_000)
    starts = np.array([1, 801, 1602, 2003])
    targets = np.array([16, 1029, 2048, 2064])
    nbytes = np.array([777, 800, 3, 77_000])
    source, moved = upload(workspace, data), upload(workspace, bytes(len(data)))
    columns = np.array((starts + source.address, targets + moved.address, nbytes), np.uint64)
    table = upload(workspace, columns.tobytes())
    move(workspace.api, workspace.copy, table=table.address, n=len(starts), max_nbytes=int(nbytes.max()))
    expected = np.zeros(len(data), np.uint8)
    for start, target, length in zip(starts, targets, nbytes, strict=True):
        expected[target : target + length] = np.frombuffer(data, "u1")[start : start + length]
    compare(download(workspace, moved.address, expected.shape, expected.dtype), expected)
    return int(nbytes.sum())


def _check_sums(workspace: Workspace) -> int:
    data = content("noise", 70_000)
    starts = np.array([0, 1, 778, 803])
    nbytes = np.array([1, 777, 0, 69_000])
    api, n, longest = workspace.api, len(starts), int(nbytes.max())
    source = upload(workspace, data)
    columns = np.array((starts + source.address, nbytes, 0 * nbytes), np.uint64)
    table = upload(workspace, columns.tobytes())
    result = Address(table.address + columns[:2].nbytes)  # the third column
    checksum(api, workspace.copy, "crc32", table=table.address, n=n, max_nbytes=longest, result=result)
    sums = final_checksums("crc32", download(workspace, result, starts.shape, np.dtype("u8")))
    expected = [zlib.crc32(data[start : start + length]) for start, length in zip(starts, nbytes, strict=True)]
    compare(sums, np.array(expected, "u4"))
    return int(nbytes.sum())


COPIES = Check(COPIES_NAME, lambda workspace: workspace.run(_check_copies))
MOVES = Check("moves", lambda workspace: workspace.run(_check_moves))
SUMS = Check("crc32", lambda workspace: workspace.run(_check_sums))


_BYTES = BytesSpec(endian=None)


def placing_check(dtype: str, cast: Cast, *, points: bool) -> Check:
    """Return the check of the kernel that places elements of a dtype in a result.

    Parameters
    ----------
    dtype : str
        Stored dtype.
    cast : Cast
        Cast of the read. The check uses another mask, scale and offset, which the kernel takes as arguments.
    points : bool
        Whether single elements are placed, rather than boxes.
    """
    stored = cast.viewed_dtype(np.dtype(dtype)).newbyteorder("=")
    result = np.dtype(cast.dtype).newbyteorder("=")
    element = element_cast(stored, replace(cast, dtype=result.str))
    shape_name = "points" if points else "boxes"
    casts: list[tuple[np.dtype[Any], Cast]] = []  # pairs of a stored dtype and a cast, all of which are checked
    if element.is_copy:
        name = f"placing of {shape_name}, {stored.itemsize}-byte elements"
        casts += [(np.dtype(copied), Cast(dtype=copied)) for copied in _COPIED_DTYPES[stored.itemsize]]
    else:
        name = f"placing of {shape_name}, {stored.name} as {result.name}"
        if cast.wide_dtype:
            name += f" by {element.work.name}"
        # If elements keep their dtype, a cast without arithmetic is a copy, which has a check of its own.
        converts = not ElementCast(stored=stored, result=result).is_copy
        # There is a check of a pair of dtypes without a wide dtype, and another with one. A cast without arithmetic is
        # the same in both, so only the former includes it.
        if converts and element.wide is None:
            casts.append((stored, Cast(dtype=result.str)))
        if result.kind == "f":
            scaled = Cast(dtype=result.str, mask=(7.0, 1.0), scale=0.37, offset=-3.0, wide_dtype=cast.wide_dtype)
            casts.append((stored, scaled))

    def run(workspace: Workspace) -> int:
        variants = set()
        for stored_dtype, variant in casts:
            variants.add((stored_dtype.newbyteorder("<").str, variant))
            variants.add((stored_dtype.newbyteorder(">").str, variant))
        n_compared = 0
        for stored_order, variant in sorted(variants, key=str):
            n_compared += _compare_placed(workspace, stored_order, variant, points=points)
        return n_compared

    return Check(name, run)


_COPIED_DTYPES = {1: ("|u1",), 2: ("=u2",), 4: ("=u4",), 8: ("=u8", "=c8"), 16: ("=c16",)}
"""Length in bytes -> dtypes whose copies share a kernel, but swap bytes in different ways."""


def _compare_placed(workspace: Workspace, dtype: str, cast: Cast, *, points: bool) -> int:
    """Place elements on the device and on the host; return the number of bytes that were compared.

    Elements that are only copied may be copied in longer units, and each length of a unit has a kernel of its own. The
    widths of the chunks are such that every unit is used. The array has 3 by 3 chunks, and the last ones of each axis
    reach beyond it.
    """
    stored = np.dtype(dtype)
    widths = [1]
    # Only copies into boxes use longer units. A cast that only converts has no scale either, and gets the same widths.
    if cast.scale is None and not points:
        widths = [nbytes // stored.itemsize for nbytes in UNIT_LENGTHS if nbytes >= stored.itemsize]
    n_compared = 0
    for width in widths:
        elements = _elements(stored, np.dtype(cast.dtype), 9 * 9 * width).reshape(9, -1)
        chunks: list[bytes | None] = [row.tobytes() for row in elements]
        chunks[4] = None  # a missing chunk, in the middle
        fill = elements[0, :1].tobytes()
        for transposes in ((), (TransposeSpec(order=(1, 0)),)):
            codecs = PipelineSpec(array_to_array=transposes, array_to_bytes=_BYTES)
            trial = Trial(
                chunks, dtype=dtype, chunk_shape=(3, 3 * width), codecs=codecs, shape=(7, 7 * width), fill=fill
            )
            for target in _targets(trial, width, points=points):
                placed, _ = trial.read_by_device(workspace, target, cast)
                with np.errstate(all="ignore"):
                    compare(placed, trial.read_by_host(target, cast))
                n_compared += placed.nbytes
    return n_compared


def _targets(trial: Trial, width: int, *, points: bool) -> list[Target]:
    """Return selections of a trial's array, which has 7 rows and ``7 * width`` columns."""
    if points:
        return [trial.points([6, 0, 3, 3, 5, 0], [0, 6, 4, 1, 2, 6])]
    targets = [trial.box((slice(1, None, 2), slice(width, None)))]
    if width == 1:  # columns that are not neighbours are placed one by one, so other widths use the same kernel
        targets.append(trial.box(([0, 2, 5, 6], slice(1, None, 2))))
    return targets


def _elements(stored: np.dtype[Any], result: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    """Return `n` elements of a dtype: small numbers, arbitrary bits, and special values that the result can hold."""
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
    in_stored_order: npt.NDArray[Any] = values.astype(stored)  # the byte order of `stored`
    return in_stored_order
