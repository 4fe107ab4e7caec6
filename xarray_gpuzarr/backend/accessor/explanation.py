"""`Explanation` and `Summary`: rows about variables, as text and HTML. rich is imported when a table is printed."""

from __future__ import annotations

import html
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xarray_gpuzarr.backend.accessor.variable_rows import Row
from xarray_gpuzarr.errors import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDE = 132
"""Terminal width, in columns, from which each property has a column of its own."""
_DESTINATIONS = {
    "cuda": "this engine's are read to the GPU, as CuPy arrays",
    "host": "this engine's are read to the host, as NumPy arrays",
    None: 'nothing left to read with engine="gpuzarr"',
}
"""Device, as `device_of` returns it -> second half of a headline such as "12 variables, 3 GB; this engine's are read to
the GPU, as CuPy arrays". It says where the variables that this engine reads are read to."""


class TableText(ABC):
    """Base of tables for rich that `str` and `repr` render as text."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.to_text(shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        return str(self)

    def to_text(self, width: int) -> str:
        """Render as plain text for a terminal of `width` columns."""
        from xarray_gpuzarr.backend.accessor.tables import as_text  # noqa: PLC0415  # imports rich

        return as_text(self, width)

    @abstractmethod
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(TableText):
    """Rows about variables, which `str`, `repr`, rich and Jupyter render as a table."""

    rows: tuple[Row, ...]
    note: str = ""
    """A sentence below the table."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from xarray_gpuzarr.backend.accessor import tables  # noqa: PLC0415  # imports rich

        is_wide = options.max_width >= WIDE
        columns = _WIDE_COLUMNS if is_wide else _NARROW_COLUMNS
        table = tables.headed_table(gap=1 if is_wide else 0, leading=1)
        for title in columns:
            max_width = _NAME_WIDTH if title == "variable" and not is_wide else None
            table.add_column(title, overflow="fold", no_wrap=title in _UNBROKEN, max_width=max_width)
        for row in self.rows:
            table.add_row(*(tables.cell(make_cell(row)) for make_cell in columns.values()))
        yield table
        if self.note:
            yield tables.note(self.note)

    def _repr_html_(self) -> str:
        rows = [[make_cell(row) for make_cell in _WIDE_COLUMNS.values()] for row in self.rows]
        return html_table(_WIDE_COLUMNS, rows, self.note)


Cell = list[str]
"""Lines of one cell, the most important one first."""


def _dtype(row: Row) -> str:
    """Return the dtype, or a text such as "int16 → float32" if the stored dtype is another one."""
    is_unchanged = row.stored_dtype in (None, row.dtype)
    return row.dtype if is_unchanged else f"{row.stored_dtype} → {row.dtype}"


def _cast(row: Row) -> str:
    """Return the conversion of stored numbers; empty if there is none."""
    return "" if row.cast == "none" else row.cast


def _grid(n: int | None, noun: str, shape: tuple[int, ...] | None) -> str:
    """Return a text such as "8 shards of" and the shape of one; empty if `shape` is None, since there is no grid.

    `noun` is in the plural, or empty where the title of a column says it.
    """
    if shape is None:
        return ""
    if n == 1:
        noun = noun.removesuffix("s")
    # There are two spaces if `noun` is empty.
    return f"{n} {noun} of {format_shape(shape)}".replace("  ", " ")


def _shards(row: Row) -> str:
    """Return number and shape of shards; empty if nothing is known about chunks."""
    if row.shard_shape is None and row.chunk_shape is not None:
        return "not sharded"
    return _grid(row.n_shards, "", row.shard_shape)


def _layout(row: Row) -> Cell:
    """Return shards, chunks, codecs and conversion as one cell, for narrow terminals."""
    shards = _grid(row.n_shards, "shards", row.shard_shape)
    return [shards, _grid(row.n_chunks, "chunks", row.chunk_shape), row.codecs, _cast(row)]


def brief_cells(row: Row) -> tuple[str, ...]:
    """Return the most important facts about a variable, as cells of one line."""
    grid = _grid(row.n_shards, "shards", row.shard_shape) or _grid(row.n_chunks, "chunks", row.chunk_shape)
    layout = grid if row.shape else ""
    return (row.variable, _dtype(row), format_shape(row.shape), format_nbytes(row.decoded_nbytes), layout, row.where)


Columns = dict[str, Callable[[Row], Cell]]
"""Title of each column, and the function that makes its cell for a row."""

_NARROW_COLUMNS: Columns = {
    "variable": lambda row: [row.variable, ", ".join(row.dims)],
    "values": lambda row: [_dtype(row), f"{format_shape(row.shape)}, {format_nbytes(row.decoded_nbytes)}"],
    "stored as": _layout,
    "decoded": lambda row: [row.where, row.why, row.storage, row.load, row.ahead],
}
_WIDE_COLUMNS: Columns = {
    "variable": lambda row: [row.variable, ", ".join(row.dims)],
    "values": lambda row: [_dtype(row), _cast(row)],
    "shape": lambda row: [format_shape(row.shape), format_nbytes(row.decoded_nbytes)],
    "shards": lambda row: [_shards(row)],
    "inner chunks": lambda row: [_grid(row.n_chunks, "", row.chunk_shape)],
    "codecs": lambda row: [row.codecs],
    "decoded": lambda row: [row.where, row.why, row.storage, row.load, row.ahead],
}
_UNBROKEN = {"values", "shape", "shards", "inner chunks"}
"""Columns that are never wrapped."""
_NAME_WIDTH = 16
"""Width at which names and dimensions are wrapped in a narrow terminal, to leave room for shapes."""


def html_table(titles: Iterable[str], rows: Iterable[Iterable[Cell]], note: str = "") -> str:
    """Return rows of cells as an HTML table, in the colours of the page, with a sentence below it."""
    head = "".join(f'<th style="text-align:left">{title}</th>' for title in titles)
    body = ""
    for cells in rows:
        body += "<tr>"
        for lines in cells:
            first, *others = [html.escape(visible(line)) for line in lines if line] or [""]
            dimmed = "".join(f'<br><span style="opacity:.65">{line}</span>' for line in others)
            body += f'<td style="text-align:left;vertical-align:top">{first}{dimmed}</td>'
        body += "</tr>"
    below = f'<p style="opacity:.7">{html.escape(visible(note))}</p>' if note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="overflow-x:auto">{table}{below}</div>'


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as text without spaces, so that it is never wrapped."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"


def format_nbytes(nbytes: int) -> str:
    """Return a number of bytes as text in decimal units, as xarray does."""
    value = float(nbytes)
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.5 and len(units) > 1:  # 999.5 is rounded to 1000
        value /= 1000
        units.pop(0)
    digits = f"{value:.3g}" if value < 999.5 else f"{value:.0f}"  # `.3g` would give 1000 PB an exponent
    return f"{digits} {units[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The text of ``ds.gpuzarr``: a headline, and the variables by the place where they are decoded."""

    headline: str
    places: tuple[tuple[str, str], ...]
    """Places, each with the names of the variables that are decoded there, as one text."""

    def __str__(self) -> str:
        width = max((len(place) for place, _ in self.places), default=0)
        lines = [f"  {place:{width}}  {names}" for place, names in self.places]
        return "\n".join([f"<gpuzarr: {self.headline}>", *lines])

    def to_html(self) -> str:
        """Return the summary as HTML, in the colours of the page."""
        rows = "".join(
            f'<tr><td style="text-align:left;opacity:.7">{html.escape(place)}</td>'
            f'<td style="text-align:left">{html.escape(names)}</td></tr>'
            for place, names in self.places
        )
        return f"<div><strong>gpuzarr</strong>: {html.escape(self.headline)}<table>{rows}</table></div>"


def summarize(rows: Iterable[Row], device: str | None) -> Summary:
    """Return the summary of rows. `device` is that of this engine's variables; None if there are none."""
    rows = tuple(rows)
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.where, []).append(row.variable)
    nbytes = format_nbytes(sum(row.decoded_nbytes for row in rows))
    destination = _DESTINATIONS.get(device)
    if destination is None:  # a GPU with a number, such as "cuda:1"
        destination = f"this engine's are read to GPU {str(device).partition(':')[2]}, as CuPy arrays"
    noun = "variable" if len(rows) == 1 else "variables"
    return Summary(
        headline=f"{len(rows)} {noun}, {nbytes}; {destination}",
        places=tuple((visible(place), visible(", ".join(names))) for place, names in places.items()),
    )
