"""Files of results, as pages see them."""

from __future__ import annotations

import hashlib
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runner.results import CaseRows

RESULTS = Path(__file__).parents[1] / "results"
KINDS = (
    "host",
    "host-full",
    "chunks",
    "plain-zarr",
    "training",
    "steady",
    "cold",
    "small",
    "writes",
    "network",
    "timed",
    "saturation",
    "gpu",
)
"""Kinds of results, by the beginning of the file's name; a date follows. Some sections of the host may have a file of
their own, which was measured later."""


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


def machine_text(run: Run) -> str:
    """Return where and when a run was made, in a few words."""
    machine = run.about["machine"]
    gpu = f", {run.about['gpu']['name']}" if "gpu" in run.about else ""
    return f"{machine['model']}, {machine['n_cores']} cores{gpu}, {run.about['date'][:10]}"


def described(run: Run) -> str:
    """Return a paragraph about where and when a run was made, and its versions."""
    machine, settings = run.about["machine"], run.about["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in run.about["versions"].items() if version != "absent")
    scale = "" if settings.get("scale", 1) == 1 else f" at a scale of {settings['scale']:g}"
    if run.about.get("modelled"):
        return prose(f"Revision {run.about['revision']}; `{run.about['command']}` computes it again.")
    text = f"""
        Measured on {machine_text(run)}, with {machine["memory_nbytes"] / 2**30:.0f} GiB of memory{scale}: medians of up
        to {settings["rounds"]} interleaved rounds, files in the page cache. Revision {run.about["revision"]}, load
        average {machine["load_average"][0]:g}. `{run.about["command"]}` measures it again;
        `benchmarks/results/{run.path.name}` has every timing.
    """
    return f"{prose(text)}\n\n{folded('Versions', versions)}"


def prose(text: str) -> str:
    """Return a paragraph, filled."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def folded(title: str, text: str) -> str:
    """Return text that is shown when its title is clicked."""
    return f":::{{dropdown}} {title}\n{text}\n:::"
