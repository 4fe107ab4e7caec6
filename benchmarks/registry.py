"""All cases of the host, by name: those of workloads, and those of modules that bring their own."""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.host.cases import Crew, host_cases, measured
from benchmarks.measure import Case
from benchmarks.arrays.published import published
from benchmarks.arrays.workloads import WORKLOADS

EXTRA_CASES: tuple[str, ...] = (
    "remote.cases",
    "cluster.cases",
    "host.copies",
    "host_cost.cases",
)
"""Modules of this folder with a function ``cases(scale: float, folder: Path) -> list[Case]``."""


def all_cases(crew: Crew, folder: Path, *, scale: float, full: bool, with_memory: bool) -> list[Case]:
    """Return every case.

    Parameters
    ----------
    crew : Crew
        The processes that readers run in.
    folder : pathlib.Path
        Cache of stores.
    scale : float
        Share of the elements of each workload; 1 for results that mean something.
    full : bool
        Published workloads in their published size.
    with_memory : bool
        Whether memory is measured too.
    """
    workloads = [w if scale == 1 else w.scaled(scale) for w in (*WORKLOADS, *published(full=full))]
    cases = [measured(case, crew, folder, with_memory=with_memory) for case in host_cases(workloads)]
    for name in EXTRA_CASES:
        cases += importlib.import_module(f"benchmarks.{name}").cases(scale, folder)
    return cases
