"""Tests of many parameters run with fewer combinations, among which is every pair of values."""

import random
from itertools import product
from types import SimpleNamespace

import pytest
from helpers import every_pair, not_run
from helpers.covering import covering, every_value, pairs_of

pytest_plugins = ["pytester"]

PRODUCTS = {
    "two choices": [*product("abc", "de")],
    "formats, dtypes, decoders": [*product(range(30), range(13), "hsi")],
    "five": [*product(range(4), range(4), range(3), "ab", "cd")],
    "some are missing": random.Random(0).sample([*product(range(9), range(8), range(7))], 300),
    "one choice": [*product("abc")],
    "none": [],
}


@pytest.mark.parametrize("rows", PRODUCTS.values(), ids=PRODUCTS)
def test_every_pair_and_every_value_is_covered(rows):
    pairs = [rows[number] for number in covering(rows)]
    numbers = every_value(rows)
    few = [rows[number] for number in numbers]

    assert set().union(*map(pairs_of, pairs)) == set().union(*map(pairs_of, rows))
    assert [set(column) for column in zip(*few, strict=True)] == [set(column) for column in zip(*rows, strict=True)]
    assert len(few) <= max((len(set(column)) for column in zip(*rows, strict=True)), default=0)
    assert every_value(rows, also=numbers) == numbers


EXAMPLES = """
import pytest

@pytest.mark.also_with("z-2-True-4")
@pytest.mark.parametrize("fourth", range(5))
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("first", "xyz")
def test_pairs(first, second, third, fourth):
    pass

@pytest.mark.every_combination
@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("second", range(3))
@pytest.mark.parametrize("first", range(3))
def test_all(first, second, third):
    pass

@pytest.mark.every_value
@pytest.mark.parametrize("second", range(3))
@pytest.mark.parametrize("first", range(5))
def test_values(first, second):
    pass
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning")
@pytest.mark.parametrize(
    ("full", "named", "counts"), [(False, "", (20, 27, 5)), (True, "", (120, 27, 15)), (False, "::test_pairs", (120,))]
)
def test_marks_and_names_choose_how_many_combinations_run(pytester, monkeypatch, full, named, counts):
    monkeypatch.setattr(every_pair, "FULL", full)
    monkeypatch.setattr(every_pair, "_RUN", "pairs")
    path = pytester.makepyfile(EXAMPLES)

    items, _ = pytester.inline_genitems(f"{path}{named}")
    every_pair.leave_out(pytester.parseconfig(f"{path}{named}"), items)

    names = [item.originalname for item in items]
    assert tuple(names.count(name) for name in dict.fromkeys(names)) == counts
    assert "z-2-True-4" in {item.callspec.id for item in items}


def test_reasons_why_tests_did_not_run_are_said_once_each():
    skipped = [SimpleNamespace(longrepr=("file.py", 3, f"Skipped: {why}")) for why in ("no file", "no disk", "no file")]
    config = SimpleNamespace(stash=pytest.Stash())
    worker = SimpleNamespace(stash=pytest.Stash(), workeroutput={})
    not_run.count(worker, "of a kind", 7)
    not_run.count(worker, "of another", 0)

    not_run.take_over(config, worker.workeroutput)

    assert [*not_run.lines(config, skipped)] == ["not run: 7 of a kind", "not run: 2 no file", "not run: 1 no disk"]
