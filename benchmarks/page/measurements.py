"""The page of all tables."""

from __future__ import annotations

from benchmarks.arrays.published import BLOG_SOURCE, HEFTIE_SOURCE, ZARRS_SOURCES
from benchmarks.page.runs import Run, described, folded, prose
from benchmarks.page.tables import (
    best_peers,
    concurrency_table,
    published_table,
    study_table,
    timed_table,
    titled_table,
)


def page(runs: dict[str, Run]) -> str:
    """Return the text of the page.

    Parameters
    ----------
    runs : dict of Run
        By kind; see `runs.KINDS`. ``"host"`` must be there.
    """
    parts = [_HEAD, prose(_ABOUT), prose(_COLUMNS), *_host(runs["host"])]
    if "host-full" in runs:
        full = runs["host-full"]
        parts += ["## Published workloads in full size", described(full), *_published(full)]
    if "timed" in runs:
        parts += ["## The CUDA engine on a modelled device", prose(_TIMED_TEXT), described(runs["timed"])]
        parts += [timed_table(runs["timed"].cases)]
    if "gpu" in runs:
        parts += ["## On a GPU", described(runs["gpu"]), *(titled_table(case) for case in runs["gpu"].cases)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


_HEAD = """# All measurements

<!-- Written by `python -m benchmarks.page` from benchmarks/results. Do not edit. -->"""
_ABOUT = """
The tables behind [](performance.md). `make performance` writes both pages anew from the newest files of results.
`make bench` measures on a host, `make bench-full` reads published workloads in their full size, `make bench-gpu`
measures on a GPU ([how](gpu-proof.md)). `benchmarks/README.md` says what is measured and how.
"""
_COLUMNS = """
*peer / ours*: time of the quickest other reader over ours; above 1, ours is quicker. *extra MB*: the most that is
allocated at once during the first read of a fresh process, less the result. *plain loop*: threads that read and decode
the same chunks with the same libraries, and plan and check nothing; no limit, since a reader that uses caches better is
quicker, and its ratio below 1. */ bare*: time over that of the slowest row of the table that is no reader, such as a
client that decodes nothing, our reader on files that are behind no server, or one stage alone; no limit either.
"""


def _host(run: Run) -> list[str]:
    arrays = [case for case in run.of("read") if not case.name.startswith(("blog", "zarrs-", "study"))]
    logs = [titled_table(case, case.name.removeprefix("store/")) for case in run.named("store/")]
    costs = [titled_table(case) for case in run.named("host cost")]
    return [
        "## On a host",
        described(run),
        "### Reading arrays",
        "Stored values as one NumPy array, each reader in a process of its own.",
        best_peers(arrays),
        "### Through xarray",
        best_peers(run.of("load", "mean")),
        *_published(run),
        *_section("On a cluster", run, "cluster/"),
        *_section("Copies in memory", run, "copies/"),
        *_logs("Stores behind a network", prose(_STORES_TEXT), logs),
        *_logs("What a shard costs the host of a GPU", prose(_COST_TEXT), costs),
    ]


def _section(title: str, run: Run, beginning: str) -> list[str]:
    """Return a table of every case whose name begins so."""
    tables = [titled_table(case, case.name.removeprefix(beginning)) for case in run.named(beginning)]
    return [f"### {title}", *tables] if tables else []


def _logs(title: str, text: str, tables: list[str]) -> list[str]:
    """Return tables that are folded away."""
    return [f"### {title}", text, folded(f"{len(tables)} tables", "\n\n".join(tables))] if tables else []


def _published(run: Run) -> list[str]:
    """Return the sections of those workloads that others have published figures for."""
    parts: list[str] = []
    if blog := run.named("blog/read"):
        parts += ["### The GPU blog's array", prose(_BLOG_TEXT), published_table([BLOG_SOURCE]), best_peers(blog)]
    volumes, chunked = run.named("zarrs-"), run.of("chunks")
    if volumes:
        parts += ["### The volume of zarrs", published_table(ZARRS_SOURCES)]
        parts += [best_peers([case for case in volumes if case not in chunked]), concurrency_table(chunked)]
    if studied := run.named("study "):
        parts += ["### Compressors and chunk sizes", "One uint16 volume in 128³ chunks."]
        parts += [published_table([HEFTIE_SOURCE]), study_table(studied)]
    return parts


_STORES_TEXT = """
The server is on the same machine. Without a line between them it takes its share of the cores, and what shows is how
much a reader leaves to it: a bare client does nothing with what it gets. Behind a line of 5 Gbit/s all have time, and
what shows is whether a reader keeps the line busy. Where it says *to a GPU*, the CUDA engine reads: everything is
real but the GPU, which does nothing, so bytes come as far as pinned memory.
"""
_COST_TEXT = """
CPU time of the thread that gives a shard to a GPU, on a device that does nothing: [](gpu-status.md) says what it means.
"""
_BLOG_TEXT = """
What is compared elsewhere: zarr-python into NumPy, zarr-python into CuPy, and code of its own, each reading shard by
shard and computing 76 products of every shard with itself. Below, the host reads such an array.
"""
_TIMED_TEXT = """
**Modelled: no number below is a GPU's.** The CUDA engine is the real one and so are the files; copies, chunks and
kernels take as long as a table of assumptions says (`benchmarks/timed/rates.py`), in real time. What shows is how much
of it the engine does side by side. The bound is the slowest resource, were it never to wait; *idle* is the share of the
time in which a resource did nothing.
"""
