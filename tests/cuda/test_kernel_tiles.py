"""How the kernel that places boxes cuts them into tiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.kernels.runs import Stored, expected, scattered
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda import axes
from xarray_gpuzarr.cuda.axes import AxisColumns, Tiling, Walk, plan_tiles
from xarray_gpuzarr.cuda.cast import ElementCast

CAST = ElementCast(stored=np.dtype("i2"), result=np.dtype("f4"), mask=(3,), scale=0.5)


def axis(count: int, in_stride: int, out_stride: int = 1) -> AxisColumns:
    zero, counts = np.zeros(1, np.int64), np.array([count], np.int64)
    places = {"in_start": zero, "count": counts, "out_start": zero, "index": None, "step": 1}
    return AxisColumns(**places, in_stride=in_stride, out_stride=out_stride)


def tiles(counts: tuple[int, ...], itemsize: int, *, is_transposed: bool = False) -> Tiling:
    """Return the tiles of one box, held with its last axis or with the one before contiguous."""
    strides = [math.prod(counts[i + 1 :]) for i in range(len(counts))]
    if is_transposed:
        strides[-2:] = [1, counts[-2]]
    found = tuple(axis(n, stride) for n, stride in zip(counts, strides, strict=True))
    return plan_tiles(Walk(axes=found, columns=tuple(range(len(counts)))), itemsize=itemsize)


@given(
    st.lists(st.integers(1, 100_000) | st.integers(1, 70), min_size=2, max_size=3).filter(
        lambda n: math.prod(n) < 2**31
    ),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.booleans(),
)
@many
def test_tiles_cover_a_box_and_fit_the_kernel(counts: list[int], itemsize: int, is_transposed: bool) -> None:
    found, n = tiles(tuple(counts), itemsize, is_transposed=is_transposed), math.prod(counts)
    tiles_down = found.n_tiles // found.tiles_across
    assert found.tiles_across * found.width >= counts[-1] > (found.tiles_across - 1) * found.width
    assert tiles_down * found.n_lines >= n // counts[-1] > (tiles_down - 1) * found.n_lines
    assert found.width * found.n_lines <= 8192
    assert found.n_lines <= 256
    assert found.n_lines * found.pitch * itemsize <= 17408
    assert found.pitch == 0 or found.pitch >= found.width
    assert found.n_tiles <= -(-n // axes.LEAST_TILE)


@pytest.mark.parametrize(("itemsize", "pitch"), [(1, 92), (2, 90), (4, 91), (8, 91)])
def test_lines_in_shared_memory_begin_in_different_banks(itemsize: int, pitch: int) -> None:
    assert tiles((20, 90), itemsize, is_transposed=True).pitch == pitch
    assert len({line * pitch * itemsize // 4 % 32 for line in range(16)}) == 16


@pytest.mark.parametrize("strides", [(2**27, 1), (1, 2**27), (-(2**27), 1)])
def test_tiles_are_one_element_wide_where_neighbours_lie_too_far_apart(strides: tuple[int, int]) -> None:
    far = Walk(axes=(axis(500, 3), axis(20, *strides)), columns=(0, 1))
    assert plan_tiles(far, itemsize=4) == Tiling(width=1, n_lines=250, tiles_across=20, n_tiles=40, pitch=0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_such_tiles_are_placed_as_others(order: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "MAX_STEP", 16)
    values = np.arange(600, dtype="i2").reshape(20, 30)
    stored = Stored(array=values, chunk_shape=(12, 8), order=order)
    assert_same_bits(scattered(stored, CAST, [slice(None), slice(1, 28, 3)]), expected(values[:, 1:28:3], CAST))


@pytest.mark.parametrize("name", ["u1", "i2", "f4", "f8"])
def test_boxes_of_many_transposed_tiles(name: str) -> None:
    values = np.arange(150 * 301).astype(name).reshape(150, 301)
    cast = ElementCast(stored=values.dtype, result=np.dtype("f4"), offset=2.0)
    stored = Stored(array=values, chunk_shape=(140, 290), order=(1, 0))
    wanted = [np.r_[0:100:2, 101:149], np.r_[3, 3, 7:300]]
    assert_same_bits(scattered(stored, cast, wanted), expected(values[np.ix_(*wanted)], cast))
