"""Mistakes put into the kernels on purpose: the strict runs of `test_strict_kernels.py` must show every one."""

from __future__ import annotations

import os

import pytest
from helpers.kernels.mutants import mutants, stale
from helpers.kernels.on_host import require_compiler, run_child
from helpers.kernels.strict_cases import CHECKS


@pytest.fixture(autouse=True)
def compiler() -> None:
    require_compiler()


def test_every_kernel_has_mutants() -> None:
    assert {m.kernel for m in mutants()} == {*CHECKS}


def test_mistakes_that_are_written_down_can_be_made() -> None:
    assert stale() == []


@pytest.mark.parametrize("part", range(3))
def test_mutants_are_shown(part: int) -> None:
    kernels = [*CHECKS][part::3]
    child = run_child({**os.environ}, "-m", "helpers.kernels.mutants", *kernels)

    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert [line for line in lines if not line.startswith("shown: ")] == []
    assert len(lines) == sum(m.kernel in kernels for m in mutants())
