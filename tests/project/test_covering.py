"""Fewer combinations say as much: every pair of choices is among them."""

import random
from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest
from helpers import every_pair, not_run
from helpers.covering import covering, every_value, pairs_of

PRODUCTS = {
    "two choices": [*product("abc", "de")],
    "formats, dtypes, decoders": [*product(range(30), range(13), "hsi")],
    "five": [*product(range(4), range(4), range(3), "ab", "cd")],
    "some are missing": random.Random(0).sample([*product(range(9), range(8), range(7))], 300),
    "one choice": [*product("abc")],
    "none": [],
}


@pytest.mark.parametrize("rows", PRODUCTS.values(), ids=PRODUCTS)
def test_every_pair_is_covered(rows):
    taken = [rows[number] for number in covering(rows)]

    assert set().union(*map(pairs_of, taken)) == set().union(*map(pairs_of, rows))


@pytest.mark.parametrize("rows", PRODUCTS.values(), ids=PRODUCTS)
def test_every_value_is_covered_by_few_rows_that_differ(rows):
    def counts(taken):
        return [Counter(rows[number][place] for number in taken) for place in range(len(rows[0]) if rows else 0)]

    taken = every_value(rows)

    assert [set(count) for count in counts(taken)] == [{row[p] for row in rows} for p in range(len(counts([])))]
    assert len(taken) <= max((len(count) for count in counts(taken)), default=0)
    assert every_value(rows, taken) == taken


@pytest.mark.also_with("z-2-True-4")
@pytest.mark.parametrize("fourth", range(5))
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("first", "xyz")
def test_example(first, second, third, fourth):
    """What the next test looks at."""


@pytest.mark.every_combination
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("second", range(3))
@pytest.mark.parametrize("first", range(3))
def test_whole_example(first, second, third):
    """Another one."""


@pytest.mark.every_value
@pytest.mark.parametrize("second", range(3))
@pytest.mark.parametrize("first", range(5))
def test_long_example(first, second):
    """And one that takes long."""


def ran_of(request, name):
    if any("::" in argument for argument in request.config.args):
        pytest.skip("a user who names tests gets them all")
    start = f"{request.path.name}::{name}["
    return [item.callspec for item in request.session.items if start in item.nodeid]


def test_tests_of_many_parameters_run_with_every_pair(request):
    ran = ran_of(request, "test_example")
    pairs = set().union(*(pairs_of(c._idlist) for c in ran))

    assert len(pairs) == 3 * 4 + 3 * 2 + 3 * 5 + 4 * 2 + 4 * 5 + 2 * 5
    assert "z-2-True-4" in {c.id for c in ran}
    assert (len(ran) == 120) if every_pair.FULL else (20 <= len(ran) < 30)


def test_tests_may_ask_for_every_combination(request):
    assert len(ran_of(request, "test_whole_example")) == 27


def test_tests_that_take_long_run_with_every_value(request):
    ran = [c._idlist for c in ran_of(request, "test_long_example")]

    assert {first for first, _ in ran} == {*"01234"}
    assert {second for _, second in ran} == {*"012"}
    assert len(ran) == (15 if every_pair.FULL else 5)


def test_what_is_left_out_and_skipped_is_said_once_for_each_reason():
    def skipped(why):
        return SimpleNamespace(longrepr=("file.py", 3, f"Skipped: {why}"))

    config = SimpleNamespace(stash=pytest.Stash())
    of_a_worker = SimpleNamespace(stash=pytest.Stash(), workeroutput={})
    not_run.count(of_a_worker, "of a kind", 7)
    not_run.count(of_a_worker, "of another", 0)
    not_run.take_over(config, of_a_worker.workeroutput)

    lines = [*not_run.lines(config, [skipped("no file"), skipped("no module"), skipped("no file")])]

    assert lines == ["not run: 7 of a kind", "not run: 2 no file", "not run: 1 no module"]
