"""The figures of the performance page; `FIGURES` says which there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Drawn

from benchmarks.page.drawing import BARE, OURS, PEER, STYLE, WIDTH, dots, looks
from benchmarks.page.runs import Run
from benchmarks.runner.results import CaseRows

_OTHERS = ("blog", "zarrs-", "study")
"""How names of published workloads begin; they have tables."""
_RATE = "GB of values a second (right is quicker)"


def arrays_of(cases: Sequence[CaseRows]) -> list[CaseRows]:
    """Return the cases of the first figure."""
    read = [case for case in cases if case.about.get("operation") == "read" and case.regime is None]
    return [case.without_bare() for case in read if not case.name.startswith(_OTHERS)]


def draw_arrays(cases: Sequence[CaseRows]) -> Drawn | None:
    """Draw the rate of every reader, by workload."""
    chosen = arrays_of(cases)
    return dots(chosen, [c.about["workload"]["name"] for c in chosen], _RATE)


def xarray_of(cases: Sequence[CaseRows]) -> list[CaseRows]:
    """Return the cases of the second figure, of readers alone."""
    chosen = [c for c in cases if c.about.get("operation") in ("load", "mean") and not c.name.startswith(_OTHERS)]
    return [c.without_bare() for c in chosen]


def draw_xarray(cases: Sequence[CaseRows]) -> Drawn | None:
    """Draw the same through xarray."""
    chosen = xarray_of(cases)
    return dots(chosen, [c.name.replace("/", ", ") for c in chosen], _RATE)


_STORES = {"none": "no codec", "zstd 3": "zstd"}
_BARE = "bare obstore"


def draw_stores(cases: Sequence[CaseRows]) -> Drawn | None:
    """Draw the time of a read from a server over its latency: a panel for each codec, a line for each reader."""
    panels = {title: _by_latency(cases, codec) for codec, title in _STORES.items()}
    if not all(len(found) > 1 for found in panels.values()):
        return None
    figure = Drawn(figsize=(WIDTH, 3.1), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, found) in zip(every, panels.items(), strict=True):
        for name, colour, marker in looks([case.without_bare(but=_BARE) for case in found.values()]):
            times = {ms: row.wall_s * 1e3 for ms, case in found.items() if (row := case.row(name))}
            style = {"linestyle": "--"} if colour == BARE else {"marker": marker, "markersize": 5}
            axes.plot(list(times), list(times.values()), color=colour, linewidth=1.5, label=name, **style)
        axes.set(title=title, xlabel="latency of the server (ms)", xticks=list(found), ylim=(0, None))
    every[0].set_ylabel("time of the read (ms)")
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, columnspacing=1.2)
    return figure


def _by_latency(cases: Sequence[CaseRows], codec: str) -> dict[int, CaseRows]:
    """Return the cases of whole reads through obstore without a line between, by latency in ms."""
    names = {f"store/{codec} {ms} ms": ms for ms in range(1000)}
    return {names[case.name]: case for case in cases if case.name in names}


def draw_gpu_reads(cases: Sequence[CaseRows]) -> Drawn | None:
    """Draw the blog's array: delivered rate of every reader, and of single stages."""
    case = next((c for c in cases if c.name == "blog, warm"), None)
    rows = [] if case is None else [row for row in case.rows if row.samples]
    if not rows:
        return None
    rows.sort(key=lambda row: row.rate)
    figure = Drawn(figsize=(WIDTH, 0.9 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colours = [{"ours": OURS, "peer": PEER, "bare": BARE}[row.side] for row in rows]
    axes.barh([row.name for row in rows], [row.rate / 1e9 for row in rows], color=colours, height=0.65)
    axes.set_xlabel("decoded bytes a second (GB/s); grey: one stage alone")
    axes.grid(axis="y", visible=False)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, where its numbers come from, and what it is called."""

    name: str
    """Of its file, without suffix."""
    kind: str
    """Of results."""
    alt: str
    """What it shows, for those who do not see it."""
    draw: Callable[[Sequence[CaseRows]], Drawn | None]
    """None if the cases do not suffice."""


FIGURES = (
    Figure(name="arrays", kind="host", alt="Values a second of every reader, by workload", draw=draw_arrays),
    Figure(name="xarray", kind="host", alt="The same through xarray: loads, and a mean", draw=draw_xarray),
    Figure(name="stores", kind="host", alt="Time of a read over the latency of the server", draw=draw_stores),
    Figure(name="gpu-reads", kind="gpu", alt="Rate of every reader to the GPU, and of its stages", draw=draw_gpu_reads),
)


def draw_all(runs: Mapping[str, Run], folder: Path) -> None:
    """Write the figures that the results suffice for, as SVG, each with the file that it is made from."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        with mpl.rc_context(STYLE):
            drawn = figure.draw(runs[figure.kind].cases) if figure.kind in runs else None
            if drawn is not None:
                metadata = {"Date": None, "Description": runs[figure.kind].origin}
                drawn.savefig(folder / f"{figure.name}.svg", metadata=metadata, bbox_inches="tight")
