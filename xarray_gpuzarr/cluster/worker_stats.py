"""`stats`: what this engine has read so far, in the workers of a cluster or in this process, as a table.

Gathering sends one message to each worker. Workers need no plugin for it. This module does not import distributed.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Self

from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.cluster.registration import require_client
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.process.counters import STAGES, Counts, Stage, counters

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_LABEL_WIDTH = len("this process")
_WIDTH = 160
"""Width of the table as text. A terminal may wrap its lines, which is easier to read than numbers that are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """What one process has read."""

    workers: tuple[str, ...]
    """Names of the dask workers in the process. Empty if there are none."""
    process: str
    """Identifier of the process. A worker that was restarted runs in another process, whose counts begin at 0."""
    counts: Counts
    """Counts since the process started."""

    @property
    def label(self) -> str:
        """Name of the process in the table."""
        return ", ".join(self.workers) or "this process"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stats:
    """What each process has read. `str`, `repr`, rich and Jupyter show it as a table.

    ``after - before`` is what the processes of ``after`` have read in between.
    """

    rows: tuple[ProcessStats, ...]
    """One row for each process."""
    note: str = ""
    """A sentence below the table."""

    @property
    def total(self) -> Counts:
        """The sum of all rows."""
        return reduce(add, (row.counts for row in self.rows), Counts())

    def __sub__(self, earlier: Self) -> Self:
        earlier_counts = {row.process: row.counts for row in earlier.rows}
        rows = [replace(row, counts=row.counts - earlier_counts.get(row.process, Counts())) for row in self.rows]
        return replace(self, rows=tuple(rows))

    def __str__(self) -> str:
        from xarray_gpuzarr.backend.accessor.tables import as_text  # noqa: PLC0415  # imports rich

        return as_text(self, _WIDTH)

    def __repr__(self) -> str:
        return str(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from xarray_gpuzarr.backend.accessor import tables  # noqa: PLC0415  # imports rich

        first_title, *titles = self._titles()
        table = tables.headed_table(gap=1)
        table.add_column(first_title, justify="left", overflow="fold", min_width=_LABEL_WIDTH)
        for title in titles:
            table.add_column(title, justify="right", overflow="fold", no_wrap=True)
        for cells in self._cells():
            table.add_row(*(tables.cell([text]) for text in cells))
        yield table
        if self.note:
            yield tables.note(self.note)

    def _repr_html_(self) -> str:
        head = _html_row(self._titles(), "th")
        rows = "".join(_html_row(cells, "td") for cells in self._cells())
        note = f'<p style="opacity:.7">{html.escape(visible(self.note))}</p>' if self.note else ""
        return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{note}"

    def _titles(self) -> list[str]:
        """Return the titles of all columns. The first column names processes."""
        return ["worker", *(title for title, _ in _columns(self.total))]

    def _cells(self) -> list[list[str]]:
        """Return the cells of each process and, unless there is exactly one, of their sum."""
        labelled = [(row.label, row.counts) for row in self.rows]
        if len(labelled) != 1:
            labelled.append(("all", self.total))
        columns = _columns(self.total)
        return [[label, *(text_of(counts) for _, text_of in columns)] for label, counts in labelled]


def _columns(total: Counts) -> list[tuple[str, Callable[[Counts], str]]]:
    """Return the title of each column, and the function that formats its cells.

    The columns after the first five are shown only if something was counted for them in any row. Two columns that
    belong together, such as "found" and "not found", are shown or left out together.
    """
    columns: list[tuple[str, Callable[[Counts], str]]] = [
        ("reads", lambda counts: str(counts.n_reads)),
        ("shards", lambda counts: str(counts.n_shards)),
        ("read", lambda counts: format_nbytes(counts.read_nbytes)),
        ("decoded", lambda counts: format_nbytes(counts.decoded_nbytes)),
        ("to the GPU", lambda counts: format_nbytes(counts.copied_nbytes)),
    ]
    if total.n_cache_hits or total.n_cache_misses:
        columns.append(("found", lambda counts: str(counts.n_cache_hits)))
        columns.append(("not found", lambda counts: str(counts.n_cache_misses)))
    if total.n_by_host:
        columns.append(("by the host", lambda counts: str(counts.n_by_host)))
    if total.n_verified:
        columns.append(("verified", lambda counts: str(counts.n_verified)))
        columns.append(("different", lambda counts: str(counts.n_different)))
    stages = [stage for stage in STAGES if stage in total.seconds]
    return columns + [(f"{stage} s", partial(_format_seconds, stage)) for stage in stages]


def _format_seconds(stage: Stage, counts: Counts) -> str:
    return f"{counts.seconds.get(stage, 0.0):.2f}"


def _html_row(cells: Sequence[str], tag: str) -> str:
    """Return a row of an HTML table. The first cell is aligned to the left, the others to the right."""
    row = ""
    for number, cell in enumerate(cells):
        side = "right" if number else "left"
        row += f'<{tag} style="text-align:{side}">{html.escape(visible(cell))}</{tag}>'
    return f"<tr>{row}</tr>"


def stats(client: Any = None) -> Any:
    """Return what this engine has read since each process started.

    Parameters
    ----------
    client : distributed.Client, optional
        Client of the cluster whose workers are asked. By default, only this process is.

    Returns
    -------
    Stats
        One row for each process. Workers in the same process share a row. With an asynchronous client, an awaitable of
        the statistics.

    Raises
    ------
    OptionError
        `client` is not a client.

    Examples
    --------
    >>> import xarray_gpuzarr
    >>> before = xarray_gpuzarr.stats()
    >>> (xarray_gpuzarr.stats() - before).total.n_reads
    0
    """
    if client is None:
        return Stats(rows=(_here(),))
    require_client(client, "stats")
    return client.sync(_gather, client)


def _here(dask_worker: Any = None) -> ProcessStats:
    """Return the row of this process. distributed passes the worker that runs this function."""
    workers = () if dask_worker is None else (str(dask_worker.name),)
    return ProcessStats(workers=workers, process=counters.process, counts=counters.snapshot())


async def _gather(client: Any) -> Stats:
    """Return the statistics of all workers. The note names those that did not answer."""
    answers: dict[str, Any] = await client.run(_here, on_error="return")
    rows: dict[str, ProcessStats] = {}
    silent: list[str] = []
    for address, answer in answers.items():
        if not isinstance(answer, ProcessStats):
            silent.append(f"{address} ({type(answer).__name__}: {answer})")
            continue
        earlier = rows.get(answer.process)
        workers = answer.workers if earlier is None else (*earlier.workers, *answer.workers)
        rows[answer.process] = replace(answer, workers=workers)
    note = f"These workers did not answer: {', '.join(silent)}." if silent else ""
    ordered = sorted(rows.values(), key=lambda row: row.workers)
    return Stats(rows=tuple(ordered), note=note)
