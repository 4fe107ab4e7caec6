"""Both pages' tables of reads in every regime: the first of a process, and those of one that reads on."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.arrays.workloads import REGIMES
from benchmarks.page.runs import Run
from benchmarks.page.tables import markdown_table
from benchmarks.report import geometric_mean, milliseconds
from benchmarks.runner.results import CaseRows

_OURS = "gpuzarr"


def regime_run(runs: dict[str, Run]) -> Run:
    """Return the results that have regimes: a file of their own, or else the host's."""
    return runs.get("steady", runs["host"])


def regimes_summary(cases: Sequence[CaseRows]) -> str:
    """Return a line for each regime: against the best peer, on average and at worst."""
    lines = []
    for regime in REGIMES:
        chosen = [case for case in cases if case.regime == regime]
        peers = {case.about["workload"]["name"]: ratio for case in chosen if (ratio := _peer_over_ours(case))}
        if peers:
            worst = min(peers, key=peers.__getitem__)
            mean = f"{geometric_mean(list(peers.values())):.2f}"
            lines.append((regime, str(len(peers)), mean, f"{peers[worst]:.2f} ({worst})"))
    return markdown_table(("", "cases", "peer / ours", "worst"), lines)


def regimes_table(cases: Sequence[CaseRows]) -> str:
    """Return the time of every reader: a line for each workload and regime."""
    chosen = [case.without_bare() for case in cases if case.regime]
    names = list(dict.fromkeys(row.name for case in chosen for row in case.rows))
    lines = []
    for case in chosen:
        times = [milliseconds(row.wall_s) if (row := case.row(name)) else "" for name in names]
        ratio = _peer_over_ours(case)
        lines.append((case.name, *times, "" if ratio is None else f"{ratio:.2f}"))
    columns = ("", *(f"{name}, ms" for name in names), "peer / ours")
    return markdown_table(columns, lines)


def _peer_over_ours(case: CaseRows) -> float | None:
    ours, peer = case.row(_OURS), case.best("peer")
    return peer.wall_s / ours.wall_s if ours and peer else None
