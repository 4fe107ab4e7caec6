"""How figures look: no background, and colours in the middle, for light and for dark pages; axes with plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.runner.results import CaseRows, Row

INK = "#7b7b7b"
"""Text and axes: a contrast of 4.2 to white and of 4.4 to the dark of the pages."""
OURS = "#e8590c"
BARE = "#8a8a8a"
PEER = "#3b8bd0"
_LOOKS = {"default": (PEER, "o"), "Fused": ("#2f9e8f", "s"), "zarrs": ("#9b6fc4", "^"), "TensorStore": ("#b58a1f", "v")}
"""Colours and marks of peers, by a part of their names."""
_MARKS = {"chunks={}": "o", "chunks=shards": "s", "no dask": "^"}
"""Marks instead of these, by how names end."""
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
WIDTH = 8.2
"""Of every figure, inches."""


def looks(cases: Sequence[CaseRows]) -> Iterator[tuple[str, str, str]]:
    """Return name, colour and mark of each row: ours stand out, what is no reader is grey."""
    sides = {row.name: row.side for case in cases for row in case.rows if row.samples}
    ours = [name for name, side in sides.items() if side == "ours"]
    for name, side in sides.items():
        if side == "ours":
            yield name, OURS, "Dd"[ours.index(name) % 2]
        elif side == "bare":
            yield name, BARE, "|"
        else:
            colour, marker = next((look for part, look in _LOOKS.items() if part in name), (PEER, "o"))
            yield name, colour, next((mark for end, mark in _MARKS.items() if name.endswith(end)), marker)


def rates(row: Row) -> tuple[float, float, float]:
    """Return the median rate of a row and the ends of its spread, GB/s of values."""
    shortest, longest = row.spread_s
    return row.rate / 1e9, row.nbytes / longest / 1e9, row.nbytes / shortest / 1e9


def dots(cases: Sequence[CaseRows], labels: Sequence[str], title: str) -> Figure | None:
    """Draw one line a case and one mark a reader, with its spread, on a logarithmic axis of rates."""
    if not cases:
        return None
    every = list(looks(cases))
    shown = {name: name.removeprefix("xarray ") for name, *_ in every}
    n_columns = min(len(every), max(2, 104 // (max(map(len, shown.values())) + 5)))
    figure = Figure(figsize=(WIDTH, 0.9 + 0.23 * len(cases) + 0.22 * -(-len(every) // n_columns)), layout="constrained")
    axes = figure.subplots()
    for name, colour, marker in every:
        found = [(len(cases) - 1 - i, rates(row)) for i, case in enumerate(cases) if (row := case.row(name))]
        places = [place for place, _ in found]
        middle, low, high = np.array([value for _, value in found]).T
        axes.hlines(places, low, high, color=colour, alpha=0.3, linewidth=3)
        mark: dict[str, Any] = {"s": 58 if colour == OURS else 38, "linewidths": 0}
        axes.scatter(middle, places, color=colour, label=shown[name], zorder=3, marker=marker, **mark)
    axes.set_xscale("log")
    plain_numbers(axes)
    axes.set_yticks(range(len(cases)), labels[::-1])
    axes.set_ylim(-0.6, len(cases) - 0.4)
    axes.set_xlabel(title)
    figure.legend(loc="outside upper center", ncols=n_columns, handletextpad=0.1, columnspacing=1.2)
    return figure


def plain_numbers(axes: Axes) -> None:
    """Write the numbers of a logarithmic axis out, at 1, 2 and 5."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
