"""Tests of three parameters and more run with every pair of values, not with every combination.

Such a test runs with a covering array of its combinations: the same ones every time, so that no change fails for what
it did not touch. A decoder is a parameter like others. All combinations run by `FULL`, on a GPU, and where a user names
tests. CONTRIBUTING.md says what marks and `COMBINATIONS` choose instead.
"""

import os
from collections import defaultdict

import pytest

from helpers import not_run
from helpers.covering import covering, every_value

COMBINATIONS = "XARRAY_GPUZARR_TEST_COMBINATIONS"
"""The environment variable that says which run: ``all``, ``pairs`` of values, or ``values``."""
_RUN = os.environ.get(COMBINATIONS, "pairs")
FULL = _RUN == "all"
"""Whether this is ``make test-full``."""
SEED = int(os.environ.get("XARRAY_GPUZARR_TEST_SEED", "0"))
"""What random values are drawn by; another one in each ``make test-full``, which prints it."""


if _RUN not in {"all", "pairs", "values"}:
    raise ValueError(f"{COMBINATIONS}={_RUN}: all, pairs and values are known")


def usually[T](few: T, *, full: T) -> T:
    """Return how many of something are tried, or which: `few`, or `full` by ``make test-full``."""
    return full if FULL else few


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take combinations that say nothing new out of `items`; called once they are collected."""
    named = any("::" in argument for argument in config.args)
    out = set() if FULL or named else {id(item) for test in _tests(items).values() for item in _without(test)}
    if out:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in out])
        items[:] = [item for item in items if id(item) not in out]
    not_run.count(config, "combinations of parameters: make test-full", len(out))


def _tests(items: list[pytest.Item]) -> dict[str, list[pytest.Function]]:
    """Return the combinations of each test that some may be left out of, by the test's name."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        # A parameter's own marks may skip it, so that it covers nothing.
        called = getattr(item, "callspec", None)
        if called is None or called.marks or len(called._idlist) < (2 if _is_enough(item) else 3):
            continue
        if not any(map(item.get_closest_marker, ("gpu", "every_combination"))):
            tests[item.nodeid.split("[")[0]].append(item)
    return tests


def _is_enough(item: pytest.Item) -> bool:
    """Say whether each value of each parameter is enough."""
    return _RUN == "values" or item.get_closest_marker("every_value") is not None


def _without(test: list[pytest.Function]) -> list[pytest.Function]:
    """Return the combinations of one test that need not run."""
    also = [name for mark in test[0].iter_markers("also_with") for name in mark.args]
    numbers = {item.callspec.id: number for number, item in enumerate(test)}
    unknown = [name for name in also if name not in numbers]
    if unknown and not test[0].config.option.keyword:
        raise pytest.UsageError(f"{test[0].nodeid} has no combination {unknown[0]!r}, which its mark names")
    rows = [item.callspec._idlist for item in test]
    choose = every_value if _is_enough(test[0]) else covering
    kept = {*choose(rows, [numbers[name] for name in also if name in numbers])}
    return [item for number, item in enumerate(test) if number not in kept]
