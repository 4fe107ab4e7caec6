"""`Section` and `Diagnosis`: the result of an examination, as text, HTML and a JSON document.

This module does not import rich; the command line prints sections with it.
"""

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

_NAME_ENDS = r"(?=[/\s'\":;,)]|$)"
"""Regular expression for the end of a file's or folder's name in a text. It looks ahead, and matches no character."""
FORMAT = "xarray_gpuzarr doctor"
"""Value of the key "format" of a document, by which programs recognise it."""
VERSION = 1
"""Version of the document's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The result of one part of an examination: a table, and the facts that it shows."""

    name: str
    """Key of the facts in the document."""
    title: str
    columns: Sequence[str] = ()
    """Titles of the columns. Empty if the rows are names and values, which need no titles."""
    rows: Sequence[Sequence[str]] = ()
    """Cells of the table."""
    notes: Sequence[str] = ()
    """Sentences below the table."""
    failures: Sequence[str] = ()
    """A sentence for each failure."""
    facts: Any = None
    """The result for programs: mappings, lists, texts and numbers that JSON can represent."""

    def lines(self) -> list[str]:
        """Return the section as lines of plain text, without its title."""
        rows = [self.columns, *self.rows] if self.columns else self.rows
        table = [list(map(visible, row)) for row in rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for first, *others in table:
            cells = others
            if self.columns:  # the other columns are numbers; without titles, they are texts that may be long
                cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
        if self.columns:
            lines.insert(1, "-" * max(map(len, lines)))
        return [*lines, *map(visible, self.notes), *(f"FAILED: {visible(failure)}" for failure in self.failures)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis:
    """The result of an examination. `str` and `repr` return text, Jupyter shows tables, `document` is for programs."""

    sections: tuple[Section, ...]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """Time of the examination in ISO format, UTC."""

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each failure. Empty if all is well."""
        return tuple(failure for section in self.sections for failure in section.failures)

    @property
    def document(self) -> dict[str, Any]:
        """All facts, as JSON can represent them, without the name of the user and the path of the home folder."""
        head = {"format": FORMAT, "version": VERSION, "date": self.date, "well": not self.failures}
        facts: dict[str, Any] = {section.name: section.facts for section in self.sections}
        return dict(without_names({**head, "failures": list(self.failures), **facts}))

    def __str__(self) -> str:
        parts = ["\n".join([section.title, *(f"  {line}" for line in section.lines())]) for section in self.sections]
        return str(without_names("\n\n".join(parts)))

    def __repr__(self) -> str:
        return str(self)

    def to_report(self) -> str:
        """Return the text as a block of Markdown for a bug report."""
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


def one_line(error: Exception) -> str:
    """Return the class and the message of an error as one line, without what was tried and what to do."""
    text = f"{error.headline}: {error.found}" if isinstance(error, GpuZarrError) else str(error)
    return " ".join(f"{type(error).__name__}: {text}".split())


def without_names(document: Any) -> Any:
    """Return a text or JSON document with ``~`` for the home folder and, in paths, ``user`` for the user's name."""
    if isinstance(document, Mapping):
        return {without_names(key): without_names(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_names(value) for value in document]
    if not isinstance(document, str):
        return document
    text = document
    home = str(Path("~").expanduser())
    if len(home) > 1:  # "/" is the home folder of some system users, and would match in any path
        text = re.sub(re.escape(home) + _NAME_ENDS, "~", text)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # in a container, the user may have no name
        user = ""
    if user:
        text = re.sub(rf"(?<=/){re.escape(user)}{_NAME_ENDS}", "user", text)
    return text
