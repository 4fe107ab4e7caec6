"""What the modelled device delivered, as a table for people: a line a row, with its bound and what stood still."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.report import milliseconds
from benchmarks.results import CaseRows, Row
from benchmarks.timed.bounds import RESOURCES

COLUMNS = (
    "ms",
    "min-max",
    "GB/s",
    *(f"{resource} idle" for resource in RESOURCES if resource != "kernels"),
    "bound",
    "of bound",
    "peak GB",
    "overrun ms",
)


def cells(row: Row, case: CaseRows) -> tuple[str, ...]:
    """Return what stands in a line, in the order of `COLUMNS`."""
    slowest, facts = case.bare, row.facts
    idle = [f"{float(facts[c]):.0%}" for c in COLUMNS if c.endswith("idle")]
    return (
        milliseconds(row.wall_s),
        "-".join(map(milliseconds, row.spread_s)),
        f"{row.rate / 1e9:.2f}",
        *idle,
        "" if slowest is None else f"{slowest.name}, {slowest.rate / 1e9:.1f} GB/s",
        "" if slowest is None else f"{slowest.wall_s / row.wall_s:.0%}",
        f"{float(facts['peak GB']):.2f}",
        f"{float(facts['overrun ms']):.1f}",
    )


def print_timed(case: CaseRows, console: Console) -> None:
    """Print a case."""
    stored, nbytes = case.about.get("stored_nbytes"), case.about.get("nbytes")
    size = f"; {nbytes / 1e9:.2f} GB, ratio {nbytes / stored:.1f}" if stored and nbytes else ""
    console.print(f"{case.name}: {case.summary}{size}", style="bold", highlight=False, markup=False)
    table = Table("reads")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in case.rows:
        if row.side == "ours" and row.samples:
            table.add_row(row.name, *cells(row, case))
    console.print(table)
    bounds = [f"{row.name} {milliseconds(row.wall_s)}" for row in case.rows if row.side == "bare" and row.samples]
    console.print(f"  bounds in ms: {', '.join(bounds)}", highlight=False, markup=False)
    for row in case.rows:
        if row.status == "failed":
            console.print(f"  {row.name}: {row.note}", style="red", highlight=False, markup=False)


def print_hardware(cases: Sequence[CaseRows], console: Console) -> None:
    """Print time, bound and how much of it was reached: a line for each workload and reader, a column a hardware."""
    columns = list(dict.fromkeys(case.about["hardware"] for case in cases if "hardware" in case.about))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for case in cases:
        for row in case.rows:
            if row.side == "ours" and row.samples and (bound := case.bare) is not None:
                line = lines.setdefault((case.about["workload"]["name"], row.name), {})
                times = f"{milliseconds(row.wall_s)} / {milliseconds(bound.wall_s)}"
                line[case.about["hardware"]] = f"{times} {bound.wall_s / row.wall_s:.0%}"
    table = Table("workload", "reads", *columns, title="ms / bound in ms, of bound")
    for names, line in lines.items():
        table.add_row(*names, *(line.get(column, "") for column in columns))
    console.print(table)
