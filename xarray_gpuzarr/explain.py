"""Say of every variable how it is stored, where it is decoded and why, as data and as a table.

`explain_variables` reads nothing but metadata that is in memory already. `Explanation` renders its rows for terminals
of any width and as HTML. Called by the accessor and by the command line.
"""

from __future__ import annotations

import html
import io
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from xarray import IndexVariable, Variable
from xarray.core import indexing

from xarray_gpuzarr.chunkmanager import find_block_reader
from xarray_gpuzarr.codec_json import parse_codecs
from xarray_gpuzarr.lazy_array import LazyArray, find_lazy_array
from xarray_gpuzarr.metadata import NUMERIC_KINDS, ArraySpec

WIDE = 132
"""Terminal width, in columns, from which every property gets a column of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known about one variable."""

    variable: str
    """Name, after the path of its group if the rows are a tree's."""
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of the variable, in elements."""
    stored_dtype: str | None
    """Name of the dtype in the store, or None if the variable does not come from one."""
    dtype: str
    """Name of the dtype after decoding."""
    shard_shape: tuple[int, ...] | None = None
    """Shape of one shard of the stored array, in elements; None if it is not sharded."""
    n_shards: int | None = None
    chunk_shape: tuple[int, ...] | None = None
    """Shape of one inner chunk of the stored array, in elements."""
    n_chunks: int | None = None
    """Inner chunks that hold elements of the stored array."""
    codecs: str = ""
    """Codecs of an inner chunk, in the order in which they encode."""
    cast: str = ""
    """What turns stored numbers into physical ones."""
    where: str
    """Where chunks are decoded: ``"host"``, ``"cuda"``, ``"host, by zarr-python"``, ``"host, by xarray"`` ..."""
    why: str = ""
    """The reason; empty for the ordinary way of this engine."""
    storage: str = ""
    """How stored bytes reach a GPU: ``"gds"``, or ``"posix"`` and why; empty where there is nothing to choose."""
    stored_nbytes: int | None = None
    """Bytes of the elements in their stored dtype, before compression."""
    decoded_nbytes: int
    """Bytes of the elements after decoding."""


def explain_variables(variables: Mapping[Any, Variable], prefix: str = "") -> tuple[Row, ...]:
    """Describe variables in the order given. No I/O.

    Parameters
    ----------
    variables : mapping from name to xarray.Variable
    prefix : str
        Written before every name.
    """
    return tuple(_row(f"{prefix}{name}", variable) for name, variable in variables.items())


def lazy_array_of(variable: Variable) -> LazyArray | None:
    """Return the array of this engine that a variable will be read from, lazily or by dask, or None."""
    data = variable._data  # noqa: SLF001  # `.data` would read it
    lazy = find_lazy_array(data)
    reader = None if lazy is not None else find_block_reader(data)
    return lazy if reader is None else reader.lazy


def array_in_memory(variable: Variable) -> Any:
    """Return the array that a variable holds in memory, or None if it is still to be read or computed."""
    data = variable._data  # noqa: SLF001  # `.data` would read it
    while isinstance(data, _WRAPPERS):
        data = data.array
    return None if isinstance(data, indexing.ExplicitlyIndexed) or hasattr(data, "dask") else data


_ADAPTERS = (indexing.NumpyIndexingAdapter, indexing.NdArrayLikeIndexingAdapter, indexing.ArrayApiIndexingAdapter)
_WRAPPERS = (indexing.MemoryCachedArray, indexing.CopyOnWriteArray, *_ADAPTERS)


def _row(name: str, variable: Variable) -> Row:
    lazy = lazy_array_of(variable)
    if lazy is not None:
        return _engine_row(name, variable, lazy)
    where, why = _elsewhere(variable)
    return _bare_row(name, variable, variable.encoding.get("dtype"), where, why)


def _bare_row(name: str, variable: Variable, stored_dtype: Any, where: str, why: str) -> Row:
    n = math.prod(variable.shape)
    stored = None if stored_dtype is None or stored_dtype is str else np.dtype(stored_dtype)
    return Row(
        variable=name,
        dims=tuple(map(str, variable.dims)),
        shape=variable.shape,
        stored_dtype=None if stored is None else stored.name,
        dtype=variable.dtype.name,
        where=where,
        why=why,
        stored_nbytes=None if stored is None else n * stored.itemsize,
        decoded_nbytes=n * variable.dtype.itemsize,
    )


def _engine_row(name: str, variable: Variable, lazy: LazyArray) -> Row:
    route, stored, storage = lazy.route, lazy.stored, lazy.storage
    why = "; ".join(filter(None, (route.why, _derivation(variable, lazy))))
    if not isinstance(stored.spec, ArraySpec):
        array = stored.zarr_array
        assert array is not None
        row = _bare_row(name, variable, array.dtype, route.where, why)
        return replace(row, codecs=_codecs_of(array), cast=str(stored.cast))
    spec, sharded = stored.spec, stored.spec.index is not None
    row = _bare_row(name, variable, spec.numpy_dtype, route.where, why)
    return replace(
        row,
        shard_shape=spec.grid.shard_shape if sharded else None,
        n_shards=math.prod(spec.grid.n_shards) if sharded else None,
        chunk_shape=spec.grid.chunk_shape,
        n_chunks=math.prod(spec.grid.n_chunks),
        codecs=str(spec.codecs),
        cast=str(stored.cast),
        storage=storage,
    )


def _codecs_of(array: zarr.Array[Any]) -> str:
    """Name the codecs of an array that only zarr-python reads; such arrays are of format 3."""
    document: dict[str, Any] = dict(array.metadata.to_dict())
    return str(parse_codecs(document["codecs"]))


def _derivation(variable: Variable, lazy: LazyArray) -> str:
    """Say so if the variable is not the stored array itself."""
    if variable.shape == lazy.shape and variable.dtype == lazy.dtype:
        return ""
    return f"selected or computed from a stored array of shape {lazy.shape}"


def _elsewhere(variable: Variable) -> tuple[str, str]:
    """Say where a variable that this engine does not read is decoded, and why."""
    if isinstance(variable, IndexVariable):
        return "host, by xarray", "index coordinate"
    in_memory = array_in_memory(variable)
    if in_memory is not None:
        kind = type(in_memory)
        return "in memory", f"already loaded, as {kind.__module__}.{kind.__qualname__}"
    if variable.dtype.kind in "mM":
        return "host, by xarray", "times stay with xarray"
    if variable.dtype.kind not in NUMERIC_KINDS:
        return "host, by xarray", "text and objects stay with xarray"
    if hasattr(variable._data, "dask"):  # noqa: SLF001
        return "dask", "not opened by this engine"
    return "host, by xarray", "opened by another engine, or with CF attributes that are not plain arithmetic"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """Rows, rendered as a table by `str`, `repr`, rich and Jupyter."""

    rows: tuple[Row, ...]
    note: str = ""
    """A sentence below the table."""

    def __str__(self) -> str:
        return self.to_text(shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        return str(self)

    def to_text(self, width: int) -> str:
        """Render as plain text for a terminal of `width` columns."""
        out = io.StringIO()
        Console(file=out, width=width, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        columns, gap = (_WIDE_COLUMNS, 1) if wide else (_NARROW_COLUMNS, 0)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), leading=1)
        for title in columns:
            most = _NAME_WIDTH if title == "variable" and not wide else None
            table.add_column(title, overflow="fold", no_wrap=title in _UNBROKEN, max_width=most)
        for row in self.rows:
            table.add_row(*(_cell(of_row(row)) for of_row in columns.values()))
        yield table
        if self.note:
            yield Text(f"\n{self.note}", style="dim")

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left">{title}</th>' for title in _WIDE_COLUMNS)
        body = "".join(
            "<tr>" + "".join(_html_cell(of_row(row)) for of_row in _WIDE_COLUMNS.values()) + "</tr>"
            for row in self.rows
        )
        # Colours are inherited, so that the table suits light and dark pages.
        note = f'<p style="opacity:.7">{html.escape(self.note)}</p>' if self.note else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div style="overflow-x:auto">{table}{note}</div>'


Cell = list[str]
"""Lines of one cell; the first matters most."""


def _dtype(row: Row) -> str:
    unchanged = row.stored_dtype in (None, row.dtype)
    return row.dtype if unchanged else f"{row.stored_dtype} → {row.dtype}"


def _cast(row: Row) -> str:
    return "" if row.cast == "none" else row.cast


def _grid(n: int | None, noun: str, shape: tuple[int, ...] | None) -> str:
    """Write number, noun and shape of the cells of a grid; nothing if there is no grid."""
    if shape is None:
        return ""
    return f"{n} {noun.removesuffix('s') if n == 1 else noun} of {format_shape(shape)}".replace("  ", " ")


def _shards(row: Row) -> str:
    unsharded = row.shard_shape is None and row.chunk_shape is not None
    return "not sharded" if unsharded else _grid(row.n_shards, "", row.shard_shape)


def _layout(row: Row) -> Cell:
    """Put all that is known about storage into one cell, for narrow terminals."""
    shards = _grid(row.n_shards, "shards", row.shard_shape)
    return [shards, _grid(row.n_chunks, "chunks", row.chunk_shape), row.codecs, _cast(row)]


Columns = dict[str, Callable[[Row], Cell]]

_NARROW_COLUMNS: Columns = {
    "variable": lambda row: [row.variable, ", ".join(row.dims)],
    "values": lambda row: [_dtype(row), f"{format_shape(row.shape)}, {format_nbytes(row.decoded_nbytes)}"],
    "stored as": _layout,
    "decoded": lambda row: [row.where, row.why, row.storage],
}
_WIDE_COLUMNS: Columns = {
    "variable": lambda row: [row.variable, ", ".join(row.dims)],
    "values": lambda row: [_dtype(row), _cast(row)],
    "shape": lambda row: [format_shape(row.shape), format_nbytes(row.decoded_nbytes)],
    "shards": lambda row: [_shards(row)],
    "inner chunks": lambda row: [_grid(row.n_chunks, "", row.chunk_shape)],
    "codecs": lambda row: [row.codecs],
    "decoded": lambda row: [row.where, row.why, row.storage],
}
_UNBROKEN = {"values", "shape", "shards", "inner chunks"}
"""Columns that are never wrapped."""
_NAME_WIDTH = 16
"""Longer names and dimensions are wrapped in a narrow terminal, to leave room for shapes."""


def _cell(lines: Cell) -> Text:
    first, *rest = [line for line in lines if line] or [""]
    return Text.assemble(first, *((f"\n{line}", "dim") for line in rest))


def _html_cell(lines: Cell) -> str:
    first, *rest = [html.escape(line) for line in lines if line] or [""]
    more = "".join(f'<br><span style="opacity:.65">{line}</span>' for line in rest)
    return f'<td style="text-align:left;vertical-align:top">{first}{more}</td>'


def format_shape(shape: tuple[int, ...]) -> str:
    """Write a shape without spaces, so that it is never wrapped."""
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape)) or "scalar"


def format_nbytes(nbytes: int) -> str:
    """Write a number of bytes in decimal units, as xarray does."""
    value, units = float(nbytes), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while value >= 999.5 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.3g} {unit}"
