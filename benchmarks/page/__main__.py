"""``python -m benchmarks.page``: writes docs/performance.md and its figures from the newest results.

Nothing on the page is typed: every number is read from `results/*.json` or from the sources that `published` names.
"""

from __future__ import annotations

import hashlib
import json
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page.tables import (
    best_peers,
    concurrency_table,
    in_short,
    published_table,
    study_table,
    timed_table,
    titled_table,
)
from benchmarks.page.plots import PICTURES, TIMED_PICTURES, draw_all
from benchmarks.arrays.published import BLOG_SOURCE, HEFTIE_SOURCE, STAGES_SOURCE, ZARRS_SOURCES
from benchmarks.results import CaseRows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
KINDS = ("host", "host-full", "timed", "gpu")
"""Kinds of results, by the beginning of the file's name; a date follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One file of results."""

    path: Path
    about: dict[str, Any]
    cases: list[CaseRows]

    @property
    def origin(self) -> str:
        """Which file this is, for figures that are made from it."""
        return f"made from {self.path.name}, SHA-256 {hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]}"

    def of(self, *operations: str) -> list[CaseRows]:
        """Return the cases of some operations."""
        return [case for case in self.cases if case.about.get("operation") in operations]

    def named(self, *beginnings: str) -> list[CaseRows]:
        """Return the cases whose name begins with one of these."""
        return [case for case in self.cases if case.name.startswith(beginnings)]


def newest(kind: str, folder: Path = RESULTS) -> Run | None:
    """Return the newest results of a kind, or None."""
    found = sorted(folder.glob(f"{kind}-[0-9]*.json"))
    return load(found[-1]) if found else None


def load(path: Path) -> Run:
    """Return a file of results."""
    document = json.loads(path.read_text())
    cases = [CaseRows.from_json(case) for case in document.pop("cases")]
    return Run(path=path, about=document, cases=cases)


def main() -> int:
    """Write the page and its figures."""
    runs = {kind: run for kind in KINDS if (run := newest(kind)) is not None}
    for kind, run in runs.items():
        draw_all(run.cases, FIGURES / kind, run.origin, TIMED_PICTURES if kind == "timed" else PICTURES)
    PAGE.write_text(page(runs))
    print(f"written: {PAGE.relative_to(ROOT)}, {FIGURES.relative_to(ROOT)}")
    return 0


def page(runs: dict[str, Run]) -> str:
    """Return the text of the page.

    Parameters
    ----------
    runs : dict of Run
        By kind; see `KINDS`. ``"host"`` must be there.
    """
    parts = [_HEAD, prose(_ABOUT), *_host(runs["host"])]
    if "host-full" in runs:
        full = runs["host-full"]
        parts += ["## Published workloads in full size", described(full), *_published_in(full, "host-full")]
    if "timed" in runs:
        parts += _timed(runs["timed"])
    parts += _gpu(runs)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


_HEAD = """# Performance

<!-- Written by `python -m benchmarks.page` from benchmarks/results. Do not edit. -->"""
_ABOUT = """
Every number on this page is read from a file of results by `make performance`, which writes the page anew. `make bench`
measures on a host, in minutes; `make bench-full` reads published workloads in their full size; `make bench-gpu`
measures on a GPU ([how](gpu-proof.md)). `benchmarks/README.md` says what is measured and how. To compare readers on a
store of yours: `gpuzarr bench STORE`.
"""


def prose(text: str) -> str:
    """Return a paragraph, filled."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def described(run: Run) -> str:
    """Return a paragraph about where and when a run was made, and its versions."""
    machine, settings = run.about["machine"], run.about["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in run.about["versions"].items() if version != "absent")
    gpu = f", {run.about['gpu']['name']}" if "gpu" in run.about else ""
    scale = "" if settings.get("scale", 1) == 1 else f" at a scale of {settings['scale']:g}"
    text = f"""
        Measured {run.about["date"][:10]} on {machine["model"]}, {machine["n_cores"]} cores,
        {machine["memory_nbytes"] / 2**30:.0f} GiB of memory{gpu}{scale}: medians of up to {settings["rounds"]}
        interleaved rounds, files in the page cache. Revision {run.about["revision"]}, load average
        {machine["load_average"][0]:g}. `{run.about["command"]}` measures it again;
        `benchmarks/results/{run.path.name}` has every timing.
    """
    return f"{prose(text)}\n\n{_folded('Versions', versions)}"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>{text}</details>"


def _host(run: Run) -> list[str]:
    parts = ["## On a host", described(run), in_short(run.cases)]
    arrays = [case for case in run.of("read") if not case.name.startswith(("blog", "zarrs-", "study"))]
    parts += [
        "### Reading arrays",
        _figure(run, "host", "limit"),
        prose(_LIMIT_TEXT),
        best_peers(arrays),
        "### Through xarray",
        _figure(run, "host", "xarray"),
        best_peers(run.of("load", "mean")),
        "### Memory",
        _figure(run, "host", "memory"),
        "The most that is allocated at once during the first read of a fresh process, less the result.",
    ]
    return [*parts, *_published_in(run, "host"), *_others(run)]


_SECTIONS = {"store": "Stores behind a network", "cluster": "On a cluster", "copies": "Copies in memory"}
_SECTION_TEXTS = {
    "store": """
The server is on the same machine. Without a line between them it takes its share of the cores, and what shows is how
much a reader leaves to it: a bare client does nothing with what it gets. Behind a line of 5 Gbit/s all have time, and
what shows is whether a reader keeps the line busy. Where it says *to a GPU*, the CUDA engine reads: everything is
real but the GPU, which does nothing, so bytes come as far as pinned memory.
"""
}


def _published_in(run: Run, kind: str) -> list[str]:
    """Return the sections of those workloads that others have published figures for."""
    parts: list[str] = []
    read, blog = run.named("blog/read"), run.named("blog/compute", "blog/stages")
    if read or blog:
        parts += ["### The GPU blog's array", prose(_BLOG_TEXT), published_table([BLOG_SOURCE, STAGES_SOURCE])]
        parts += [best_peers(read) if read else "", *(titled_table(case) for case in blog)]
    volumes, chunked = run.named("zarrs-"), run.of("chunks")
    if volumes:
        parts += ["### The volume of zarrs", _figure(run, kind, "concurrency"), published_table(ZARRS_SOURCES)]
        parts += [best_peers([case for case in volumes if case not in chunked]), concurrency_table(chunked)]
    studied = run.named("study ")
    if studied:
        parts += ["### Compressors and chunk sizes", _figure(run, kind, "compressors"), prose(_STUDY_TEXT)]
        parts += [published_table([HEFTIE_SOURCE]), study_table(studied), _figure(run, kind, "chunk-edges")]
    return parts


_LIMIT_TEXT = """
Stored values as one NumPy array, each reader in a process of its own. The limit is a plain loop, in C where chunks lie
scattered in the array, that knows where every chunk lies, plans nothing and checks nothing.
"""
_BLOG_TEXT = """
What a GPU is compared with elsewhere: zarr-python into NumPy, zarr-python into CuPy, and code of its own, each reading
shard by shard and computing 76 products of every shard with itself. On a host there are the first and ours. The stages
are those of one shard, each alone; *stored* is the rate of compressed bytes.
"""
_STUDY_TEXT = """
One uint16 volume in 128³ chunks. Larger marks are higher levels; hollow ones are Zarr v2.
"""


def _others(run: Run) -> list[str]:
    """Return a table of every case that no other section shows, in sections by the first word of their names."""
    shown = {"read", "load", "mean", "chunks", "compute", "stages"}
    parts, sections = [], set()
    for case in run.cases:
        if case.about.get("operation") in shown:
            continue
        section, _, name = case.name.partition("/")
        if section not in sections:
            sections.add(section)
            parts += [f"### {_SECTIONS.get(section, section)}", prose(_SECTION_TEXTS.get(section, ""))]
        parts.append(titled_table(case, name or section))
    return parts


_TIMED_TEXT = """
**Modelled: no figure below is a GPU's.** The CUDA engine is the real one and so are the files; copies, chunks and
kernels take as long as a table of assumptions says (`benchmarks/timed/rates.py`), in real time. What shows is how much
of it the engine does side by side. The bound is the slowest resource, were it never to wait; *idle* is the share of the
time in which a resource did nothing.
"""


def _timed(run: Run) -> list[str]:
    parts = ["## The CUDA engine on a modelled device", prose(_TIMED_TEXT), described(run)]
    parts += [_figure(run, "timed", "timed-shares"), timed_table(run.cases)]
    return [*parts, _figure(run, "timed", "timed-published")]


def _gpu(runs: dict[str, Run]) -> list[str]:
    if "gpu" not in runs:
        return ["## On a GPU", "Not measured: no GPU has run it yet. [](gpu-proof.md) has the commands."]
    run = runs["gpu"]
    parts = ["## On a GPU", described(run), _figure(run, "gpu", "gpu-reads"), published_table([BLOG_SOURCE])]
    parts += [titled_table(case) for case in run.cases]
    return parts


def _figure(run: Run, kind: str, name: str) -> str:
    """Return the reference to a figure, if there is one."""
    picture = next(p for p in (*PICTURES, *TIMED_PICTURES) if p.name == name)
    return f"![{picture.alt}](figures/{kind}/{name}.svg)" if picture.draw(run.cases) else ""


if __name__ == "__main__":
    sys.exit(main())
