"""Figures of results on a GPU: the blog's array, and where the device pays."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.drawing import LIMIT, MARKERS, OURS, PEERS, plain_numbers
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


def draw_gpu_sweep(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw where the device pays: its time over the host's, by chunks of a read and their size."""
    chosen = [c for c in cases if c.name.startswith("sweep ") and c.row("device") and c.row("host, then upload")]
    codecs = list(dict.fromkeys(c.about["codec"] for c in chosen))
    if not codecs:
        return None
    figure = Figure(figsize=(8.2, 3.4), layout="constrained")
    panels = figure.subplots(1, len(codecs), sharex=True, sharey=True, squeeze=False)[0]
    for axes, codec in zip(panels, codecs, strict=True):
        of_one = [c for c in chosen if c.about["codec"] == codec]
        for i, nbytes in enumerate(sorted({c.about["chunk_nbytes"] for c in of_one})):
            found = sorted(
                (c.about["n_chunks"], device_over_host(c)) for c in of_one if c.about["chunk_nbytes"] == nbytes
            )
            label = f"{nbytes / 2**20:g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:g} KiB"
            axes.plot(*zip(*found, strict=True), marker=MARKERS[i], color=PEERS[i % len(PEERS)], label=label)
        axes.axhline(1, color=OURS, linewidth=1)
        axes.set(title=codec, xlabel="chunks of a read", yscale="log")
        axes.set_xscale("log", base=2)
        plain_numbers(axes, "x")
        plain_numbers(axes, "y")
    panels[0].set_ylabel("time on the device / by the host\n(below 1: the device pays)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), title="decoded bytes of a chunk")
    return figure


def device_over_host(case: CaseRows) -> float:
    """Return the device's time over the host's, of a case of the sweep."""
    device, host = case.row("device"), case.row("host, then upload")
    assert device is not None
    assert host is not None
    return device.wall_s / host.wall_s
