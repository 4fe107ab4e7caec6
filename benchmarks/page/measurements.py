"""All tables, in Markdown."""

from __future__ import annotations

from benchmarks.page.figures import arrays_of
from benchmarks.page.regimes import regime_run, regimes_table
from benchmarks.page.runs import Run, described, folded, prose
from benchmarks.page.tables import (
    best_peers,
    concurrency_table,
    plain_zarr_table,
    samples_table,
    saturation_table,
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
    parts = [_HEAD, prose(_ABOUT), prose(_COLUMNS), *_host(runs)]
    if "host-full" in runs:
        full = runs["host-full"]
        parts += ["## Published workloads in full size", described(full), *_published({"host": full})]
    if "timed" in runs:
        parts += ["## The CUDA engine on a modelled device", prose(_TIMED_TEXT), described(runs["timed"])]
        parts += [timed_table(runs["timed"].cases)]
    if "saturation" in runs:
        run = runs["saturation"]
        parts += ["## nvCOMP alone", prose(_SATURATION_TEXT), described(run), saturation_table(run.cases)]
    if "gpu" in runs:
        parts += ["## On a GPU", described(runs["gpu"]), *(titled_table(case) for case in runs["gpu"].cases)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


_HEAD = """# All measurements

<!-- Written by `python -m benchmarks.page` from benchmarks/results. Do not edit. -->"""
_ABOUT = """
The tables behind docs/performance.md. `make performance` generates both from the newest result files. `make bench`
measures on a host, `make bench-full` reads published workloads at full size, and `make bench-gpu` measures on a GPU
(docs/gpu.md). `benchmarks/README.md` describes what is measured and how.
"""
_COLUMNS = """
*peer / ours*: time of the quickest other reader divided by ours; above 1, ours is quicker. *extra MB*: the most memory
that is allocated at once during the first read of a fresh process, minus the result. */ bare*: time divided by that of
the slowest row of the table that is not a reader, such as a client that decodes nothing, our reader on local files, or
one stage alone. It is not a limit.
"""


def _host(runs: dict[str, Run]) -> list[str]:
    run = runs["host"]
    logs = [titled_table(case, case.name.removeprefix("store/")) for case in run.named("store/")]
    return [
        "## On a host",
        described(run),
        "### Reading arrays",
        "Stored values as one NumPy array, each reader in a process of its own.",
        best_peers(arrays_of(run.cases)),
        *_regimes(runs),
        *_plain_zarr(runs),
        "### Through xarray",
        best_peers(run.of("load", "mean")),
        *_published(runs),
        *_training(runs),
        *_section("On a cluster", run, "cluster/"),
        *_section("Copies in memory", run, "copies/"),
        *_logs("Stores behind a network", prose(_STORES_TEXT), logs),
    ]


def _plain_zarr(runs: dict[str, Run]) -> list[str]:
    """Return the section on zarr-python's codec pipelines, if they were compared."""
    run = runs.get("plain-zarr", runs["host"])
    table = plain_zarr_table(run.cases)
    return ["### Plain zarr", prose(_PLAIN_TEXT), *_own(run, runs), table] if table else []


def _regimes(runs: dict[str, Run]) -> list[str]:
    """Return the section on first reads and those that follow, if they were compared."""
    run = regime_run(runs)
    table = regimes_table(run.cases)
    return ["### First and later reads", prose(_REGIMES_TEXT), *_own(run, runs), table] if table else []


def _own(run: Run, runs: dict[str, Run]) -> list[str]:
    """Return where and when a section was measured, if not with the others."""
    return [] if run is runs["host"] else [described(run)]


def _section(title: str, run: Run, beginning: str) -> list[str]:
    """Return a table of every case whose name begins so."""
    tables = [titled_table(case, case.name.removeprefix(beginning)) for case in run.named(beginning)]
    return [f"### {title}", *tables] if tables else []


def _training(runs: dict[str, Run]) -> list[str]:
    """Return the section on loaders, if they were compared."""
    run = runs.get("training", runs["host"])
    table = samples_table(run.named("training/"))
    return ["### Batches for training", prose(_TRAINING_TEXT), *_own(run, runs), table] if table else []


def _logs(title: str, text: str, tables: list[str]) -> list[str]:
    """Return tables that are folded away."""
    return [f"### {title}", text, folded(f"{len(tables)} tables", "\n\n".join(tables))] if tables else []


def _published(runs: dict[str, Run]) -> list[str]:
    """Return the sections of those workloads that others have published figures for."""
    parts: list[str] = []
    run, in_chunks = runs["host"], runs.get("chunks", runs["host"])
    if blog := run.named("blog/read"):
        parts += ["### The GPU blog's array", prose(_BLOG_TEXT), best_peers(blog)]
    volumes = [case for case in run.named("zarrs-") if case not in run.of("chunks")]
    if volumes:
        parts += ["### The volume of zarrs", prose(_ZARRS_TEXT)]
        parts += [best_peers(volumes), *_own(in_chunks, runs), concurrency_table(in_chunks.of("chunks"))]
    if studied := run.named("study "):
        parts += ["### Compressors and chunk sizes", prose(_STUDY_TEXT), study_table(studied)]
    return parts


_REGIMES_TEXT = """
*first*: the first read of a new process, after imports and opening; it includes what a library prepares at its first
read. *steady*: later reads of a process that drops each result. *kept*: later reads of a process that keeps the last
GiB of its results, so that reads cannot reuse their memory.
"""
_PLAIN_TEXT = """
`array[selection]` in zarr-python, with its own codec pipelines, that of zarrs and ours ([](zarr.md)): a whole array
(*read*), 32 random inner chunks (*chunk*), a plane across each axis (*plane*), 16 crops of 64³ elements or of four
fields (*crop*), one after another. *read_array* is our reader without zarr-python around it.
"""
_TRAINING_TEXT = """
Batches of 16 crops of one float32 array, zstd, in random order, to a loop that does nothing with them. All loaders read
the same crops, whose places ignore chunk boundaries. xbatcher reads through xarray's engine "zarr". Plain xbatcher
reads one sample after another; all others read the samples of two batches at once. More is better.
"""
_SATURATION_TEXT = """
Batches of chunks that are already on the device, decoded on it: no reader can be faster. For each total number of
chunks, the quickest number of streams is shown.
"""
_STORES_TEXT = """
The server runs on the same machine. Without a modelled line, it competes with the reader for cores, so the tables show
how much a reader leaves to it; a bare client does nothing with what it receives. With a line of 5 Gbit/s there is time
to spare, and the tables show whether a reader keeps the line busy. *to a GPU* means the CUDA engine: everything is real
except the GPU, which does nothing, so bytes come as far as pinned memory.
"""

_BLOG_TEXT = """
The array of [GPU-accelerated Zarr](https://github.com/TomAugspurger/cuda-streams-sample), read on the host.
"""
_ZARRS_TEXT = """
Of [zarr_benchmarks](https://github.com/LDeakin/zarr_benchmarks): shapes, chunks and codecs are theirs, values are ours.
"""
_STUDY_TEXT = """
One uint16 volume in 128³ chunks, after the [HEFTIE benchmarks](https://heftieproject.github.io/zarr-benchmarks).
"""
_TIMED_TEXT = """
**Modelled: no number below comes from a GPU.** The CUDA engine is real. Reads, copies, chunks and kernels take as long
as a table of assumptions says (`benchmarks/timed/rates.py`), on a clock that stands still while the engine runs. The
table shows how well the engine overlaps them. The bound is the slowest resource if it never had to wait; *idle* is the
share of time in which a resource did nothing.
"""
