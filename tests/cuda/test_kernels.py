"""The kernels that move and place elements, on the host, against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.compare import assert_same_bits
from helpers.every_pair import usually
from helpers.kernels.on_host import HostLaunches, assert_sanitizers_catch
from helpers.kernels.runs import Stored, expected, picked, run_moves, scattered
from hypothesis import assume, given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda.axes import AxisColumns
from xarray_gpuzarr.cuda.cast import REAL_DTYPES, ElementCast, why_no_cast
from xarray_gpuzarr.cuda.launch import MOVE_TILE_NBYTES, move, rows_by_length
from xarray_gpuzarr.cuda.placers import MAX_BLOCKS, Scatter

pytestmark = pytest.mark.usefixtures("compiler")

ALL = slice(None)
FLOATS = ("f2", "f4", "f8")
COPIED = ("b1", "i1", "u2", "f2", "i4", "f4", "u8", "f8", "c8", "c16", "M8[ns]", "m8[s]")


# ---- values


def edge_values(name: str) -> npt.NDArray[Any]:
    """All that is special about a dtype, and random bits."""
    dtype = np.dtype(name)
    rng = np.random.default_rng(7)
    if name == "b1":
        return np.array([0, 1, 1, 0, 1], bool)
    if name == "f2":
        return np.arange(65536, dtype=np.uint16).view(dtype)
    noise = np.frombuffer(rng.bytes(4096 * dtype.itemsize), dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        powers = [s * 2**k + d for k in range(64) for d in (-1, 0, 1) for s in (-1, 1)]
        return np.r_[np.array([p for p in powers if info.min <= p <= info.max], dtype), noise]
    info = np.finfo(dtype)
    bits = np.dtype(f"u{dtype.itemsize}")
    infinity = np.array(np.inf, dtype).view(bits)
    nans = np.array([int(infinity) + p for p in (1, 2**13, 2**21 + 1, 2**22, 2**22 + 5)], bits).view(dtype)
    big_nans = (~np.arange(5, dtype=bits)).view(dtype)
    special = [0.0, np.inf, info.max, info.tiny, info.smallest_subnormal, info.tiny * 0.75, 1.0, 1 / 3, 0.1]
    halves = np.arange(65536, dtype=np.uint16).view("f2").astype(dtype)
    ties = halves[:31743].astype("f8")
    ties = ((ties[1:] + ties[:-1]) / 2).astype(dtype)
    near = np.r_[ties, np.nextafter(ties, dtype.type(0)), np.nextafter(ties, dtype.type(np.inf))]
    singles = np.array([2.0**-149, 2.0**-150, 1.5 * 2.0**-149, 2.0**-126, 3.4028235677973366e38, 2.0**53 + 2], "f8")
    with np.errstate(all="ignore"):
        plain = np.r_[np.array(special, dtype), near, halves, singles.astype(dtype)]
    return np.r_[plain, -plain, nans, -nans, big_nans, noise]


def values_that_fit(stored: str, result: str) -> npt.NDArray[Any]:
    """Leave out what has no defined integer result."""
    values = edge_values(stored)
    if np.dtype(stored).kind != "f" or np.dtype(result).kind not in "iu":
        return values
    info = np.iinfo(result)
    with np.errstate(all="ignore"):
        wide = np.trunc(values.astype("f8"))
    return values[(wide >= float(info.min)) & (wide <= float(info.max)) & (wide < 2.0 ** (info.bits - (info.min < 0)))]


def cast_of(stored: str, result: str, **steps: Any) -> ElementCast:
    return ElementCast(stored=np.dtype(stored), result=np.dtype(result), **steps)


def place_values(values: npt.NDArray[Any], cast: ElementCast) -> npt.NDArray[Any]:
    stored = Stored(array=values, chunk_shape=(1000,), order=(0,))
    return scattered(stored, cast, [ALL])


def conversions() -> list[tuple[str, str]]:
    """Return the pairs that are tried, each of which is a kernel to build: half of them, and all where numbers round.

    `test_filter_kernels` converts every pair; every dtype is among these on either side.
    """
    pairs = [*enumerate(itertools.product(REAL_DTYPES, repeat=2))]
    n = usually(2, full=1)
    return [(s, r) for at, (s, r) in pairs if (at // len(REAL_DTYPES) + at) % n == 0 or r[0] == "f"]


@pytest.mark.parametrize(("stored", "result"), conversions())
def test_conversion_is_numpys(stored: str, result: str) -> None:
    values, cast = values_that_fit(stored, result), cast_of(stored, result)
    assert len(values) > 4
    assert_same_bits(place_values(values, cast), expected(values, cast))


@pytest.mark.parametrize("byte", [2, 128, 255])
@pytest.mark.parametrize("result", ["i1", "f4"])
def test_any_byte_but_zero_is_true(byte: int, result: str) -> None:
    values, cast = np.array([0, byte], np.uint8).view(bool), cast_of("b1", result)
    assert_same_bits(place_values(values, cast), np.array([0, 1], result))


@pytest.mark.sanitized
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("name", COPIED)
def test_copy_restores_byte_order(name: str, order: str) -> None:
    dtype = np.dtype(name).newbyteorder(order)
    values = np.frombuffer(np.random.default_rng(1).bytes(2500 * dtype.itemsize), dtype)
    cast = ElementCast(stored=dtype, result=dtype.newbyteorder("="))
    assert cast.is_copy
    assert_same_bits(place_values(values, cast), values.astype(cast.result))


BIG = [*itertools.product([">i2", ">u4", ">i8", ">f2", ">f4", ">f8"], FLOATS), (">u4", "i4")]


@pytest.mark.parametrize(("stored", "result"), BIG)
def test_big_endian_is_converted(stored: str, result: str) -> None:
    values = edge_values(stored[1:]).astype(stored)
    cast = cast_of(stored, result)
    assert_same_bits(place_values(values, cast), expected(edge_values(stored[1:]), cast))


ARITHMETIC: list[dict[str, Any]] = [
    {"scale": 0.01},
    {"offset": 273.15},
    {"scale": 0.0026, "offset": -5.25},
    {"mask": (1,), "scale": 3.0},
    {"mask": (0.0,), "offset": 1},
    {"mask": (-1, 5, 100), "scale": 1e-3, "offset": 1e3},
    {"scale": 0.0, "offset": -0.0},
    {"scale": np.inf},
    {"scale": 1e-42},
    {"offset": 1e-42},
]


@pytest.mark.parametrize("steps", ARITHMETIC, ids=str)
@pytest.mark.parametrize("result", FLOATS)
@pytest.mark.parametrize("stored", ["i1", "i2", "u4", "i8", "f2", "f4", "f8"])
def test_arithmetic_rounds_as_numpy_does(stored: str, result: str, steps: dict[str, Any]) -> None:
    values, cast = edge_values(stored), cast_of(stored, result, **steps)
    assert_same_bits(place_values(values, cast), expected(values, cast))


@pytest.mark.parametrize("steps", ARITHMETIC, ids=str)
@pytest.mark.parametrize("stored", ["u1", "i2", "u4", "i8", "f2", "f4", "f8", ">i2"])
def test_wide_arithmetic_is_rounded_once(stored: str, steps: dict[str, Any]) -> None:
    values = edge_values(stored.removeprefix(">")).astype(stored)
    cast = cast_of(stored, "f4", wide=np.dtype("f8"), **steps)
    assert_same_bits(place_values(values, cast), expected(values, cast))


@pytest.mark.parametrize("result", FLOATS)
def test_nan_constant_gives_nan(result: str) -> None:
    # Of two NaNs NumPy keeps the payload of either, depending on the length of the array: none meets another here.
    values, cast = edge_values("i2"), cast_of("i2", result, offset=np.nan)
    assert_same_bits(place_values(values, cast), expected(values, cast))


def test_result_is_not_contracted() -> None:
    values = np.array([1 + 2.0**-12], "f4")
    cast = cast_of("f4", "f4", scale=1 + 2.0**-12, offset=-1.0)
    assert place_values(values, cast).item() == 2.0**-11  # one rounding less would leave 2**-24 more


@pytest.mark.parametrize("stored", ["i8", "u8"])
def test_mask_is_compared_in_the_result_dtype(stored: str) -> None:
    values = np.array([2**53, 2**53 + 1, 2**53 + 2], stored)
    found = place_values(values, cast_of(stored, "f8", mask=(2**53,)))
    assert np.isnan(found).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("stored", "result", "steps", "why"),
    [
        ("i2", ">f4", {}, "byte order of the machine"),
        ("f4", "c8", {}, "complex64 can only be copied"),
        ("c8", "c8", {"scale": 2.0}, "complex64 can only be copied"),
        ("S3", "S3", {}, "can only be copied"),
        ("M8[s]", "M8[ns]", {}, "can only be copied"),
        ("i2", "i4", {"offset": 1}, "need a floating result"),
        ("f4", "b1", {"mask": (0,)}, "need a floating result"),
    ],
)
def test_impossible_cast_says_why(stored: str, result: str, steps: dict[str, Any], why: str) -> None:
    assert why in str(why_no_cast(np.dtype(stored), np.dtype(result), has_arithmetic=bool(steps)))
    with pytest.raises(ValueError, match=why):
        cast_of(stored, result, **steps)


# ---- boxes

INDEX = np.array([0, 3, 3, 4, 9, 11, 18], np.int64)

BOXES = [
    ((100,), (100,), (0,), [ALL]),
    ((1,), (1,), (0,), [ALL]),
    ((100,), (7,), (0,), [ALL]),
    ((20000,), (8192,), (0,), [slice(5, 19990)]),
    ((20,), (6,), (0,), [INDEX]),
    ((20, 30), (6, 8), (0, 1), [ALL, ALL]),
    ((20, 30), (6, 8), (1, 0), [ALL, ALL]),
    ((20, 32), (20, 8), (0, 1), [slice(2, 19), slice(4, 28)]),
    ((20, 30), (20, 30), (0, 1), [ALL, slice(0, 16)]),
    ((20, 30), (4, 30), (0, 1), [ALL, np.minimum(np.arange(30), 28)]),
    ((20, 30), (20, 30), (0, 1), [slice(3, 4), ALL]),
    ((20, 30), (20, 30), (0, 1), [ALL, slice(3, 4)]),
    ((20, 30), (6, 8), (0, 1), [slice(1, 18, 3), slice(2, 29, 5)]),
    ((20, 30), (6, 8), (0, 1), [INDEX, slice(0, 30, 2)]),
    ((20, 30), (6, 8), (1, 0), [slice(0, 20, 2), INDEX]),
    ((20, 30), (6, 8), (0, 1), [slice(0, 0), ALL]),
    ((300, 7), (300, 7), (1, 0), [ALL, ALL]),
    ((7, 300), (7, 300), (1, 0), [ALL, ALL]),
    ((12, 721, 14), (1, 721, 14), (0, 1, 2), [ALL, ALL, ALL]),
    ((9, 10, 11), (4, 5, 6), (2, 1, 0), [ALL, ALL, ALL]),
    ((9, 10, 11), (4, 5, 6), (1, 2, 0), [ALL, slice(1, 9, 2), ALL]),
    ((4, 6, 5, 3), (2, 6, 5, 3), (0, 1, 2, 3), [ALL, ALL, ALL, ALL]),
    ((2, 3, 2, 3, 2, 3, 2, 3), (1, 2, 2, 2, 2, 2, 1, 2), (0, 1, 2, 3, 4, 5, 6, 7), [ALL] * 8),
    ((2, 3, 2, 3, 2, 3, 2, 3), (2, 2, 2, 2, 1, 2, 2, 3), (7, 2, 1, 3, 5, 4, 6, 0), [ALL] * 8),
]

CASTS = [cast_of("u1", "u1"), cast_of("i2", "f4", scale=0.5, mask=(3,)), cast_of(">f8", "f8"), cast_of("c16", "c16")]


def outer(array: npt.NDArray[Any], wanted: list[Any]) -> npt.NDArray[Any]:
    return array[np.ix_(*(np.arange(n)[w] for n, w in zip(array.shape, wanted, strict=True)))]


def numbered(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return (np.arange(np.prod(shape, dtype=int)) % 251).astype(dtype).reshape(shape)


def check_box(stored: Stored, cast: ElementCast, wanted: list[Any]) -> None:
    found = scattered(stored, cast, wanted)
    assert_same_bits(found, expected(outer(stored.filled(), wanted), cast))


@pytest.mark.sanitized
@pytest.mark.parametrize("cast", CASTS, ids=lambda c: f"{c.stored.str}-{c.result.str}")
@pytest.mark.parametrize("box", BOXES, ids=str)
def test_box_is_what_numpy_indexes(box: Any, cast: ElementCast) -> None:
    shape, chunk_shape, order, wanted = box
    stored = Stored(array=numbered(shape, cast.stored), chunk_shape=chunk_shape, order=order)
    check_box(stored, cast, wanted)


@pytest.mark.sanitized
@pytest.mark.parametrize("cast", CASTS, ids=lambda c: f"{c.stored.str}-{c.result.str}")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_missing_chunks_take_the_cast_fill_value(order: tuple[int, int], cast: ElementCast) -> None:
    stored = Stored(
        array=numbered((20, 30), cast.stored), chunk_shape=(6, 8), order=order, missing={(0, 0), (1, 2), (3, 3)}, fill=3
    )
    check_box(stored, cast, [ALL, slice(1, 30, 3)])
    check_box(stored, cast, [slice(5, 20), INDEX])
    check_box(stored, cast, [ALL, ALL])


@pytest.mark.parametrize("cast", CASTS, ids=lambda c: f"{c.stored.str}-{c.result.str}")
@pytest.mark.parametrize("wanted", [[slice(2, 3), ALL], [slice(2, 3), slice(4, 5)]], ids=str)
def test_a_missing_chunk_behind_its_first_element(wanted: list[slice], cast: ElementCast) -> None:
    stored = Stored(array=numbered((6, 8), cast.stored), chunk_shape=(6, 8), order=(0, 1), missing={(0, 0)}, fill=3)
    check_box(stored, cast, wanted)


@pytest.mark.sanitized
@pytest.mark.parametrize("missing", [(), [()]])
@pytest.mark.parametrize("cast", CASTS, ids=lambda c: f"{c.stored.str}-{c.result.str}")
def test_array_without_dimensions(cast: ElementCast, missing: Any) -> None:
    stored = Stored(array=np.array(7, cast.stored), chunk_shape=(), order=(), missing=missing, fill=9)
    check_box(stored, cast, [])


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, Any]:
    length = draw(st.integers(1, 40))
    chunk = draw(st.integers(1, length + 3))
    if draw(st.booleans()):
        start, stop = sorted((draw(st.integers(0, length)), draw(st.integers(0, length))))
        return length, chunk, slice(start, stop, draw(st.sampled_from([1, 1, 1, 2, 3, 7])))
    index = draw(st.lists(st.integers(0, length - 1), max_size=20))
    return length, chunk, np.array(sorted(index), np.int64)


@pytest.mark.sanitized
@given(st.lists(axes(), min_size=1, max_size=4), st.sampled_from(CASTS), st.data())
def test_any_box_is_what_numpy_indexes(table: list[Any], cast: ElementCast, data: st.DataObject) -> None:
    shape, chunk_shape, wanted = (tuple(x) for x in zip(*table, strict=True))
    assume(np.prod(shape) < 50000)
    n_chunks = [range(-(-n // c)) for n, c in zip(shape, chunk_shape, strict=True)]
    missing = data.draw(st.sets(st.tuples(*(st.sampled_from(r) for r in n_chunks)), max_size=5))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    stored = Stored(array=numbered(shape, cast.stored), chunk_shape=chunk_shape, order=order, missing=missing, fill=3)
    check_box(stored, cast, list(wanted))


def one_axis(count: int, *, in_start: int = 0, out_start: int = 0, stride: int = 1) -> AxisColumns:
    def column(value: int) -> npt.NDArray[np.int64]:
        return np.array([value], np.int64)

    return AxisColumns(
        in_start=column(in_start),
        count=column(count),
        out_start=column(out_start),
        index=None,
        step=1,
        in_stride=stride,
        out_stride=stride,
    )


@pytest.mark.parametrize(
    ("dtype", "count", "in_start", "out_start", "out", "unit"),
    [
        ("u1", 64, 0, 0, 256, 16),
        ("u1", 64, 8, 16, 256, 8),
        ("u1", 64, 0, 4, 256, 4),
        ("u1", 62, 0, 0, 256, 2),
        ("u1", 64, 0, 0, 257, 1),
        ("f4", 64, 0, 0, 256, 16),
        ("f4", 63, 0, 0, 256, 4),
        (">f4", 62, 0, 0, 256, 8),
        ("c16", 1, 0, 0, 256, 16),
    ],
)
def test_copies_are_as_wide_as_the_layout_allows(
    dtype: str, count: int, in_start: int, out_start: int, out: int, unit: int
) -> None:
    cast = ElementCast(stored=np.dtype(dtype), result=np.dtype(dtype).newbyteorder("="))
    kernel = Scatter([one_axis(count, in_start=in_start, out_start=out_start)], cast, out=out, fill=0)
    assert kernel.unit_nbytes == unit


def test_too_many_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="an array of 9 dimensions"):
        Scatter([one_axis(1)] * 9, CASTS[0], out=0, fill=0)


def test_too_large_a_box_is_refused() -> None:
    with pytest.raises(ValueError, match="2147483648 elements"):
        Scatter([one_axis(2**31)], cast_of("i2", "f4"), out=0, fill=0)


# ---- points


@pytest.mark.sanitized
@given(st.integers(0, 700), st.integers(0, 2**32), st.sampled_from(CASTS), st.permutations(range(3)))
def test_points_are_what_numpy_indexes(n: int, seed: int, cast: ElementCast, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    shape, chunk_shape = (9, 10, 11), tuple(rng.integers(1, 12, 3).tolist())
    points = [rng.integers(0, length, n) for length in shape]
    stored = Stored(
        array=numbered(shape, cast.stored), chunk_shape=chunk_shape, order=tuple(order), missing={(0, 0, 0)}, fill=3
    )
    assert_same_bits(picked(stored, cast, points), expected(stored.filled()[tuple(points)], cast))


@pytest.mark.sanitized
def test_a_chunk_of_many_points() -> None:
    stored = Stored(array=numbered((100,), np.dtype("i2")), chunk_shape=(100,), order=(0,))
    at = np.random.default_rng(3).integers(0, 100, 50000)
    cast = cast_of("i2", "f4")
    assert_same_bits(picked(stored, cast, [at]), expected(stored.array[at], cast))


# ---- runs of bytes


@pytest.mark.sanitized
@given(
    st.lists(
        st.tuples(st.integers(0, 31), st.integers(0, 31), st.one_of(st.integers(0, 70), st.integers(65500, 140000))),
        max_size=6,
    )
)
def test_runs_of_any_alignment_are_moved(runs: list[tuple[int, int, int]]) -> None:
    run_moves(runs)


# ---- accesses outside of what the tables describe

OUTSIDE = """
import numpy as np
from helpers.kernels.on_host import HostLaunches
from helpers.kernels.memory import aligned
from test_kernels import cast_of, one_axis
from xarray_gpuzarr.cuda.placers import Scatter

def run(in_start, out_start):
    chunk, out, row = aligned(8000), aligned(16000), np.zeros((1, 1), np.int64)
    axis = one_axis(4000, in_start=in_start, out_start=out_start)
    kernel = Scatter([axis], cast_of("i2", "f4"), out=out.ctypes.data, fill=0)
    table, src = aligned(kernel.nbytes), np.array([chunk.ctypes.data], np.uint64)
    kernel.pack(table, table.ctypes.data)
    places = dict(table=table.ctypes.data, source=src.ctypes.data, row=row.ctypes.data, n_rows=1)
    kernel.launch(HostLaunches(), None, **places)
"""


def test_sanitizers_catch_wrong_tables() -> None:
    said = assert_sanitizers_catch(OUTSIDE, harmless=[(0, 0)], aborted=[(0, 1), (0, -1), (1, 0), (-1, 0)])
    assert said.count("WRITE of size 4") == said.count("READ of size 2") == 2


@given(st.lists(st.integers(0, 1 << 20) | st.integers(0, 1 << 40) | st.just(0), max_size=60))
def test_moves_of_about_one_length_share_a_launch(lengths):
    """So that no launch has many more blocks than there are tiles of bytes to move."""
    nbytes = np.sort(np.array(lengths, np.int64))

    cuts = rows_by_length(nbytes)

    assert [row for rows in cuts for row in range(len(nbytes))[rows]] == np.flatnonzero(nbytes).tolist()
    n_tiles = -(-nbytes // MOVE_TILE_NBYTES)
    for rows in cuts:
        assert n_tiles[rows].max() < 2 * n_tiles[rows].min()
        assert len(n_tiles[rows]) * n_tiles[rows].max() < 2 * n_tiles[rows].sum()


def test_one_long_move_beside_many_short_ones_fits_the_grid():
    nbytes = np.array([1] * 1_000_000 + [1 << 32], np.int64)

    grids = [len(nbytes[rows]) * -(-int(nbytes[rows].max()) // MOVE_TILE_NBYTES) for rows in rows_by_length(nbytes)]

    assert grids == [1_000_000, 65536]
    assert len(nbytes) * 65536 > MAX_BLOCKS


@pytest.mark.sanitized
@pytest.mark.parametrize("rows", [slice(None), slice(0, 2), slice(2, 3), slice(1, 1)])
def test_some_runs_of_a_table_are_moved(rows):
    data, out, n = np.arange(90_000, dtype=np.uint8), np.zeros(90_000, np.uint8), np.array([3, 70_000, 17])
    at = np.array([5, 100, 80_000])
    table = np.array([at + data.ctypes.data, at + out.ctypes.data, n], np.uint64)

    move(HostLaunches(), None, table=table.ctypes.data, n=3, max_nbytes=70_000, rows=rows)

    expected = np.zeros_like(out)
    for first, length in zip(at[rows], n[rows], strict=True):
        expected[first : first + length] = data[first : first + length]
    assert np.array_equal(out, expected)
