"""Rows of results: kept on disk from the first one on, as JSON that plots and pages are made from. Names no host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

Facts = Mapping[str, float | str]
Side = Literal["ours", "peer", "bare"]
"""``"bare"`` is no reader: one stage alone, a client that decodes nothing. Readers may be quicker."""
Status = Literal["not run", "measured", "absent", "failed", "out of time"]

COPY_ROW = ("ceilings", "device to device copy")
"""The row that kernels are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed run."""

    wall_s: float
    """Or, where said so, the time of a device's stream."""
    cpu_s: float | None = None
    """Of all threads of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory of the first run of a fresh process."""

    peak_nbytes: int
    """Most that was allocated at once since the run began, the result included."""
    result_nbytes: int

    @property
    def extra_nbytes(self) -> int:
        """Bytes beyond the result."""
        return self.peak_nbytes - self.result_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one contestant did in one case."""

    case: str
    name: str
    side: Side = "ours"
    status: Status = "not run"
    note: str = ""
    """Why there is no time, or not more of them."""
    nbytes: int = 0
    """Decoded bytes that one run delivers."""
    moved_nbytes: int | None = None
    """Bytes that one run reads and writes."""
    samples: tuple[Sample, ...] = ()
    """Of every run."""
    peak: Peak | None = None
    facts: Facts = field(default_factory=dict)

    def ended(self, status: Status, note: str = "") -> Row:
        """Return the row as it stays."""
        return replace(self, status=status, note=note)

    @property
    def wall_s(self) -> float:
        """Median."""
        return median(s.wall_s for s in self.samples)

    @property
    def cpu_s(self) -> float | None:
        """Median, where it was measured."""
        known = [s.cpu_s for s in self.samples if s.cpu_s is not None]
        return median(known) if known else None

    @property
    def spread_s(self) -> tuple[float, float]:
        """Shortest and longest time."""
        walls = [s.wall_s for s in self.samples]
        return min(walls), max(walls)

    @property
    def rate(self) -> float:
        """Decoded bytes per second, by the median."""
        return self.nbytes / max(self.wall_s, 1e-9)

    @property
    def moved_rate(self) -> float | None:
        """Bytes read and written per second."""
        return None if self.moved_nbytes is None else self.moved_nbytes / max(self.wall_s, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return the row with what follows from it."""
        row: dict[str, Any] = {
            "reader": self.name,
            "side": self.side,
            "status": self.status,
            "note": self.note,
            "nbytes": self.nbytes,
            "moved_nbytes": self.moved_nbytes,
            "wall_s": [round(s.wall_s, 9) for s in self.samples],
            "cpu_s": [round(s.cpu_s, 6) for s in self.samples if s.cpu_s is not None],
            "memory": asdict(self.peak) if self.peak else None,
            "facts": dict(self.facts),
        }
        if not self.samples:
            return row
        shortest, longest = self.spread_s
        return row | {"median_s": self.wall_s, "min_s": shortest, "max_s": longest, "GB_per_s": self.rate / 1e9}

    @classmethod
    def from_json(cls, case: str, row: Mapping[str, Any]) -> Row:
        """Return a row of a file."""
        cpu = row["cpu_s"] or [None] * len(row["wall_s"])
        samples = zip(row["wall_s"], cpu, strict=True)
        return cls(
            case=case,
            name=row["reader"],
            side=row["side"],
            status=row["status"],
            note=row["note"],
            nbytes=row["nbytes"],
            moved_nbytes=row["moved_nbytes"],
            samples=tuple(Sample(wall_s=wall, cpu_s=c) for wall, c in samples),
            peak=Peak(**row["memory"]) if row["memory"] else None,
            facts=row["facts"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRows:
    """One case with all of its rows."""

    name: str
    summary: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was read: ``workload``, ``operation``, ``stored_nbytes`` and the like, as far as they apply."""
    rows: Sequence[Row]

    @classmethod
    def from_json(cls, case: Mapping[str, Any]) -> CaseRows:
        """Return a case of a file."""
        about = {key: value for key, value in case.items() if key not in ("name", "summary", "rows")}
        rows = [Row.from_json(case["name"], row) for row in case["rows"]]
        return cls(name=case["name"], summary=case["summary"], about=about, rows=rows)

    @property
    def regime(self) -> str | None:
        """The regime that was read in, where there are several."""
        return self.about.get("regime")

    def row(self, name: str) -> Row | None:
        """Return the row of a contestant that was measured."""
        return next((row for row in self.rows if row.name == name and row.samples), None)

    def best(self, side: Side) -> Row | None:
        """Return the quickest row of a side."""
        rows = [row for row in self.rows if row.side == side and row.samples and row.status == "measured"]
        return min(rows, key=lambda row: row.wall_s, default=None)

    def without_bare(self, *, but: str = "") -> CaseRows:
        """Return the case with its readers alone, and perhaps one row that is none."""
        return replace(self, rows=[row for row in self.rows if row.side != "bare" or row.name == but])

    @property
    def bare(self) -> Row | None:
        """The slowest row that is no reader: of stages that overlap, the one that counts."""
        rows = [row for row in self.rows if row.side == "bare" and row.samples]
        return max(rows, key=lambda row: row.wall_s, default=None)

    def of_bare(self, row: Row) -> float | None:
        """Return a row's time over that of `bare`; None where there are no readers."""
        bare, only_bare = self.bare, all(r.side == "bare" for r in self.rows)
        return None if bare is None or only_bare else row.wall_s / bare.wall_s


class Results:
    """All rows so far.

    Parameters
    ----------
    about : dict
        What the rows were measured on; first entries of the JSON.
    out : pathlib.Path or None
        Rewritten by every `save`.
    """

    def __init__(self, about: dict[str, object], out: Path | None) -> None:
        self.about = about
        self._out = out
        self._cases: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._rows: dict[tuple[str, str], Row] = {}
        self.finished = False
        """Whether nothing more is to come."""

    @property
    def rows(self) -> list[Row]:
        """In the order in which they came."""
        return list(self._rows.values())

    @property
    def cases(self) -> list[CaseRows]:
        """In the order in which they came."""
        rows: dict[str, list[Row]] = {name: [] for name in self._cases}
        for row in self._rows.values():
            rows[row.case].append(row)
        return [self._case(name, rows[name]) for name in self._cases]

    def case(self, name: str) -> CaseRows:
        """Return one case."""
        return self._case(name, [row for row in self._rows.values() if row.case == name])

    def _case(self, name: str, rows: Sequence[Row]) -> CaseRows:
        summary, about = self._cases[name]
        return CaseRows(name=name, summary=summary, about=about, rows=rows)

    def begin(self, case: str, summary: str, about: Mapping[str, Any]) -> None:
        """Note what a case is."""
        self._cases[case] = summary, about

    def add(self, row: Row) -> None:
        """Take in a row, in place of an earlier one of that name."""
        self._cases.setdefault(row.case, ("", {}))
        self._rows[row.case, row.name] = row

    def sample(self, row: Row, sample: Sample | None) -> None:
        """Take in one run; None if it only gave facts."""
        before = self._rows.get((row.case, row.name), row).samples
        self.add(replace(row, status="measured", samples=before if sample is None else (*before, sample)))

    def drop(self, case: str, name: str) -> None:
        """Forget a row: others stand in its place."""
        self._rows.pop((case, name), None)

    def peak(self, case: str, name: str, peak: Peak) -> None:
        """Take in the memory of a row, if it is there."""
        if (case, name) in self._rows:
            self.add(replace(self._rows[case, name], peak=peak))

    def end(self, row: Row, status: Status, note: str = "") -> None:
        """Note that a contestant has no further runs; what it did before is kept."""
        before = self._rows.get((row.case, row.name), row)
        if status == "failed" or not before.samples:
            self.add(before.ended(status, note))

    def save(self) -> None:
        """Write everything; a reader of the file never sees half of it."""
        if self._out is None:
            return
        cases = [
            {"name": c.name, "summary": c.summary, **c.about, "rows": [row.as_json() for row in c.rows]}
            for c in self.cases
        ]
        document = self.about | {"finished": self.finished, "cases": cases}
        self._out.parent.mkdir(parents=True, exist_ok=True)
        partial = self._out.with_name(self._out.name + ".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(self._out)
