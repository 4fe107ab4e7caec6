"""Results as tables for people, in Markdown: one a case, as soon as it is done, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from rich.console import Console
from rich.table import Table

from benchmarks.runner.results import CaseRows, Row


def print_case(case: CaseRows, console: Console, *, copy_rate: float | None = None) -> None:
    """Print one case; `copy_rate` is the bytes a second that a copy within the device reads and writes."""
    nbytes, stored = case.about.get("nbytes"), case.about.get("stored_nbytes")
    size = f"; {nbytes / 1e6:.1f} MB, ratio {nbytes / stored:.1f}" if nbytes and stored else ""
    console.print(f"{case.name}: {case.summary}{size}", style="bold", highlight=False, markup=False)
    print(rows_table(case, compared=True, copy_rate=copy_rate), end="\n\n", file=console.file)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, n_text: int = 1) -> str:
    """Return a table; the first columns are text, the others numbers, on the right."""
    found = list(rows)
    if not found:
        return ""
    rule = ["---" if i < n_text else "---:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *found))


def short(name: str) -> str:
    return name.removeprefix("xarray ").replace("chunks={}", "`chunks={}`")


def rows_table(case: CaseRows, *, compared: bool = False, copy_rate: float | None = None) -> str:
    """Return all rows of one case, `compared` with the best peer; columns that nothing is known for are left out."""
    best = case.best("peer") if compared else None
    stored = case.about.get("stored_nbytes") if case.about.get("operation") == "stages" else None
    columns = {
        "reader": [row.name if compared else short(row.name) for row in case.rows],
        "ms": [_timed(row, lambda r: milliseconds(r.wall_s)) for row in case.rows],
        "min to max": [_timed(row, lambda r: " to ".join(map(milliseconds, r.spread_s))) for row in case.rows],
        "GB/s": [_timed(row, lambda r: f"{r.rate / 1e9:.2f}") if row.nbytes else "" for row in case.rows],
        "stored GB/s": [_timed(row, lambda r: f"{stored / r.wall_s / 1e9:.2f}") if stored else "" for row in case.rows],
        "samples/s": [_timed(row, lambda r: samples_per_second(r, case)) if compared else "" for row in case.rows],
        "CPU ms": ["" if row.cpu_s is None else milliseconds(row.cpu_s) for row in case.rows],
        "extra MB": ["" if row.peak is None else f"{row.peak.extra_nbytes / 1e6:.1f}" for row in case.rows],
        "/ best peer": [_timed(row, lambda r: f"{r.wall_s / best.wall_s:.2f}") if best else "" for row in case.rows],
        "/ bare": [_of_bare(row, case) for row in case.rows],
        "of copy": [_timed(row, lambda r: _share(r.moved_rate, copy_rate)) for row in case.rows],
        "": [_remark(row) for row in case.rows],
    }
    known = {name: cells for name, cells in columns.items() if any(cells)}
    return markdown_table(list(known), zip(*known.values(), strict=True))


def _timed(row: Row, cell: Callable[[Row], str]) -> str:
    return cell(row) if row.samples else ""


def _share(rate: float | None, of: float | None) -> str:
    return f"{rate / of:.2f}" if rate and of else ""


def _of_bare(row: Row, case: CaseRows) -> str:
    found = case.of_bare(row) if row.samples else None
    return "" if found is None else f"{found:.2f}"


def _remark(row: Row) -> str:
    ended = "" if row.status == "measured" else f"{row.status}: {row.note}".removesuffix(": ")
    return "; ".join(filter(None, (facts_text(row), ended))).replace("|", "\\|")


def facts_text(row: Row) -> str:
    """Return what else is known of a row, in a line."""
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.facts.items())


def samples_per_second(row: Row, case: CaseRows) -> str:
    """Return how many samples a loader gave in a second, where samples were counted."""
    n_samples = case.about.get("n_samples")
    return f"{n_samples / row.wall_s:.0f}" if n_samples else ""


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with about three digits."""
    ms = seconds * 1e3
    return f"{ms:.{0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3}f}"


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
