"""A few small cases for every kernel, against NumPy: what `strict_kernels` runs, and what mutants of kernels must fail.

Each is large enough for every barrier and branch to matter, and takes milliseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import google_crc32c
import numcodecs
import numpy as np
import numpy.typing as npt
import zstandard

from helpers.compare import assert_same_bits
from helpers.data.filter_cases import by_numcodecs
from helpers.kernels.blosc_runs import (
    BITSHUFFLE,
    COPY,
    OK,
    SHUFFLE,
    Block,
    Coded,
    as_c_blosc_has_it,
    c_blosc,
    coded_streams,
    run_blosclz,
    run_unshuffle,
)
from helpers.kernels.runs import Stored, checksums, expected, picked, run_check, run_filter, run_moves, scattered
from xarray_gpuzarr.cuda.cast import ElementCast
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.filters import Delta, ElementCodec, PackBits

Array = npt.NDArray[Any]
ALL = slice(None)


def noise(nbytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(nbytes)


def numbers(dtype: str, n: int) -> Array:
    """Return random numbers of every magnitude, denormal ones and NaNs among floating ones."""
    if np.dtype(dtype).kind != "f":
        return np.frombuffer(noise(n * np.dtype(dtype).itemsize), dtype)
    rng, info = np.random.default_rng(n), np.finfo(dtype)
    with np.errstate(all="ignore"):
        values = (rng.normal(size=n) * 2.0 ** rng.integers(info.minexp - 20, info.maxexp, n)).astype(dtype)
    values[::17], values[5::23], values[7::29] = 0.1, info.smallest_subnormal * 3, np.nan
    values.view(f"u{values.itemsize}")[9::31] = int(np.array(np.inf, dtype).view(f"u{values.itemsize}")) + 1
    return values


# ---- filters


def check_delta() -> None:
    """Sum up integers over several blocks of threads' worth, in both byte orders."""
    for stored, decoded, n in (("i2", "i4", 50_001), (">u8", ">u8", 5000)):
        chunk = numbers("i8", n).astype(stored)
        chunks = [chunk, chunk[::-1]]
        codec = Delta(encoded=np.dtype(stored), decoded=np.dtype(decoded))
        found = run_filter(codec, [c.tobytes() for c in chunks], n, codec.decoded.itemsize)
        wanted = [np.cumsum(c, dtype=decoded[-2:]).astype(decoded).tobytes() for c in chunks]
        assert [f.content for f in found] == wanted


def check_float_delta() -> None:
    """Sum up floating numbers in their order."""
    for dtype in ("f4", "f8"):
        chunk = np.nan_to_num(numbers(dtype, 500)) % 10
        chunk[450] = np.nan
        codec = Delta(encoded=np.dtype(dtype), decoded=np.dtype(dtype))
        chunks = [chunk, chunk[::-1].copy()]
        found = run_filter(codec, [c.tobytes() for c in chunks], 500, codec.decoded.itemsize)
        assert [f.content for f in found] == [by_numcodecs(numcodecs.Delta(dtype), c) for c in chunks]


def check_element_codec() -> None:
    """Divide, add and convert, denormal numbers and borders among them."""
    for part in PARTS.values():
        part()


def _check_scaled() -> None:
    for stored, decoded, scale, offset in (
        ("f4", "f4", 3.0, 0.1),
        ("f4", "f4", 3.0, 0.0),
        ("f8", "f8", 3.0, 0.1),
        ("i2", "f8", 7, 1),
        ("f2", "f2", 3, 1),
    ):
        chunk = numbers(stored, 900)
        codec = ElementCodec(
            rule="scaled", encoded=np.dtype(stored), decoded=np.dtype(decoded), scale=scale, offset=offset
        )
        (found,) = run_filter(codec, [chunk.tobytes()], 900, codec.decoded.itemsize)
        reference = numcodecs.FixedScaleOffset(offset, scale, decoded, stored)
        assert not found.flagged
        assert found.content == by_numcodecs(reference, chunk)


def _check_astype() -> None:
    for stored, decoded in (
        ("f8", "f4"),
        ("f4", "f8"),
        ("f8", "f2"),
        ("f4", "f2"),
        ("f2", "f8"),
        ("i8", "f4"),
        ("f4", "b1"),
    ):
        chunk = numbers(stored, 4200)
        codec = ElementCodec(rule="astype", encoded=np.dtype(stored), decoded=np.dtype(decoded))
        (found,) = run_filter(codec, [chunk.tobytes()], 4200, codec.decoded.itemsize)
        assert found.content == by_numcodecs(numcodecs.AsType(stored, decoded), chunk)


def _check_rounded() -> None:
    """Numbers that an integer does not hold are flagged, and never converted."""
    borders: list[tuple[str, list[float], float]] = [
        ("u1", [0.0, 255.0, -0.4], np.nan),
        ("i4", [-2147483648.0, 2147483647.0, 0.5], 2147483648.0),
    ]
    for decoded, fits, beyond in borders:
        codec = ElementCodec(
            rule="cast_value", encoded=np.dtype("f8"), decoded=np.dtype(decoded), rounding="nearest-even"
        )
        chunks = [np.array(fits), np.array([fits[0], beyond, beyond])]
        found = run_filter(codec, [c.tobytes() for c in chunks], len(fits), codec.decoded.itemsize)
        assert [f.flagged for f in found] == [False, True]
        assert found[0].content == np.rint(fits).astype(decoded).tobytes()


def _check_integers() -> None:
    """Integers of any width that have a place in one of eight bytes, and that have none."""
    for stored, decoded, fits, beyond in (("i8", "u8", [0, 2**63 - 1], -1), ("u8", "i8", [0, 2**63 - 1], 2**63)):
        codec = ElementCodec(rule="cast_value", encoded=np.dtype(stored), decoded=np.dtype(decoded))
        chunks = [np.array(fits, stored), np.array([fits[0], beyond], stored)]
        found = run_filter(codec, [c.tobytes() for c in chunks], 2, 8)
        assert [f.flagged for f in found] == [False, True]
        assert found[0].content == np.array(fits, decoded).tobytes()


def check_packbits() -> None:
    """Unpack bits to aligned and other places."""
    for n in (5, 9001):
        chunks = [np.frombuffer(noise(n, s), np.uint8) % 2 == 1 for s in range(2)]
        encoded = [numcodecs.PackBits().encode(c).tobytes() for c in chunks]
        found = run_filter(PackBits(), encoded, n, 1, offsets=(0, 5))
        assert [(f.flagged, f.content) for f in found] == [(False, c.tobytes()) for c in chunks]


# ---- Blosc


def check_unshuffle() -> None:
    """Unshuffle bytes and bits, in registers and through shared memory, with several tiles a block."""
    sizes = ((1, 6016), (2, 9000), (3, 11000), (4, 12 * 33), (8, 4096), (9, 4400), (12, 1000), (16, 1032), (255, 72))
    contents = [(noise(n * typesize + 3 % typesize), typesize) for typesize, n in sizes]
    blocks = [
        Block(content=c, typesize=typesize, filter=as_c_blosc_has_it(c, typesize, chosen), offsets=offsets)
        for chosen in (COPY, SHUFFLE, BITSHUFFLE)
        for c, typesize in contents
        for offsets in ((0, 0), (1, 2))
    ]
    for max_nbytes in (None, 1):
        for block, found in zip(blocks, run_unshuffle(blocks, max_nbytes), strict=True):
            assert found == block.unshuffled(), (block.typesize, block.filter, block.offsets)


def check_blosclz() -> None:
    """Decode streams with literals, and with near, far, overlapping and long matches."""
    contents = [
        (np.arange(3000) % 50).astype("i4").tobytes(),
        bytes(5000),
        (noise(9000) + bytes(9000)) * 6,
        b"".join(noise(40, s % 7) + b"abc" * (s % 30) for s in range(60)),
    ]
    frames = [bytes(numcodecs.blosc.compress(c, b"blosclz", 9, 0, len(c), 1)) for c in contents]
    rows = [replace(coded, offsets=(i, i)) for i, frame in enumerate(frames) for coded in coded_streams(frame)]
    rows = [row for row in rows if len(row.stream) != row.nbytes]
    rows += [Coded(stream=row.stream[: len(row.stream) // 2], nbytes=row.nbytes) for row in rows]
    rows = [rows[i] for i in np.random.default_rng(0).integers(0, len(rows), 70)]
    for row, found in zip(rows, run_blosclz(rows), strict=True):
        wanted = c_blosc(row)
        assert (found.status == OK) == (wanted is not None)
        assert wanted is None or found.content == wanted


# ---- checksums, and looking at frames


def check_checksum() -> None:
    """Sum up messages of one tile, of several and of none."""
    oracles: dict[Kind, Callable[[bytes], int]] = {
        "crc32": zlib.crc32,
        "crc32c": google_crc32c.value,
        "adler32": zlib.adler32,
    }
    contents = [noise(n) for n in (0, 5, 4099, 65537)]
    for kind in get_args(Kind):
        found = checksums(kind, *((c, 7 * i) for i, c in enumerate(contents)))
        assert found == [oracles[kind](c) for c in contents]


def check_zstd_blocks() -> None:
    """Refuse frames that are cut."""
    frame = zstandard.ZstdCompressor().compress(noise(200_000) + bytes(200_000))
    assert run_check([frame, frame[:-1], frame[:7]] * 12, 400_000) == [True, False, False] * 12


# ---- placing


def check_scatter() -> None:
    """Copy, convert, mask and scale boxes; rows that begin anywhere, transposed chunks, chunks that are missing."""
    steps: dict[str, Any] = {"mask": (0.5, -3), "scale": 0.1, "offset": -7.3}
    for stored, result, extra in (("u2", "u2", {}), ("f4", "f4", steps), ("f8", "f8", steps), ("i2", "f2", steps)):
        cast = ElementCast(stored=np.dtype(stored), result=np.dtype(result), **extra)
        whole = numbers(stored, 23 * 19 * 70).reshape(23, 19, 70)
        for order in ((0, 1, 2), (2, 0, 1)):
            array = Stored(array=whole, chunk_shape=(8, 19, 33), order=order, missing=[(1, 0, 1)], fill=3)
            wanted = [slice(2, 21, 2), np.array([0, 3, 3, 17]), ALL]
            found = scattered(array, cast, wanted)
            assert_same_bits(found, expected(np.ascontiguousarray(array.filled()[2:21:2, [0, 3, 3, 17]]), cast))


def check_points() -> None:
    """Pick points, some of a missing chunk."""
    pairs: list[tuple[str, str, dict[str, Any]]] = [
        (">f4", "f8", {"mask": (0.1,), "scale": 0.1, "offset": 0.3}),
        ("f4", "f4", {"scale": 3.0}),
        ("i2", "i2", {}),
    ]
    for stored, result, steps in pairs:
        cast = ElementCast(stored=np.dtype(stored), result=np.dtype(result), **steps)
        whole = numbers(stored[-2:], 40 * 50).astype(stored).reshape(40, 50)
        array = Stored(array=whole, chunk_shape=(16, 16), order=(1, 0), missing=[(1, 1)], fill=2)
        rng = np.random.default_rng(1)
        points = [rng.integers(0, n, 20_000) for n in whole.shape]
        assert_same_bits(picked(array, cast, points), expected(array.filled()[tuple(points)], cast))


def check_move() -> None:
    """Move runs that agree with their place modulo 16, 8 and 1."""
    run_moves([(0, 0, 70_000), (1, 9, 5), (0, 8, 66_000), (3, 0, 70_001), (7, 6, 40)])


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}
"""By kernel."""
PARTS: dict[str, Callable[[], None]] = {
    "scaled": _check_scaled,
    "astype": _check_astype,
    "rounded": _check_rounded,
    "integers": _check_integers,
}
"""Of the check of `element_codec`, which compiles many kernels."""
