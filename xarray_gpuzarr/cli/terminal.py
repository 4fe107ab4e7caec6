"""Functions that the commands share: opening stores, and printing text, tables, warnings and a status line.

Text is never printed as rich's markup, because names from stores may contain anything.
"""

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
"""Largest width to which the cells of a column are padded."""
_MOST_SHOWN = 70
"""Largest number of characters of the text in a status line, without the dots that follow it."""
_CLEAR_LINE = "\r\x1b[K"
"""Moves the cursor to the beginning of the line, and clears the line."""


def say(*lines: str, console: Console | None = None) -> None:
    """Print lines without wrapping or markup. Control characters in a line, such as line breaks, are escaped."""
    (console or Console()).print(Text("\n".join(map(visible, lines))), soft_wrap=True)


def address_of(options: argparse.Namespace) -> Address:
    """Return the address that ``STORE``, ``--group`` and ``--storage-options`` give."""
    storage_options = dict(map(storage_option, options.storage_options))
    return Address(store=options.store, group=options.group.strip("/"), storage_options=storage_options)


def storage_option(text: str) -> tuple[str, Any]:
    """Return the key and the value of ``KEY=VALUE``. A value that is not JSON is text."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise OptionError(
            "unusable storage option",
            tried="--storage-options with a text that is not shown, because it may be a secret",
            found="no KEY=VALUE",
            do="name an option of the store's fsspec client: --storage-options anon=true; once for each",
        )
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return each row as one line, with cells aligned in columns. Cells wider than `_WIDEST` are not cut."""
    rows = [tuple(map(visible, row)) for row in rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def counted(n: int, noun: str) -> str:
    """Return a number and a noun, which is in the plural unless the number is 1."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def complain(message: GpuZarrError | Warning | str, kind: type) -> None:
    """Print an error or a warning of class `kind` to standard error, without a traceback.

    Messages of this package have several lines. Others are printed as one line.
    """
    lines = str(message).split("\n") if issubclass(kind, GpuZarrError | GpuZarrWarning) else [str(message)]
    say(f"{kind.__name__}: {lines[0]}", *lines[1:], console=Console(stderr=True))


@contextmanager
def printing_warnings() -> Iterator[None]:
    """Print the warnings of a ``with`` block by `complain`, which escapes the names from stores that they may contain.

    Two warnings of xarray are dropped: their advice is for programs that open or write the store.
    """

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        complain(message, category)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated metadata", RuntimeWarning)
        warnings.filterwarnings("ignore", "The specified chunks separate the stored chunks", UserWarning)
        warnings.showwarning = show
        yield


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]], *, gap: int = 2) -> Table:
    """Return a table.

    Parameters
    ----------
    columns : iterable of str
        Titles of the columns. The first column is text. The others are numbers with units, which break only at blanks.
    rows : iterable of sequence of str
        Cells of each row.
    gap : int
        Number of blanks between columns.
    """
    rows = list(rows)
    table = headed_table(gap=gap)
    for number, (title, *texts) in enumerate(zip(columns, *rows, strict=True)):
        if number == 0:
            table.add_column(title, justify="left", overflow="fold")
        else:
            longest_word = max(map(len, " ".join((title, *texts)).split()))
            table.add_column(title, justify="right", overflow="fold", min_width=longest_word)
    for row in rows:
        table.add_row(*(cell([text]) for text in row))
    return table


def open_store(engine: str | None, store: str, /, **options: Any) -> xr.Dataset:
    """Return a dataset that xarray has opened. Errors become those of `naming_failures`."""
    with naming_failures(Address(store=store), f"xarray.open_dataset({store!r}, engine={engine!r})"):
        return xr.open_dataset(store, engine=engine, **options)


@contextmanager
def naming_unwritable(option: str, path: Path) -> Iterator[None]:
    """Convert an `OSError` of a ``with`` block that writes to the `path` of an option into an `OptionError`."""
    try:
        yield
    except OSError as err:
        raise OptionError(
            f"nothing can be written to '{path}'",
            tried=f"{option} {path}",
            found=f"{type(err).__name__}: {err}",
            do=f"name a place that can be written to, with {option}",
        ) from err


class StatusLine:
    """A text in the last line of the terminal. Nothing is shown if standard error is not a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the text that is shown."""
        if self._is_shown:
            sys.stderr.write(f"{_CLEAR_LINE}{visible(text)[:_MOST_SHOWN]} ...")
            sys.stderr.flush()

    def clear(self) -> None:
        """Clear the line, so that something else can be printed."""
        if self._is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
