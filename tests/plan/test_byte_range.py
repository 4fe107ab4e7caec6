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


sparing_rules = st.builds(
    CoalesceRule,
    max_gap_nbytes=st.integers(0, 30),
    max_nbytes=st.just(10**6),
    min_skipped_gap_nbytes=st.integers(0, 30),
    n_cheap_requests=st.integers(1, 12),
)


@many
@given(rows(), sparing_rules)
def test_where_requests_are_few_gaps_are_skipped(columns, rule):
    offset, nbytes = columns
    gaps = np.maximum(0, offset[1:] - (offset + nbytes)[:-1])

    bounds = coalesce(offset, nbytes, rule)

    cut = np.zeros(max(0, len(offset) - 1), bool)
    cut[bounds[1:-1] - 1] = True
    read, skipped = gaps[~cut], gaps[cut]
    assert (skipped > 0).all()
    most = max(nbytes.sum(), rule.min_skipped_gap_nbytes)
    assert read.sum() <= most
    assert read.max(initial=0) <= rule.max_gap_nbytes
    longest = min(rule.max_gap_nbytes, skipped.min(initial=100))
    assert read.max(initial=0) <= longest or (skipped > rule.max_gap_nbytes).all()
    # The next gap is skipped because it is too long, or would cost too much, or requests are few enough.
    may_be_read = skipped[skipped <= rule.max_gap_nbytes]
    if len(may_be_read):
        is_dear = read.sum() + may_be_read.min() > most
        assert is_dear or (
            may_be_read.min() >= rule.min_skipped_gap_nbytes and len(skipped) + 1 <= rule.n_cheap_requests
        )


@pytest.mark.parametrize(
    ("n_cheap_requests", "share", "bounds"),
    [
        pytest.param(9, 1, [0, 2, 3, 4], id="a short gap is read in any case"),
        pytest.param(2, 1, [0, 2, 4], id="the shortest ones until requests are few enough"),
        pytest.param(4, 0.5, [0, 2, 4], id="in proportion to what the read wants"),
        pytest.param(1, 1, [0, 4], id="and the longest"),
    ],
)
def test_gaps_are_read_as_far_as_requests_are_too_many(n_cheap_requests, share, bounds):
    rule = CoalesceRule(
        max_gap_nbytes=50,
        max_nbytes=1000,
        max_raw_nbytes=1000,
        min_skipped_gap_nbytes=5,
        n_cheap_requests=n_cheap_requests,
    )

    assert coalesce(np.array([0, 104, 250, 360]), np.full(4, 100), rule, share=share).tolist() == bounds


def test_no_more_bytes_of_gaps_than_of_chunks_are_read():
    rule = CoalesceRule(max_gap_nbytes=50, max_nbytes=1000, max_raw_nbytes=1000, min_skipped_gap_nbytes=20)

    bounds = coalesce(np.array([0, 14, 38, 43]), np.full(4, 5), rule)

    assert bounds.tolist() == [0, 2, 4]
