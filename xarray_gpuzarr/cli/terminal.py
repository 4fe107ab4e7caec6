"""Functions that all commands share: opening a store, printing text and tables. Nothing is printed as markup."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xarray_gpuzarr.backend.accessor.tables import cell, headed_table
from xarray_gpuzarr.cli.failures import Address, naming_failures
from xarray_gpuzarr.errors import GpuZarrError, GpuZarrWarning, OptionError, visible

_WIDEST = 40
"""Columns that a cell keeps clear in other rows, at most."""
_MOST_SHOWN = 70


def say(*lines: str, console: Console | None = None) -> None:
    """Print lines as they are, unwrapped; a line break inside one is shown as such."""
    (console or Console()).print(Text("\n".join(map(visible, lines))), soft_wrap=True)


def address_of(options: argparse.Namespace) -> Address:
    """Return what ``STORE``, ``--group`` and ``--storage-options`` say together."""
    storage_options = dict(map(storage_option, options.storage_options))
    return Address(store=options.store, group=options.group.strip("/"), storage_options=storage_options)


def storage_option(text: str) -> tuple[str, Any]:
    """Take KEY=VALUE apart; a value that reads as JSON is what it says, any other is text."""
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise OptionError(
            "unusable storage option",
            tried=f"--storage-options {key}",  # never the value: it may be a secret
            found="no KEY=VALUE",
            do="name an option of the store's fsspec client: --storage-options anon=true; once for each",
        )
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return each row as one line, its cells aligned with those of the others unless they are very long."""
    rows = [tuple(map(visible, row)) for row in rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def complain(what: GpuZarrError | Warning | str, kind: type) -> None:
    """Print an error or a warning to standard error, without a traceback; only this package's have several lines."""
    lines = str(what).split("\n") if issubclass(kind, GpuZarrError | GpuZarrWarning) else [str(what)]
    say(f"{kind.__name__}: {lines[0]}", *lines[1:], console=Console(stderr=True))


@contextmanager
def warnings_said() -> Iterator[None]:
    """Print warnings of a ``with`` block like all other text; those of zarr contain names from stores.

    Two of xarray's are left out: what they advise is for whoever opens the store, or writes it.
    """

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        complain(message, category)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated metadata", RuntimeWarning)
        warnings.filterwarnings("ignore", "The specified chunks separate the stored chunks", UserWarning)
        warnings.showwarning = show
        yield


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]], *, gap: int = 2) -> Table:
    """Lay out rows below a headline, `gap` blanks between columns.

    The first column is text, the others are numbers, which are never broken.
    """
    rows, table = list(rows), headed_table(gap=gap)
    for i, (title, *texts) in enumerate(zip(columns, *rows, strict=True)):
        longest = max(map(len, " ".join((title, *texts)).split()))
        table.add_column(title, justify="right" if i else "left", overflow="fold", min_width=longest if i else None)
    for row in rows:
        table.add_row(*(cell([text]) for text in row))
    return table


def open_store(engine: str | None, store: str, /, **options: Any) -> xr.Dataset:
    """Open a dataset; what a store, a file system or a codec raises becomes a `StoreReadError`."""
    with naming_failures(Address(store=store), f"xarray.open_dataset({store!r}, engine={engine!r})"):
        return xr.open_dataset(store, engine=engine, **options)


@contextmanager
def naming_unwritable(option: str, place: Path) -> Iterator[None]:
    """Turn what the system raises inside a ``with`` block that writes to a place into an `OptionError`."""
    try:
        yield
    except OSError as err:
        raise OptionError(
            f"nothing can be written to '{place}'",
            tried=f"{option} {place}",
            found=f"{type(err).__name__}: {err}",
            do=f"name a place that can be written to, with {option}",
        ) from err


class StatusLine:
    """Status in the last line of a terminal; nothing is shown where standard error is none."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, what: str) -> None:
        """Show what is being done, in place of what was shown before."""
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[K{visible(what)[:_MOST_SHOWN]} ...")
            sys.stderr.flush()

    def clear(self) -> None:
        """Leave the line empty, for what is printed next."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
