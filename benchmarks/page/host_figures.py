"""Figures of results on the host: times over the limit, memory, reads chunk by chunk, compressors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.arrays.compressors import Compressor
from benchmarks.page.drawing import INK, LIMIT, dots, lines, looks, plain_numbers
from benchmarks.results import CaseRows, Row

# ---- times over the limit


def draw_limits(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw arrays as NumPy arrays: how far every reader is from the limit."""
    chosen = [c for c in cases if c.about.get("operation") == "read" and c.limit_s and not _is_published(c)]
    labels = [f"{c.about['workload']['name']}" for c in chosen]
    return dots(chosen, labels, _over_limit, "time over the limit of the machine (1: none can be quicker)")


def draw_xarray(cases: Sequence[CaseRows]) -> Figure | None:
    chosen = [c for c in cases if c.about.get("operation") in ("load", "mean") and c.limit_s]
    return dots(chosen, [c.name for c in chosen], _over_limit, "time over the limit of the machine")


def draw_memory(cases: Sequence[CaseRows]) -> Figure | None:
    chosen = [c for c in cases if c.about.get("operation") == "read" and any(r.peak for r in c.rows)]
    chosen = [c for c in chosen if not c.name.startswith("study")]

    def extra(row: Row, _: CaseRows) -> tuple[float, float, float] | None:
        value = None if row.side == "limit" or not row.peak else max(0.1, row.peak.extra_nbytes / 1e6)
        return (value, value, value) if value else None

    labels = [c.about["workload"]["name"] for c in chosen]
    return dots(chosen, labels, extra, "memory beyond the result (MB, 0.1 or less at the left edge)")


def _over_limit(row: Row, case: CaseRows) -> tuple[float, float, float] | None:
    if not row.samples or row.side == "limit" or not case.limit_s:
        return None
    shortest, longest = row.spread_s
    return row.wall_s / case.limit_s, shortest / case.limit_s, longest / case.limit_s


def _is_published(case: CaseRows) -> bool:
    return case.name.startswith(("blog", "zarrs-", "study"))


# ---- chunk by chunk


def draw_concurrency(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw the volumes, chunk by chunk: time and memory over the chunks that are read at once."""
    chosen = [c for c in cases if c.about.get("operation") == "chunks"]
    names = list(dict.fromkeys(c.about["workload"]["name"] for c in chosen))
    if not names:
        return None
    with_memory = any(row.peak for case in chosen for row in case.rows)
    figure = Figure(figsize=(8.2, 5.2 if with_memory else 3.2), layout="constrained")
    grid = figure.subplots(1 + with_memory, len(names), sharex=True, sharey="row", squeeze=False)
    for column, name in enumerate(names):
        of_one = [c for c in chosen if c.about["workload"]["name"] == name]
        grid[0, column].set_title(of_one[0].summary.partition(", ")[2].replace(", ", ",\n", 1), fontsize=9)
        lines(grid[0, column], of_one, lambda row, _: (row.wall_s, *row.spread_s))
        if with_memory:
            lines(grid[1, column], of_one, _chunk_memory)
        grid[-1, column].set_xlabel("read at once")
    grid[0, 0].set_ylabel("time (s)")
    grid[-1, 0].set_ylabel("peak memory (MB)" if with_memory else "time (s)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=6)
    return figure


def _chunk_memory(row: Row, _: CaseRows) -> tuple[float, float, float] | None:
    value = row.peak and row.peak.peak_nbytes / 1e6
    return (value, value, value) if value else None


# ---- compressors


_FAMILIES: Mapping[str, str] = {
    "none": INK,
    "blosc blosclz": "#b58a1f",
    "blosc lz4": "#2f9e8f",
    "blosc lz4hc": "#7d9a3a",
    "blosc zlib": "#9b6fc4",
    "blosc zstd": "#e8590c",
    "zstd": "#3b8bd0",
    "gzip": "#c2608f",
}
_STUDIED = ("zarr default", "TensorStore", "gpuzarr")


def draw_compressors(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw read time against ratio, one panel a reader."""
    chosen = [c for c in cases if c.name.startswith("study") and "^3" not in c.name]
    readers = [name for name in _STUDIED if any(c.row(name) for c in chosen)]
    if not readers or len(chosen) == 1:
        return None
    figure = Figure(figsize=(8.2, 3.9), layout="constrained")
    panels = figure.subplots(1, len(readers), sharex=True, sharey=True, squeeze=False)[0]
    for axes, reader in zip(panels, readers, strict=True):
        for case in chosen:
            row = case.row(reader)
            if row is not None:
                _mark(axes, case, row)
        axes.set_title(reader)
        axes.set_xlabel("ratio (decoded / stored bytes)")
        axes.set_yscale("log")
        plain_numbers(axes, "y")
    panels[0].set_ylabel("read time (ms), lower is better")
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels[::-1], handles[::-1], strict=True))  # the first of each name
    names = [name for name in _FAMILIES if name in unique]
    figure.legend(
        [unique[name] for name in names],
        names,
        loc="outside upper center",
        ncols=len(names),
        columnspacing=1,
        handletextpad=0.1,
    )
    return figure


def _mark(axes: Axes, case: CaseRows, row: Row) -> None:
    workload = case.about["workload"]
    codec = Compressor.from_text(workload["codec"])
    family = f"blosc {codec.cname}" if codec.family == "blosc" else codec.family
    colour = _FAMILIES[family]
    face = "none" if workload["zarr_format"] == 2 else colour
    ratio = case.about["nbytes"] / case.about["stored_nbytes"]
    size = 22 + 5 * codec.level
    axes.scatter(
        ratio, row.wall_s * 1e3, s=size, facecolors=face, edgecolors=colour, alpha=0.9, label=family, linewidths=1.2
    )


def draw_chunk_edges(cases: Sequence[CaseRows]) -> Figure | None:
    """Draw read time over the edge of a chunk, for one codec."""
    chosen = [c for c in cases if c.name.startswith("study blosc zstd 3 shuffle") and _zarr_format(c) == 3]
    chosen.sort(key=lambda c: c.about["workload"]["chunks"][0])
    if len(chosen) < 2:
        return None
    figure = Figure(figsize=(8.2, 3.2), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row.name for case in chosen for row in case.rows))
    for name, colour, marker in looks(names, chosen):
        found = [(c.about["workload"]["chunks"][0], row) for c in chosen if (row := c.row(name))]
        limit = name == "limit"
        axes.plot(
            [edge for edge, _ in found],
            [row.wall_s * 1e3 for _, row in found],
            color=LIMIT if limit else colour,
            marker=None if limit else marker,
            label=name,
        )
    axes.set_xscale("log", base=2)
    edges = [c.about["workload"]["chunks"][0] for c in chosen]
    axes.set_xticks(edges, [f"{edge}³" for edge in edges])
    axes.set_yscale("log")
    plain_numbers(axes, "y")
    axes.set(xlabel="elements of a chunk", ylabel="read time (ms)")
    figure.legend(loc="outside upper center", ncols=len(names))
    return figure


def _zarr_format(case: CaseRows) -> int:
    return int(case.about["workload"]["zarr_format"])
