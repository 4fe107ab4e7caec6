"""A plugin of pytest for other projects' tests: those that are asked for, with every value of each parameter.

The environment may say more, with spaces between several: ``ONLY_NAMED`` leaves tests whose names, below the folder of
all tests, contain it in any case of letters; ``-k`` also looks at the folders that lead there, of which one may be
called ``.venv-zarr``. ``NOT_NAMED`` leaves out those that contain one of these. ``NOT_INHERITED_BY`` leaves out what
classes only repeat.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("XARRAY_GPUZARR_TEST_COMBINATIONS", "values")

from helpers import every_pair, not_run


def _is_chosen(item: pytest.Item) -> bool:
    said = {name: os.environ.get(name, "").split() for name in ("ONLY_NAMED", "NOT_NAMED", "NOT_INHERITED_BY")}
    own = getattr(item, "cls", None)
    if own is not None and own.__name__ in said["NOT_INHERITED_BY"] and item.function.__name__ not in vars(own):
        return False
    return all(name in item.nodeid.lower() for name in said["ONLY_NAMED"]) and not any(
        name in item.nodeid for name in said["NOT_NAMED"]
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for, then what says nothing new."""
    out = [item for item in items if not _is_chosen(item)]
    config.hook.pytest_deselected(items=out)
    left_out = set(map(id, out))
    items[:] = [item for item in items if id(item) not in left_out]
    every_pair.leave_out(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:  # noqa: ARG001  # pytest's names
    """See `helpers.not_run`."""
    not_run.take_over(node.config, getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many combinations are left out."""
    for line in not_run.lines(config, []):
        terminalreporter.write_line(line)
