"""Which neighbours become one request."""

import numpy as np
import pytest
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.plan.byte_range import CoalesceRule, coalesce

RULE = CoalesceRule(max_gap_nbytes=10, max_nbytes=100, max_raw_nbytes=100)

rules = st.builds(CoalesceRule, max_gap_nbytes=st.integers(0, 30), max_nbytes=st.integers(1, 80))


@st.composite
def rows(draw):
    """(offset, nbytes) sorted as the caller must: disjoint or equal ranges."""
    table, at = [], 0
    for gap, nbytes, copies in draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60), st.integers(1, 2)), max_size=16)
    ):
        table += [(at + gap, nbytes)] * copies
        at += gap + nbytes
    return np.asarray(table, np.int64).reshape(-1, 2).T


@many
@given(rows(), rules)
def test_runs_cover_all_rows_and_are_joined_where_they_may_be(columns, rule):
    offset, nbytes = columns
    end = offset + nbytes

    bounds = coalesce(offset, nbytes, rule)

    assert (bounds[0], bounds[-1]) == (0, len(offset))
    assert (np.diff(bounds) > 0).all()
    lo, hi = bounds[:-1], bounds[1:]
    assert ((hi - lo == 1) | (end[hi - 1] - offset[lo] <= rule.max_nbytes)).all()
    inside = np.ones(max(0, len(offset) - 1), bool)
    inside[bounds[1:-1] - 1] = False
    assert ((offset[1:] - end[:-1])[inside] <= rule.max_gap_nbytes).all()
    first, border = bounds[:-2], bounds[1:-1]
    too_far = offset[border] - end[border - 1] > rule.max_gap_nbytes
    too_long = end[border] - offset[first] > rule.max_nbytes
    assert (too_far | too_long).all()


@pytest.mark.parametrize(
    ("offset", "nbytes", "bounds"),
    [
        pytest.param([], [], [0], id="nothing"),
        pytest.param([5], [1000], [0, 1], id="one chunk is never cut, however large"),
        pytest.param([0, 10, 20], [10, 10, 10], [0, 3], id="neighbours"),
        pytest.param([0, 20], [10, 10], [0, 2], id="gap of just what is allowed"),
        pytest.param([0, 21], [10, 10], [0, 1, 2], id="gap one byte too wide"),
        pytest.param([0, 50], [50, 50], [0, 2], id="run of just the length allowed"),
        pytest.param([0, 50], [50, 51], [0, 1, 2], id="run one byte too long"),
        pytest.param([7, 7], [9, 9], [0, 2], id="the same bytes twice"),
        pytest.param([0, 2**62], [10, 10], [0, 1, 2], id="far apart"),
    ],
)
def test_runs_of_one_object(offset, nbytes, bounds):
    assert coalesce(np.asarray(offset, np.int64), np.asarray(nbytes, np.int64), RULE).tolist() == bounds
