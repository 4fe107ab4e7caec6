"""What all commands do: open a store, say what is wrong with it, print text and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import xarray as xr
from rich.console import Console
from rich.table import Table

from xarray_gpuzarr.accessor.tables import headed_table
from xarray_gpuzarr.errors import GpuZarrError, StoreReadError


def say(text: str, console: Console | None = None) -> None:
    """Print text as it is, unwrapped."""
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Lay out rows below a headline; the first column is text, the others are numbers."""
    table = headed_table(gap=2)
    for i, title in enumerate(columns):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def open_store(engine: str | None, store: str, **options: Any) -> xr.Dataset:
    """Open a dataset; what a store, a file system or a codec raises becomes a `StoreReadError`."""
    try:
        return xr.open_dataset(store, engine=engine, **options)
    except GpuZarrError:
        raise
    except Exception as err:  # stores, files and drivers of any kind; whatever they raise is named
        raise StoreReadError(
            f"cannot open '{store}'",
            tried=f"xarray.open_dataset({store!r}, engine={engine!r})",
            found=f"{type(err).__name__}: {err}",
            do="check the path, and that the packages which this kind of store or file needs are installed",
        ) from err
