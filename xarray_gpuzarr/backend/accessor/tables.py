"""Tables for terminals. This module imports rich, so it is imported only when a table is printed."""

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
    """Return a table with a line below its header, `gap` spaces between columns, and `leading` lines between rows."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), leading=leading)


def cell(lines: Sequence[str]) -> Text:
    """Return the lines of a cell as text, all but the first dimmed.

    Empty lines are left out. rich does not interpret markup in them.
    """
    first, *others = [visible(line) for line in lines if line] or [""]
    return Text.assemble(first, *((f"\n{line}", "dim") for line in others))


def note(text: str) -> Text:
    """Return the text of a sentence below a table."""
    return Text(f"\n{visible(text)}", style="dim")
