"""Tables for terminals, as all of this package prints them. Imports rich: those that print import this when they do."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from xarray_gpuzarr.errors import visible


def as_text(renderable: RenderableType, width: int) -> str:
    """Render as plain text for a terminal of `width` columns."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_jupyter=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def headed_table(*, gap: int, leading: int = 0) -> Table:
    """Return a table without edges, a line below its headline.

    Parameters
    ----------
    gap : int
        Blanks between columns.
    leading : int
        Empty lines between rows.
    """
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), leading=leading)


def cell(lines: Sequence[str]) -> Text:
    """Put lines below each other, the first one brightest; empty ones are left out. No line is markup."""
    first, *rest = [visible(line) for line in lines if line] or [""]
    return Text.assemble(first, *((f"\n{line}", "dim") for line in rest))


def note(text: str) -> Text:
    """Return a sentence that stands below a table."""
    return Text(f"\n{visible(text)}", style="dim")
