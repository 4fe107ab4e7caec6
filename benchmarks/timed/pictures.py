"""Pictures of what the modelled device did: when each resource worked, and what share of the bound reads reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.page.drawing import INK, OURS, PEERS
from benchmarks.results import CaseRows
from benchmarks.timed.limits import bound
from benchmarks.timed.timeline import Bar, Timeline

_MODELLED = "modelled"
_FETCH, _UPLOAD, _KERNEL = PEERS[0], PEERS[1], PEERS[2]
_DECODER_HEIGHT = 3.0
"""Of the decoder's lane; the others have 1."""
_MOST_MS = 600.0
"""Of longer runs, the beginning is drawn."""
_MOST_THREADS = 6
"""Of a run, that have a lane each."""
_SHOWN = ("no dask", "1 thread", "4 threads")


def draw_timelines(workload: str, cases: Sequence[CaseRows]) -> Figure | None:
    """Draw, for some of the reads of a workload, a lane for each thread and each resource."""
    case = next((c for c in cases if c.name == f"timed/{workload}"), None)
    found = {} if case is None else case.about.get("timelines", {})
    names = [name for name in _SHOWN if name in found] or list(found)[:1]
    if case is None or not names:
        return None
    lines = [Timeline.from_json(found[name]) for name in names]
    heights = [min(len(line.fetches), _MOST_THREADS + 1) + _DECODER_HEIGHT + 2 for line in lines]
    figure = Figure(figsize=(8.2, 0.6 * len(names) + 0.4 + 0.2 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, name, line in zip(panels, names, lines, strict=True):
        _draw_lanes(axes, line, max(1, int(case.about["n_decoding"])))
        row = case.row(name)
        rate = f", {row.nbytes / line.wall_ms / 1e6:.1f} GB/s" if row else ""
        cut = f"the first {_MOST_MS:.0f} of " if line.wall_ms > _MOST_MS else ""
        axes.set_title(f"{workload}, {name}: {cut}{line.wall_ms:.0f} ms{rate} ({_MODELLED})", loc="left")
    panels[-1].set_xlabel("ms since the read began; thin grey: the thread waits for the device")
    return figure


def draw_published(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw the published workload."""
    return draw_timelines("published", cases)


def _draw_lanes(axes: Axes, line: Timeline, n_decoding: int) -> None:
    """Draw one run, first lane on top."""
    lanes: list[tuple[str, float]] = []
    at = 0.0

    def bars(spans: Sequence[Bar], label: str, colour: str) -> None:
        nonlocal at
        axes.broken_barh([(start, max(length, 0.1)) for start, length in spans], (at - 0.85, 0.7), color=colour)
        lanes.append((label, at - 0.5))
        at -= 1

    for number, (spans, waits) in enumerate(zip(line.fetches[:_MOST_THREADS], line.waits, strict=False), 1):
        axes.broken_barh(waits, (at - 0.58, 0.16), color=INK, alpha=0.5)
        bars(spans, "fetch" if len(line.fetches) == 1 else f"fetch, thread {number}", _FETCH)
    if others := line.fetches[_MOST_THREADS:]:
        for spans in others:
            axes.broken_barh(spans, (at - 0.85, 0.7), color=_FETCH, alpha=max(0.15, 1 / len(others)), linewidth=0)
        bars([], f"fetch, {len(others)} more", _FETCH)
    bars(line.uploads, "copy engine", _UPLOAD)
    floor, height = at - _DECODER_HEIGHT + 0.15, _DECODER_HEIGHT - 0.3
    times, slots = zip(*line.decoding, (line.wall_ms, line.decoding[-1][1]), strict=True)
    level = floor + height * np.array(slots) / n_decoding
    axes.fill_between(times, floor, level, step="post", color=OURS, alpha=0.75, linewidth=0)
    axes.hlines([floor, floor + height], 0, line.wall_ms, color=INK, linewidth=0.5, alpha=0.6)
    lanes.append((f"decoder, {n_decoding} slots", at - _DECODER_HEIGHT / 2))
    at -= _DECODER_HEIGHT
    bars(line.kernels, "our kernels", _KERNEL)
    axes.set_yticks([y for _, y in lanes], [label for label, _ in lanes])
    axes.set_ylim(at, 0)
    axes.set_xlim(0, min(line.wall_ms, _MOST_MS))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def draw_shares(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw the share of the slowest resource's limit that each read reached, by workload."""
    chosen = [(case, limit) for case in cases if case.about.get("operation") == "timed" and (limit := bound(case))]
    if not chosen:
        return None
    names = list(dict.fromkeys(row.name for case, _ in chosen for row in case.rows if row.side == "ours"))
    figure = Figure(figsize=(8.2, 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        shares = [limit.wall_s / row.wall_s if (row := case.row(name)) else 0.0 for case, limit in chosen]
        at = np.arange(len(chosen)) + (i - (len(names) - 1) / 2) * width
        colour = OURS if i == 0 else PEERS[0]
        shade = 1.0 if i == 0 else 0.35 + 0.65 * i / (len(names) - 1)
        axes.bar(at, shares, width * 0.9, label=name, color=colour, alpha=shade)
    axes.axhline(1, color=INK, linewidth=1)
    labels = [
        f"{case.name.removeprefix('timed/')}\n({limit.name}, {limit.rate / 1e9:.0f} GB/s)" for case, limit in chosen
    ]
    axes.set_xticks(range(len(chosen)), labels, fontsize=8)
    axes.set_ylabel(f"share of the bound ({_MODELLED})")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(0, 1.05)
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=len(names))
    return figure
