"""How figures look: no background, and colours in the middle, for light and for dark pages; axes with plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.results import CaseRows, Row

INK = "#7b7b7b"
"""Text and axes: a contrast of 4.2 to white and of 4.4 to the dark of the pages."""
OURS = "#e8590c"
PEERS = ("#3b8bd0", "#2f9e8f", "#9b6fc4", "#b58a1f", "#c2608f", "#6f7fd6", "#7d9a3a")
LIMIT = "#8a8a8a"
MARKERS = "os^vPX*"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "xarray_gpuzarr",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.22,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "savefig.transparent": True,
}


Value = Callable[[Row, CaseRows], tuple[float, float, float] | None]
"""Returns the value of a row, and the ends of its spread."""


def looks(names: Sequence[str], cases: Sequence[CaseRows]) -> Iterator[tuple[str, str, str]]:
    """Return a colour and a mark for each reader: ours stand out."""
    ours = {row.name for case in cases for row in case.rows if row.side == "ours"}
    peers = [name for name in names if name not in ours]
    for name in names:
        if name in ours:
            yield name, OURS, "Dd"[[n for n in names if n in ours].index(name) % 2]
        else:
            i = peers.index(name)
            yield name, PEERS[i % len(PEERS)], MARKERS[i % len(MARKERS)]


def lines(axes: Axes, cases: Sequence[CaseRows], value: Value) -> None:
    names = list(dict.fromkeys(row.name for case in cases for row in case.rows if row.side != "limit"))
    limits = list(dict.fromkeys(row.name for case in cases for row in case.rows if row.side == "limit"))
    every = [*looks(names, cases), *((name, LIMIT, "") for name in limits)]
    for name, colour, marker in every:
        found = [(c.about["concurrency"], v) for c in cases if (row := c.row(name)) and (v := value(row, c))]
        if not found:
            continue
        at = [n for n, _ in found]
        middle, low, high = np.array([v for _, v in found]).T
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(at, middle, color=colour, marker=marker or None, markersize=5, linewidth=1.4, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({c.about["concurrency"] for c in cases})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    plain_numbers(axes, "y")


def plain_numbers(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axis.get_view_interval()
    narrow = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axis.set_minor_formatter(narrow if high / max(low, 1e-12) < 1500 else NullFormatter())


def dots(cases: Sequence[CaseRows], labels: Sequence[str], value: Value, title: str) -> Figure | None:
    """Draw one line a case and one mark a reader, with its spread, on a logarithmic axis."""
    if not cases:
        return None
    names = list(dict.fromkeys(row.name for case in cases for row in case.rows if value(row, case)))
    shown = {name: name.removeprefix("xarray ") for name in names}
    n_columns = min(len(names), max(2, 104 // (max(map(len, shown.values())) + 5)))
    figure = Figure(figsize=(8.2, 1 + 0.34 * len(cases) + 0.22 * -(-len(names) // n_columns)), layout="constrained")
    axes = figure.subplots()
    for name, colour, marker in looks(names, cases):
        places, values = [], []
        for i, case in enumerate(cases):
            row = case.row(name)
            found = value(row, case) if row else None
            if found:
                places.append(len(cases) - 1 - i)
                values.append(found)
        middle, low, high = np.array(values).T
        axes.hlines(places, low, high, color=colour, alpha=0.35, linewidth=3)
        looks_like: dict[str, Any] = {"marker": marker, "s": 58 if colour == OURS else 38, "linewidths": 0}
        axes.scatter(middle, places, color=colour, label=shown[name], zorder=3, **looks_like)
    axes.set_xscale("log")
    plain_numbers(axes, "x")
    axes.set_yticks(range(len(cases)), labels[::-1])
    axes.set_ylim(-0.6, len(cases) - 0.4)
    axes.set_xlabel(title)
    figure.legend(loc="outside upper center", ncols=n_columns, handletextpad=0.1, columnspacing=1.2)
    return figure
