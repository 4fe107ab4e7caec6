"""The page that says in one screen and three figures how quick reads are."""

from __future__ import annotations

from benchmarks.page.figures import FIGURES, arrays_of
from benchmarks.page.regimes import regime_run, regimes_summary
from benchmarks.page.runs import Run, machine_text, prose
from benchmarks.page.tables import Summary, cold_table, markdown_table, summaries
from benchmarks.runner.results import CaseRows


def page(runs: dict[str, Run]) -> str:
    """Return the text of the page.

    Parameters
    ----------
    runs : dict of Run
        By kind; see `runs.KINDS`. ``"host"`` must be there.
    """
    host = runs["host"]
    found = _summaries(runs)
    parts = [
        _HEAD,
        _on_a_gpu(runs),
        prose(_result(host, found)),
        prose(_SUMMARY_TEXT),
        markdown_table(
            ("", "cases", "mean", "lowest", "highest"),
            ((s.title, str(s.n), f"{s.mean:.2f}", f"{s.lowest:.2f}", f"{s.highest:.2f}") for s in found),
        ),
        "## Arrays",
        prose(_ARRAYS_TEXT),
        _figure("arrays", runs),
        _key(arrays_of(host.cases)),
        *_regimes(runs),
        *_cold(runs),
        "## Through xarray",
        prose(_XARRAY_TEXT),
        _figure("xarray", runs),
        "## Stores",
        prose(_STORES_TEXT),
        _figure("stores", runs),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


_HEAD = """# Performance

<!-- Written by `python -m benchmarks.page` from benchmarks/results. Do not edit. -->"""
_NOT_YET = """:::{important}
**On a GPU: not measured yet.** [](gpu.md) has the commands. This page is about decoding on the CPU.
:::"""
_SUMMARY_TEXT = """
The table shows the time of the quickest other reader divided by ours, as geometric means. Above 1, ours is quicker.
"""
_ARRAYS_TEXT = """
Stored values as one NumPy array, from local files in the page cache. The values are synthetic: *series* resembles an
instrument's record, *volume* and *shards* a microscope image, *era5* temperatures with gaps.
"""
_REGIMES_TEXT = """
The first read of a process, and later reads of one that drops its results (*steady*) or keeps them (*kept*): time of
the quickest other reader divided by ours, as geometric means.
"""
_COLD_TEXT = """
The files are dropped from the page cache before each timed read, so that the disk is read: whole arrays, planes across
the first axis that meet every shard or file, and 200 boxes of half a chunk's length, one after another. The table shows
the time of the quickest other reader divided by ours. The disk is a virtual machine's: others answer later, and the
order of readers may be another one there.
"""
_XARRAY_TEXT = """
The same arrays opened with `xarray.open_dataset`, with CF decoding; *mean* computes one number from all values. With
*chunks={}*, our engine makes a dask task per shard and engine "zarr" one per inner chunk. With *chunks=shards*, engine
"zarr" makes one per shard, too.
"""
_STORES_TEXT = """
A whole array of 393 MB in 24 shards, from a server on the same machine that delays its responses. *bare obstore* is not
a reader: it fetches the same bytes and decodes nothing.
"""


_OWN_FILES = {
    "chunks": ("chunk by chunk",),
    "plain-zarr": ("plain zarr",),
    "training": ("batches for training",),
    "cold": ("files not in memory",),
    "small": ("small reads",),
    "network": (
        "parts of arrays behind a server",
        "means through dask behind a server",
        "writes to a server",
    ),
    "writes": ("writes to files",),
}
"""Kinds of results, and the titles of the summaries that they give where they are there."""


def _summaries(runs: dict[str, Run]) -> list[Summary]:
    """Return the summaries of the host, of those with a file of their own from there."""
    found = {summary.title: summary for summary in summaries(runs["host"].cases)}
    for kind, titles in _OWN_FILES.items():
        if kind in runs:
            found |= {summary.title: summary for summary in summaries(runs[kind].cases) if summary.title in titles}
    return list(found.values())


def _regimes(runs: dict[str, Run]) -> list[str]:
    """Return the section on first reads and those that follow, if they were compared."""
    run = regime_run(runs)
    table = regimes_summary(run.cases)
    measured = "" if run is runs["host"] else f" Measured on {machine_text(run)}."
    return ["## First and later reads", prose(_REGIMES_TEXT + measured), table] if table else []


def _cold(runs: dict[str, Run]) -> list[str]:
    """Return the section on files that are not in the page cache, if any were read."""
    if "cold" not in runs:
        return []
    text = prose(_COLD_TEXT + f" Measured on {machine_text(runs['cold'])}.")
    return ["## Files that are not in the page cache", text, cold_table(runs["cold"].named("cold/"))]


def _on_a_gpu(runs: dict[str, Run]) -> str:
    if "gpu" not in runs:
        return _NOT_YET
    return "\n\n".join(("## On a GPU", f"Measured on {machine_text(runs['gpu'])}.", _figure("gpu-reads", runs)))


def _result(run: Run, found: list[Summary]) -> str:
    """Return a sentence that says what was compared, and the result."""
    slower = ", ".join(f"{s.title} ({s.mean:.2f})" for s in found if round(s.mean, 2) < 1)
    return f"""
        xarray_gpuzarr, zarr-python (its default and its Fused pipeline), zarrs, zarrista and TensorStore were compared
        in one run ({machine_text(run)}). xarray_gpuzarr read {found[0].title} {found[0].mean:.2f} times as fast as the
        quickest other reader of each case. {f"It was slower than the quickest at {slower}." if slower else ""}
        `make performance` makes tables of all timings, which are in `benchmarks/results`.
        To compare on your own data, run `gpuzarr bench STORE`.
    """


def _figure(name: str, runs: dict[str, Run]) -> str:
    """Return the reference to a figure, if there is one."""
    figure = next(f for f in FIGURES if f.name == name)
    drawn = figure.kind in runs and figure.draw(runs[figure.kind].cases)
    return f"![{figure.alt}](figures/{name}.svg)" if drawn else ""


def _key(cases: list[CaseRows]) -> str:
    """Return what the rows of a figure are: a line for each workload."""
    by_name = {case.about["workload"]["name"]: case for case in cases}
    lines = (f"`{name}`: {c.about['nbytes'] / 1e6:.0f} MB, {c.summary}" for name, c in by_name.items())
    return "\\\n".join(lines).replace("^3", "³")
