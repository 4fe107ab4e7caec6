"""Results as tables for people: one a case, as soon as it is done, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from rich.console import Console
from rich.table import Table

from xarray_gpuzarr.machine.bench.results import CaseRows, Row

Cell = Callable[[Row, CaseRows], str]


def print_case(case: CaseRows, console: Console, *, copy_rate: float | None = None) -> None:
    """Print one case: the quickest reader of each side in bold; columns that nothing is known for are left out.

    Parameters
    ----------
    case : CaseRows
    console : rich.console.Console
    copy_rate : float or None
        Bytes a second that a copy within the device reads and writes.
    """
    console.print(_title(case), style="bold", highlight=False, markup=False)
    timed = [row for row in case.rows if row.samples]
    if timed:
        table = Table("reader")
        columns = _columns(copy_rate)
        cells = {name: [cell(row, case) for row in timed] for name, cell in columns.items()}
        known = {name: column for name, column in cells.items() if any(column)}
        for name in known:
            table.add_column(name, justify="right")
        best = {id(case.best(side)) for side in ("ours", "peer")}
        for i, row in enumerate(timed):
            table.add_row(
                row.name, *(column[i] for column in known.values()), style="bold" if id(row) in best else None
            )
        console.print(table)
    for row in case.rows:
        for line in _lines_below(row):
            style = "red" if row.status == "failed" else None
            console.print(f"  {row.name}: {line}", style=style, highlight=False, markup=False)


def _title(case: CaseRows) -> str:
    nbytes, stored = case.about.get("nbytes"), case.about.get("stored_nbytes")
    size = f"; {nbytes / 1e6:.1f} MB, ratio {nbytes / stored:.1f}" if nbytes and stored else ""
    return f"{case.name}: {case.summary}{size}"


def _lines_below(row: Row) -> list[str]:
    """Return what does not fit a table: facts, and why there are no times, or not more of them."""
    ended = "" if row.status == "measured" else " ".join(filter(None, (row.status, row.note and f"({row.note})")))
    return [line for line in (facts_text(row), ended) if line]


def facts_text(row: Row) -> str:
    """Return what else is known of a row, in a line."""
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.facts.items())


def _columns(copy_rate: float | None) -> Mapping[str, Cell]:
    """Return the columns of a table: name -> what stands there, empty if it is not known."""
    return {
        "ms": lambda row, _: milliseconds(row.wall_s),
        "min-max": lambda row, _: "-".join(map(milliseconds, row.spread_s)),
        "GB/s": lambda row, _: f"{row.rate / 1e9:.2f}" if row.nbytes else "",
        "stored GB/s": _stored_rate,
        "samples/s": samples_per_second,
        "CPU ms": lambda row, _: "" if row.cpu_s is None else milliseconds(row.cpu_s),
        "extra MB": lambda row, _: "" if row.peak is None else f"{row.peak.extra_nbytes / 1e6:.1f}",
        "/ best peer": lambda row, case: _ratio(row, case.best("peer")),
        "/ bare": lambda row, case: "" if case.of_bare(row) is None else f"{case.of_bare(row):.2f}",
        "of copy": lambda row, _: f"{row.moved_rate / copy_rate:.2f}" if row.moved_rate and copy_rate else "",
    }


def _stored_rate(row: Row, case: CaseRows) -> str:
    """Return the rate of stored bytes, where stages are taken apart: the blog's raw rate."""
    stored = case.about.get("stored_nbytes")
    return f"{stored / max(row.wall_s, 1e-9) / 1e9:.2f}" if stored and case.about.get("operation") == "stages" else ""


def samples_per_second(row: Row, case: CaseRows) -> str:
    """Return how many samples a loader gave in a second, where samples were counted."""
    n_samples = case.about.get("n_samples")
    return f"{n_samples / row.wall_s:.0f}" if n_samples else ""


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with about three digits."""
    ms = seconds * 1e3
    return f"{ms:.{0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3}f}"


def _ratio(row: Row, other: Row | None) -> str:
    return f"{row.wall_s / other.wall_s:.2f}" if other else ""


def speedups(cases: Sequence[CaseRows]) -> dict[str, dict[str, float]]:
    """Return, for each reader of ours and each case, the time of the best peer over ours."""
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        peer = case.best("peer")
        for row in case.rows:
            if row.side == "ours" and row.samples and row.status == "measured" and peer:
                found.setdefault(row.name, {})[case.name] = peer.wall_s / row.wall_s
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """Return the n-th root of the product of n values."""
    return float(prod(values) ** (1 / len(values)))


def print_summary(cases: Sequence[CaseRows], console: Console) -> None:
    """Print the best peer's time over ours for each case, and the geometric means."""
    found = speedups(cases)
    if not found:
        return
    table = Table("reader", "case", title="best peer / ours: above 1, ours is quicker", title_justify="left")
    table.add_column("times", justify="right")
    for reader, by_case in found.items():
        for case, speedup in by_case.items():
            table.add_row(reader, case, f"{speedup:.2f}", style="red" if speedup < 1 else None)
        mean = geometric_mean(list(by_case.values()))
        table.add_row(reader, "geometric mean", f"{mean:.2f}", style="bold", end_section=True)
    console.print(table)
