"""What `Batches.explain` returns: how the samples of each variable are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xarray_gpuzarr.backend.accessor.explanation import TableText, html_table
from xarray_gpuzarr.training.sources import Way

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_TITLES = ("variable", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchesRow:
    """How the samples of one variable are read, a row of `BatchesExplanation`."""

    variable: str
    way: Way
    """``"one plan"`` (the fast way), ``"crop by crop"``, ``"dask"`` or ``"memory"``."""
    why: str
    """Why they are not read with one plan. Empty if they are, and for a variable in memory."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchesExplanation(TableText):
    """How the samples of each variable are read. `str`, `repr`, rich and Jupyter show it as a table."""

    rows: tuple[BatchesRow, ...]
    """One row for each variable that is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from xarray_gpuzarr.backend.accessor import tables  # noqa: PLC0415  # imports rich

        table = tables.headed_table(gap=2)
        for title in _TITLES:
            table.add_column(title, overflow="fold")
        for row in self.rows:
            table.add_row(*map(tables.cell, _cells(row)))
        yield table

    def _repr_html_(self) -> str:
        return html_table(_TITLES, map(_cells, self.rows))


def _cells(row: BatchesRow) -> list[list[str]]:
    """Return the lines of each cell of a row."""
    return [[row.variable], [f"{row.way}: {row.why}" if row.why else row.way]]
