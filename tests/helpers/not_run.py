"""What a run leaves out, and why: one line for each reason at its end, whatever processes the tests ran in."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

_LEFT_OUT = "left_out"
_left_out = pytest.StashKey[dict[str, int]]()


def without_gpu(config: pytest.Config) -> bool:
    """Say whether what needs a GPU is not even collected: there is as much of it as all the rest."""
    return "not gpu" in config.option.markexpr


def count(config: pytest.Config, why: str, n: int) -> None:
    """Note that `n` more tests are left out before any runs."""
    found = config.stash.setdefault(_left_out, {})
    found[why] = found.get(why, 0) + n
    if hasattr(config, "workeroutput"):
        config.workeroutput[_LEFT_OUT] = found


def take_over(config: pytest.Config, workeroutput: Mapping[str, Any]) -> None:
    """Note what a process of pytest-xdist noted; they all leave out the same."""
    config.stash[_left_out] = workeroutput.get(_LEFT_OUT, {})


def lines(config: pytest.Config, skipped: list[pytest.TestReport]) -> Iterator[str]:
    """Yield a line for each reason, of tests that were left out and of tests that were skipped."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for why, n in [*config.stash.get(_left_out, {}).items(), *reasons.most_common()]:
        if n:
            yield f"not run: {n} {' '.join(why.split())}"
