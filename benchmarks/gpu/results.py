"""Rows of results: kept on disk from the first one on, and printed as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal

Facts = Mapping[str, float | str]
Status = Literal["not run", "measured", "absent", "failed", "out of time"]

COPY_ROW = ("ceilings", "device to device copy")
"""The row that kernels are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one contestant did in one case."""

    case: str
    name: str
    status: Status = "not run"
    note: str = ""
    """Why there is no time, or not more of them."""
    nbytes: int = 0
    """Decoded bytes that one run delivers."""
    moved_nbytes: int | None = None
    """Bytes that one run reads and writes."""
    seconds: tuple[float, ...] = ()
    """Of every run."""
    facts: Facts = field(default_factory=dict)

    def ended(self, status: Status, note: str = "") -> Row:
        """Return the row as it stays."""
        return replace(self, status=status, note=note)

    @property
    def rate(self) -> float:
        """Decoded bytes per second, by the median."""
        return self.nbytes / max(median(self.seconds), 1e-9)

    @property
    def moved_rate(self) -> float | None:
        """Bytes read and written per second."""
        return None if self.moved_nbytes is None else self.moved_nbytes / max(median(self.seconds), 1e-9)

    def as_json(self) -> dict[str, object]:
        """Return the row with what follows from it."""
        row = asdict(self) | {"seconds": [round(s, 9) for s in self.seconds], "facts": dict(self.facts)}
        if not self.seconds:
            return row
        found = {"median_s": median(self.seconds), "min_s": min(self.seconds), "max_s": max(self.seconds)}
        return row | found | {"GB_per_s": self.rate / 1e9}


class Results:
    """All rows so far.

    Parameters
    ----------
    about : dict
        What the rows were measured on; first entries of the JSON.
    out : pathlib.Path
        Rewritten by every `save`.
    """

    def __init__(self, about: dict[str, object], out: Path) -> None:
        self._about = about
        self._out = out
        self._rows: dict[tuple[str, str], Row] = {}
        self.finished = False
        """Whether nothing more is to come."""

    @property
    def rows(self) -> list[Row]:
        """In the order in which they came."""
        return list(self._rows.values())

    def add(self, row: Row) -> None:
        """Take in a row, in place of an earlier one of that name."""
        self._rows[row.case, row.name] = row

    def sample(self, row: Row, seconds: float) -> None:
        """Take in the time of one run."""
        before = self._rows.get((row.case, row.name), row).seconds
        self.add(replace(row, status="measured", seconds=(*before, seconds)))

    def end(self, row: Row, status: Status, note: str = "") -> None:
        """Note that a contestant has no further runs; what it did before is kept."""
        before = self._rows.get((row.case, row.name), row)
        if status == "failed" or not before.seconds:
            self.add(before.ended(status, note))

    def save(self) -> None:
        """Write everything; a reader of the file never sees half of it."""
        document = self._about | {"finished": self.finished, "rows": [row.as_json() for row in self.rows]}
        self._out.parent.mkdir(parents=True, exist_ok=True)
        partial = self._out.with_name(self._out.name + ".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(self._out)

    def table(self) -> str:
        """Return all rows as text: medians and spread, decoded bytes, and bytes moved against a copy."""
        copy = self._rows.get(COPY_ROW)
        copy_rate = copy.moved_rate if copy is not None and copy.seconds else None
        lines, case = [], None
        for row in self.rows:
            if row.case != case:
                case = row.case
                heading = ("ms", "min-max", "GB/s", "of copy")
                lines += ["", f"{case[:50]:50} {heading[0]:>9} {heading[1]:>19} {heading[2]:>8} {heading[3]:>8}"]
            lines.append(f"  {row.name[:48]:48} {_cells(row, copy_rate)}".rstrip())
        return "\n".join(lines[1:])


def _cells(row: Row, copy_rate: float | None) -> str:
    if not row.seconds:
        return f"{row.status}: {row.note}" if row.note else row.status
    ms = [s * 1e3 for s in row.seconds]
    spread = f"{min(ms):.3f}-{max(ms):.3f}"
    of_copy = f"{row.moved_rate / copy_rate:8.2f}" if row.moved_rate and copy_rate else " " * 8
    notes = [f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.facts.items()]
    notes += [f"{row.status}: {row.note}"] if row.status != "measured" else []
    return f"{median(ms):9.3f} {spread:>19} {row.rate / 1e9:8.2f} {of_copy}  {', '.join(notes)}"
