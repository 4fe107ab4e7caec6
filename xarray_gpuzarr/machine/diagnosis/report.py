"""The result of an examination, as text, as HTML and as a document. Imports no rich."""

from __future__ import annotations

import getpass
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xarray_gpuzarr.errors import GpuZarrError, visible

FORMAT = "xarray_gpuzarr doctor"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the answer: a table, and the facts that it was made from."""

    name: str
    """In the document."""
    title: str
    columns: Sequence[str] = ()
    """Headline of the table; none where rows are names and what they are."""
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    """Sentences below the table."""
    failures: Sequence[str] = ()
    """Failures, a sentence each."""
    facts: Any = None
    """The same for programs: mappings, lists, text and numbers, as JSON has them."""

    def lines(self) -> list[str]:
        """Return the section as lines of plain text, without the headline."""
        table = [list(map(visible, row)) for row in [*([self.columns] if self.columns else []), *self.rows]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for first, *rest in table:  # the first column is text, the others are numbers, or text that may be long
            cells = [cell.rjust(n) for cell, n in zip(rest, widths[1:], strict=True)] if self.columns else rest
            lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
        if self.columns:
            lines.insert(1, "-" * max(map(len, lines)))
        return [*lines, *map(visible, self.notes), *(f"FAILED: {visible(failure)}" for failure in self.failures)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis:
    """All sections; text by `str` and `repr`, a table in Jupyter, and `document` for programs."""

    sections: tuple[Section, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def failures(self) -> tuple[str, ...]:
        """Failures, a sentence each; empty if all is well."""
        return tuple(failure for section in self.sections for failure in section.failures)

    @property
    def document(self) -> dict[str, Any]:
        """Everything as JSON has it; names no user and no place below a home folder."""
        head = {"format": FORMAT, "version": VERSION, "date": self.date, "well": not self.failures}
        facts: dict[str, Any] = {section.name: section.facts for section in self.sections}
        return dict(without_names({**head, "failures": list(self.failures), **facts}))

    def __str__(self) -> str:
        parts = ["\n".join([section.title, *(f"  {line}" for line in section.lines())]) for section in self.sections]
        return str(without_names("\n\n".join(parts)))

    def __repr__(self) -> str:
        return str(self)

    def to_report(self) -> str:
        """Return one block of Markdown, to be pasted into a bug report."""
        return f"```text\ngpuzarr doctor, {self.date}\n\n{self}\n```"

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            texts = (html.escape(visible(str(without_names(cell)))) for cell in cells)
            return "<tr>" + "".join(f'<{tag} style="text-align:left">{cell}</{tag}>' for cell in texts) + "</tr>"

        page = ""
        for section in self.sections:
            head = f"<thead>{row(section.columns, 'th')}</thead>" if section.columns else ""
            body = "".join(row(cells, "td") for cells in section.rows)
            below = [*section.notes, *(f"FAILED: {failure}" for failure in section.failures)]
            notes = "".join(f"<p>{html.escape(visible(str(without_names(line))))}</p>" for line in below)
            page += f"<h4>{html.escape(section.title)}</h4><table>{head}<tbody>{body}</tbody></table>{notes}"
        return page


def said(error: Exception) -> str:
    """Return what an error says, in a line."""
    text = f"{error.headline}: {error.found}" if isinstance(error, GpuZarrError) else str(error)
    return " ".join(f"{type(error).__name__}: {text}".split())


def without_names(document: Any) -> Any:
    """Return text, or a document, without the home folder and, in paths, without the name of its user."""
    if isinstance(document, Mapping):
        return {without_names(key): without_names(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_names(value) for value in document]
    if not isinstance(document, str):
        return document
    home = str(Path("~").expanduser())
    text = re.sub(rf"{re.escape(home)}(?=[/\s'\":;,)]|$)", "~", document) if len(home) > 1 else document
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no name for it
        user = ""
    return re.sub(rf"(?<=/){re.escape(user)}(?=[/\s'\":;,)]|$)", "user", text) if user else text
