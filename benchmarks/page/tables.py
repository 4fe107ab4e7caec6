"""Tables of the pages, as Markdown: rows of results in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.arrays.workloads import SELECTED, SELECTIONS
from benchmarks.report import (
    geometric_mean,
    markdown_table,
    milliseconds,
    rows_table,
    samples_per_second,
    short,
    speedups,
)
from benchmarks.runner.results import CaseRows, Row

_GROUPS = (
    ("arrays", "gpuzarr", "/read"),
    ("through xarray", "xarray gpuzarr, no dask", "/load"),
    ("through xarray and dask", "xarray gpuzarr, chunks={}", "/load"),
    ("means on a cluster", "gpuzarr, chunks={}", "cluster/mean"),
    ("stores behind a server", "gpuzarr, obstore", "store/"),
    ("chunk by chunk", "gpuzarr", "/chunks"),
    ("batches for training", "gpuzarr batches, no dask", "training/"),
    ("files not in memory", "gpuzarr", "cold/"),
    ("small reads", "gpuzarr, cache", "small/"),
    ("parts of arrays behind a server", "gpuzarr, obstore", "network/"),
    ("means through dask behind a server", "gpuzarr, mean, 2 threads", "network/"),
    ("writes to files", "gpuzarr", "writes/"),
    ("writes to a server", "gpuzarr, to_zarr", "network/write"),
)
"""Title, reader of ours, and a part of the names of its cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Times of the best peer of each case over one reader's of ours."""

    title: str
    n: int
    mean: float
    """Geometric."""
    lowest: float
    highest: float


def summaries(cases: Sequence[CaseRows]) -> list[Summary]:
    """Return a summary of each group of cases."""
    found = speedups([case for case in cases if case.regime is None])
    groups = []
    for title, reader, part in _GROUPS:
        ratios = [r for case, r in found.get(reader, {}).items() if part in case]
        if ratios:
            groups.append(_summary(title, ratios))
    plain = list(plain_zarr_speedups(cases).values())
    return [*groups, _summary("plain zarr", plain)] if plain else groups


def _summary(title: str, ratios: Sequence[float]) -> Summary:
    return Summary(title=title, n=len(ratios), mean=geometric_mean(ratios), lowest=min(ratios), highest=max(ratios))


def best_peers(cases: Sequence[CaseRows]) -> str:
    """Return one line for each case and reader of ours, against the best peer."""
    columns = ("", "reader", "best peer", "its ms", "our ms", "peer / ours", "extra MB", "GB/s")
    lines = [line for case in cases for line in _against_best(case)]
    return markdown_table(columns, lines, n_text=3)


def _against_best(case: CaseRows) -> Iterable[tuple[str, ...]]:
    peer = case.best("peer")
    for row in case.rows:
        if row.side == "ours" and row.samples and peer is not None:
            yield (
                case.name,
                short(row.name),
                short(peer.name),
                milliseconds(peer.wall_s),
                milliseconds(row.wall_s),
                f"{peer.wall_s / row.wall_s:.2f}",
                "" if row.peak is None else f"{row.peak.extra_nbytes / 1e6:.1f}",
                f"{row.rate / 1e9:.2f}",
            )


def cold_table(cases: Sequence[CaseRows]) -> str:
    """Return the times of the best peer over ours for files that are not in memory: a line for each layout."""
    found: dict[str, dict[str, str]] = {}
    for case in cases:
        ours, peer = case.row("gpuzarr"), case.best("peer")
        if ours is not None and peer is not None:
            ratio = f"{peer.wall_s / ours.wall_s:.2f}"
            found.setdefault(case.summary.partition(";")[0], {})[case.about["pattern"]] = ratio
    patterns = list(dict.fromkeys(pattern for by_pattern in found.values() for pattern in by_pattern))
    lines = [(layout, *(by_pattern.get(each, "") for each in patterns)) for layout, by_pattern in found.items()]
    return markdown_table(("peer / ours", *patterns), lines).replace("^3", "³")


_PLAIN = ("zarr default", "zarr Fused", "zarrs", "gpuzarr pipeline", "gpuzarr")
"""Readers of plain zarr; then ours, and ours without zarr-python around it."""


def plain_zarr_cases(cases: Sequence[CaseRows]) -> list[CaseRows]:
    """Return the cases that plain zarr is compared on: selections, and whole reads of the same arrays."""
    return [
        case
        for case in cases
        if case.about.get("operation") in ("read", *SELECTIONS)
        and case.about["workload"]["name"] in SELECTED
        and any(row.name == _PLAIN[3] and row.samples for row in case.rows)
    ]


def plain_zarr_speedups(cases: Sequence[CaseRows]) -> dict[str, float]:
    """Return, by case, the time of the quickest other codec pipeline over that of ours."""
    found = {}
    for case in plain_zarr_cases(cases):
        times = [row.wall_s for name in _PLAIN[:3] if (row := case.row(name)) and row.samples]
        ours = case.row(_PLAIN[3])
        if times and ours:
            found[case.name] = min(times) / ours.wall_s
    return found


def plain_zarr_table(cases: Sequence[CaseRows]) -> str:
    """Return the times of the same line of plain zarr under each codec pipeline, and what zarr-python adds to ours."""
    speedups_of = plain_zarr_speedups(cases)
    rows = []
    for case in plain_zarr_cases(cases):
        by_name = {row.name: row for row in case.rows if row.samples}
        times = [milliseconds(by_name[name].wall_s) if name in by_name else "" for name in _PLAIN]
        over = by_name[_PLAIN[3]].wall_s / by_name[_PLAIN[4]].wall_s if _PLAIN[4] in by_name else None
        ratios = (f"{speedups_of[case.name]:.2f}", "" if over is None else f"{over:.2f}")
        rows.append((case.name, *times, *ratios))
    columns = ("", *(f"{name}, ms" for name in (*_PLAIN[:4], "read_array")), "peer / ours", "ours / read_array")
    return markdown_table(columns, rows)


def titled_table(case: CaseRows, title: str = "") -> str:
    """Return all rows of one case below its name and what it is about."""
    return f"**{title or case.name}**: {case.summary}\n\n{rows_table(case)}"


_IDLE = ("decoder idle", "copy engine idle", "fetch idle")


def timed_table(cases: Sequence[CaseRows]) -> str:
    """Return what a modelled device delivered: a line for each array and number of threads."""
    lines = (
        (
            case.name.removeprefix("timed/"),
            row.name,
            milliseconds(row.wall_s),
            f"{row.rate / 1e9:.2f}",
            *(f"{float(row.facts[column]):.0%}" for column in _IDLE),
            f"{slowest.name}, {slowest.rate / 1e9:.1f} GB/s",
            f"{slowest.wall_s / row.wall_s:.0%}",
        )
        for case in cases
        for row in case.rows
        if row.side == "ours" and (slowest := case.bare)
    )
    return markdown_table(("shards", "reads", "ms", "GB/s", *_IDLE, "bound", "of bound"), lines, n_text=2)


def saturation_table(cases: Sequence[CaseRows]) -> str:
    """Return what nvCOMP alone decoded, GB/s on the best number of streams: a line for each format and chunk length."""
    found = [(case, by_count) for case in cases if (by_count := _best_of_streams(case))]
    counts = sorted({n for _, by_count in found for n in by_count})
    rows = []
    for case, by_count in found:
        rates = [f"{by_count[n][1].rate / 1e9:.1f} ({by_count[n][0]})" if n in by_count else "" for n in counts]
        rows.append((case.name, milliseconds(by_count[min(by_count)][1].wall_s), *rates))
    return markdown_table(("GB/s (streams)", "the fewest, ms", *(f"{n} chunks" for n in counts)), rows)


def _best_of_streams(case: CaseRows) -> dict[int, tuple[int, Row]]:
    """Return, by the number of chunks, the number of streams that decoded them the soonest, and its row."""
    found: dict[int, tuple[int, Row]] = {}
    for row in case.rows:
        if row.samples:
            n, n_streams = map(int, row.name.split(" chunks on "))
            if n not in found or row.wall_s < found[n][1].wall_s:
                found[n] = n_streams, row
    return found


def concurrency_table(cases: Sequence[CaseRows]) -> str:
    """Return times and peaks of reads chunk by chunk: a line for each volume and reader, a column for each number."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for case in cases:
        for row in case.without_bare().rows:
            if row.samples:
                found.setdefault((case.about["workload"]["name"], row.name), {})[case.about["concurrency"]] = row
    at = sorted({n for by_n in found.values() for n in by_n})
    columns = ("volume", "reader", *(f"ms, {n} at once" for n in at), *(f"peak MB, {n}" for n in (at[:1] + at[-1:])))
    rows = []
    for (name, reader), by_n in found.items():
        times = [milliseconds(by_n[n].wall_s) if n in by_n else "" for n in at]
        peaks = [by_n[n].peak if n in by_n else None for n in (at[:1] + at[-1:])]
        rows.append((name, reader, *times, *("" if p is None else f"{p.peak_nbytes / 1e6:.0f}" for p in peaks)))
    return markdown_table(columns, rows, n_text=2)


def samples_table(cases: Sequence[CaseRows]) -> str:
    """Return how many samples a second every loader gave: a line for each case."""
    names = list(dict.fromkeys(row.name for case in cases for row in case.rows))
    rows = []
    for case in cases:
        rates = [samples_per_second(row, case) if (row := case.row(name)) else "" for name in names]
        rows.append((case.name.removeprefix("training/"), *rates))
    return markdown_table(("samples a second", *names), rows)


def study_table(cases: Sequence[CaseRows]) -> str:
    """Return the compressor study: ratio, and the time of every reader."""
    names = list(dict.fromkeys(row.name for case in cases for row in case.without_bare().rows))
    rows = []
    for case in cases:
        ratio = case.about["nbytes"] / case.about["stored_nbytes"]
        times = [milliseconds(row.wall_s) if (row := case.row(name)) else "" for name in names]
        rows.append((case.name.removeprefix("study ").partition("/")[0], f"{ratio:.2f}", *times))
    return markdown_table(("128³ unless said", "ratio", *(f"{name}, ms" for name in names)), rows)
