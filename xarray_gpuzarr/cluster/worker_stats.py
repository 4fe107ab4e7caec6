"""Statistics of workers' reads so far, gathered and printed as a table; without a client, those of this process.

Asking costs one message to each worker. Needs no plugin. Imports no distributed: a client brings it along.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Self

from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.cluster.registration import require_client
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.process.counters import STAGES, Counts, counters

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_LABEL_WIDTH = len("this process")
_WIDTH = 160
"""Room for all columns: a line that a terminal wraps is read more easily than numbers that are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """Statistics of one process's reads."""

    workers: tuple[str, ...]
    """Names of the workers in it; empty for a process that is none."""
    process: str
    """Tells this process from any other; a worker that was restarted is another one and begins at nothing."""
    counts: Counts

    @property
    def label(self) -> str:
        """Name of the process in the table."""
        return ", ".join(self.workers) or "this process"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stats:
    """One row for each process, rendered as a table by `str`, `repr`, rich and Jupyter.

    ``after - before`` is what was read in between.
    """

    rows: tuple[ProcessStats, ...]
    note: str = ""
    """A sentence below the table."""

    @property
    def total(self) -> Counts:
        """The sum of all rows."""
        return reduce(add, (row.counts for row in self.rows), Counts())

    def __sub__(self, earlier: Self) -> Self:
        before = {row.process: row.counts for row in earlier.rows}
        rows = (replace(row, counts=row.counts - before.get(row.process, Counts())) for row in self.rows)
        return replace(self, rows=tuple(rows))

    def __str__(self) -> str:
        from xarray_gpuzarr.backend.accessor.tables import as_text  # noqa: PLC0415  # imports rich

        return as_text(self, _WIDTH)

    def __repr__(self) -> str:
        return str(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from xarray_gpuzarr.backend.accessor import tables  # noqa: PLC0415  # imports rich

        head, *lines = self._lines()
        table = tables.headed_table(gap=1)
        for i, title in enumerate(head):
            width = None if i else _LABEL_WIDTH
            table.add_column(title, justify="right" if i else "left", overflow="fold", no_wrap=bool(i), min_width=width)
        for line in lines:
            table.add_row(*(tables.cell([text]) for text in line))
        yield table
        if self.note:
            yield tables.note(self.note)

    def _repr_html_(self) -> str:
        head, *lines = self._lines()
        rows = "".join(_html_row(line, "td") for line in lines)
        note = f'<p style="opacity:.7">{html.escape(visible(self.note))}</p>' if self.note else ""
        return f"<table><thead>{_html_row(head, 'th')}</thead><tbody>{rows}</tbody></table>{note}"

    def _lines(self) -> Iterator[list[str]]:
        """Yield the headline, a line for each process, and their sum; what never happened has no column."""
        stages = [stage for stage in STAGES if stage in self.total.seconds]
        both = ["verified", "different"] if self.total.n_verified else []
        shared = ["by the host"] if self.total.n_by_host else []
        cached = ["found", "not found"] if self.total.n_cache_hits + self.total.n_cache_misses else []
        columns = ["worker", "reads", "shards", "read", "decoded", "to the GPU"]
        yield [*columns, *cached, *shared, *both, *(f"{stage} s" for stage in stages)]
        named = [(row.label, row.counts) for row in self.rows]
        for label, counts in named if len(named) == 1 else [*named, ("all", self.total)]:
            nbytes = (counts.read_nbytes, counts.decoded_nbytes, counts.copied_nbytes)
            seconds = (f"{counts.seconds.get(stage, 0.0):.2f}" for stage in stages)
            verified = map(str, (counts.n_verified, counts.n_different) if both else ())
            by_host = [str(counts.n_by_host)][: len(shared)]
            sums = [str(counts.n_reads), str(counts.n_shards), *map(format_nbytes, nbytes)]
            sums += map(str, (counts.n_cache_hits, counts.n_cache_misses) if cached else ())
            yield [label, *sums, *by_host, *verified, *seconds]


def _html_row(cells: Sequence[str], tag: str) -> str:
    aligned = (f'<{tag} style="text-align:{"right" if i else "left"}">' for i in range(len(cells)))
    row = "".join(f"{start}{html.escape(visible(cell))}</{tag}>" for start, cell in zip(aligned, cells, strict=True))
    return f"<tr>{row}</tr>"


def stats(client: Any = None) -> Any:
    """Return what this engine has read so far, since processes started.

    Parameters
    ----------
    client : distributed.Client, optional
        Ask all its workers; without one, this process.

    Returns
    -------
    Stats
        A row for each process; workers that are threads of one process share theirs. With an asynchronous client, an
        awaitable of that.

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
    """Return the row of this process; distributed fills in the worker."""
    workers = () if dask_worker is None else (str(dask_worker.name),)
    return ProcessStats(workers=workers, process=counters.process, counts=counters.snapshot())


async def _gather(client: Any) -> Stats:
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
    note = f"Without {', '.join(silent)}." if silent else ""
    ordered = sorted(rows.values(), key=lambda row: row.workers)
    return Stats(rows=tuple(ordered), note=note)
