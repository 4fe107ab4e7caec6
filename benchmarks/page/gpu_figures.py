"""The figure of results on a GPU: the blog's array."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.page.drawing import LIMIT, OURS, PEERS
from benchmarks.results import CaseRows


def draw_gpu_reads(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw the blog's array: delivered rate of every reader, with what limits it."""
    case = next((c for c in cases if c.name == "blog, warm"), None)
    rows = [] if case is None else [row for row in case.rows if row.samples]
    if not rows:
        return None
    rows.sort(key=lambda row: row.rate)
    figure = Figure(figsize=(8.2, 0.9 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colours = [{"ours": OURS, "peer": PEERS[0], "limit": LIMIT}[row.side] for row in rows]
    axes.barh([row.name for row in rows], [row.rate / 1e9 for row in rows], color=colours, height=0.65)
    axes.set_xlabel("decoded bytes a second (GB/s); grey: what limits it")
    axes.grid(axis="y", visible=False)
    return figure
