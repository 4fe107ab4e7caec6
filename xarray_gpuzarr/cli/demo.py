"""``gpuzarr demo``: writes sharded Zarr, reads it with xarray's own engine and with this one, compares and measures.

Opening the store and reading all of it is measured, because that is what users wait for. Rounds are interleaved, so
that other load on the machine affects all readers, and medians are printed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import xarray as xr
import zarr
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from xarray_gpuzarr.backend.accessor import DataArrayAccessor, DatasetAccessor
from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.backend.open_errors import listed
from xarray_gpuzarr.cli.contents import list_groups
from xarray_gpuzarr.cli.failures import Address
from xarray_gpuzarr.cli.sample import SAMPLES, weather_dataset, write_sharded
from xarray_gpuzarr.cli.terminal import naming_unwritable, open_store, say, table_of
from xarray_gpuzarr.decoders.choice import resolve_device
from xarray_gpuzarr.errors import GpuZarrError, masked, visible

ROUNDS = 3
_EQUAL = 'equal   values, dtypes and attributes are those of engine="zarr"'
_MEASURED = f"""
Opening the store and reading all of it: median of {ROUNDS} interleaved rounds,
files in the page cache, {os.cpu_count()} cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReader:
    """One of the readers that are compared: it opens the demo's store in its way."""

    label: str
    """Name in the table of results."""
    open: Callable[[], xr.Dataset]
    """Opens the store."""

    def n_tasks(self) -> int:
        """Return the number of dask tasks that read: one for each block of each variable."""
        with self.open() as dataset:
            arrays = [v.data for v in dataset.variables.values() if v.chunks is not None]
        return sum(math.prod(array.numblocks) for array in arrays)


def run(options: argparse.Namespace) -> int:
    """Run the command. Return 1 if the two engines read different things, otherwise 0."""
    folder, source, device = options.dir, options.source, options.device
    resolve_device(device)  # raises an error now if the device cannot be used, rather than after writing
    # The suffix keeps a source in the same folder from being overwritten.
    name = f"{Path(source).stem}-sharded" if source else "weather"
    _make_folder(folder)
    store = folder / f"{name}.zarr"
    bar_console = Console(stderr=True)
    bar_console.quiet = not bar_console.is_terminal  # before rich 14.3, a disabled bar still prints a line break
    # Without automatic refresh, no thread redraws the bar while reads are measured.
    with Progress(console=bar_console, transient=True, auto_refresh=False, disable=bar_console.quiet) as progress:
        bar = progress.add_task("writing", total=2 + ROUNDS * 3)  # comparing, measuring, and each read of three readers

        def step(description: str) -> None:
            progress.update(bar, advance=1, description=description, refresh=True)

        _write(store, source, options.size, prints_source=bar_console.quiet)
        step("comparing")
        readers = _readers(str(store), device)
        _, stock, ours = readers
        difference = difference_of(stock, ours)  # `stock` has a task for each shard, and is faster than one per chunk
        step("measuring")
        seconds = _measure(readers, step)
    with ours.open() as dataset:
        on_disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        say(f"wrote   {store}: {format_nbytes(on_disk)} on disk, {format_nbytes(dataset.nbytes)} decoded")
        if source is not None:
            _say_left_out(source)
        if difference:
            say('DIFFERS from engine="zarr":', *difference.split("\n"))
        else:
            say(_EQUAL)
        say(*_MEASURED.split("\n"))
        Console().print("", _times_table(readers, seconds), "", DatasetAccessor(dataset).explain(), "", sep="\n")
        say(_picture(dataset, folder / f"{name}.png"))
    say(f'try     xr.open_dataset("{store}", engine="gpuzarr", chunks={{}})')
    return 1 if difference else 0


def _make_folder(folder: Path) -> None:
    """Make the folder of the store, unless it exists. Raise an error if nothing can be written to it."""
    with naming_unwritable("--dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:  # fails now rather than after the sample was made
            file.write(b".")


def _write(store: Path, source: str | None, size: str, *, prints_source: bool) -> None:
    """Write a source file, or the sample of a size, to a store.

    `prints_source` is whether to print which source file is being written, where no progress bar shows it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", xr.SerializationWarning)  # concerns the source file, not the demo
        opened = weather_dataset(SAMPLES[size]) if source is None else open_store(None, source)
        with opened as dataset:
            if source is not None and prints_source:
                say(f"writing {source} to {store}")
            try:
                write_sharded(dataset, str(store))
            except Exception as err:  # files, xarray and disks raise anything
                raise GpuZarrError(
                    "the demo cannot write its store",
                    tried=f"writing {source or 'the sample'} to '{store}'",
                    found=f"{type(err).__name__}: {err}",
                    do="choose another --dir or --source, or drop the variable that is named",
                ) from err


def _say_left_out(source: str) -> None:
    """Name the groups of a source that the demo does not read, if there are any."""
    left_out = _groups_below(source)
    if left_out:
        say(f"left    {listed(left_out)}: groups below the root were not read")
        opening = f'xr.open_dataset("{masked(source)}", group="{left_out[0]}")'
        say(f"        {opening} opens one; ds.gpuzarr.to_zarr writes it")


def _groups_below(source: str) -> list[str]:
    """Return the paths of the groups with variables below the root of a source. Empty if they cannot be listed."""
    address = Address(store=source)
    with suppress(Exception), warnings.catch_warnings():  # libraries raise anything, and not all formats have groups
        warnings.simplefilter("ignore")  # opening the root emits the same warnings
        node = address.open("")
        if isinstance(node, zarr.Group):
            below = list_groups(node, is_local=address.is_local)
            return [group.path for group in below if group.n_arrays != 0]
        groups = xr.open_groups(source, decode_cf=False)
        for group in groups.values():
            group.close()
        return sorted(path.strip("/") for path, group in groups.items() if path != "/" and group.variables)
    return []


def _readers(store: str, device: str) -> list[DemoReader]:
    """Return the readers that are compared: xarray's own engine by chunks and by shards, then this engine."""

    def open_ours() -> xr.Dataset:
        return open_store("gpuzarr", store, chunks={}, device=device)

    with open_ours() as dataset:
        shards: dict[Any, int] = {}  # length of the longest shard along each dimension
        for variable in dataset.data_vars.values():
            for dim, length in variable.encoding.get("preferred_chunks", {}).items():
                shards[dim] = max(length, shards.get(dim, 0))
    return [
        DemoReader(label='engine="zarr", chunks={}', open=lambda: open_store("zarr", store, chunks={})),
        DemoReader(label='engine="zarr", chunks=shards', open=lambda: open_store("zarr", store, chunks=shards)),
        DemoReader(label='engine="gpuzarr", chunks={}', open=open_ours),
    ]


def difference_of(stock: DemoReader, ours: DemoReader) -> str:
    """Return how the datasets of two readers differ in values, dtypes and attributes. Empty if they are identical."""
    with stock.open() as theirs, ours.open() as dataset:
        expected = theirs.load()
        actual = DatasetAccessor(dataset).to_host().load()
    try:
        xr.testing.assert_identical(actual, expected)
    except AssertionError as err:
        return str(err)
    dtype_differences = []  # `assert_identical` does not compare dtypes
    for name, variable in expected.variables.items():
        if actual[name].dtype != variable.dtype:
            dtype_differences.append(f"{name}: {actual[name].dtype}, not {variable.dtype}")
    return "; ".join(dtype_differences)


def _measure(readers: list[DemoReader], step: Callable[[str], None]) -> list[float]:
    """Return the median seconds of each reader over `ROUNDS` interleaved rounds; call `step` after each read."""
    rounds = []
    for number in range(ROUNDS):
        seconds = []
        for reader in readers:
            start = time.perf_counter()
            with reader.open() as dataset:
                dataset.load()
            seconds.append(time.perf_counter() - start)
            step(f"measuring, round {number + 1} of {ROUNDS}")
        rounds.append(seconds)
    return [statistics.median(reader_seconds) for reader_seconds in zip(*rounds, strict=True)]


def _times_table(readers: list[DemoReader], seconds: list[float]) -> Table:
    """Return a table with the tasks and the seconds of each reader, and its speed relative to the first one."""
    rows = []
    for reader, duration_s in zip(readers, seconds, strict=True):
        speed = f"{seconds[0] / duration_s:.1f}x"
        rows.append((reader.label, str(reader.n_tasks()), f"{duration_s:.3f}", speed))
    return table_of(("reader", "reading tasks", "seconds", "speed"), rows)


def _picture(dataset: xr.Dataset, path: Path) -> str:
    """Draw the largest field of a dataset. Return a line that names the file, or says why there is none.

    A field has two axes or more, all of them with several elements.
    """
    fields = [v for v in dataset.data_vars.values() if v.ndim > 1 and v.dtype.kind in "iuf" and min(v.shape) > 1]
    if not fields:
        return "picture none: no variable has two axes of numbers"
    try:
        draw_field(max(fields, key=lambda field: field.nbytes), path)
    except ModuleNotFoundError as err:
        return f"picture none: {str(err.name).partition('.')[0]} is not installed (pip install 'xarray-gpuzarr[demo]')"
    return f"picture {path}"


def draw_field(array: xr.DataArray, path: Path) -> None:
    """Draw an array of real numbers over its last two axes, at index 0 of all others. Needs matplotlib.

    Parameters
    ----------
    array : xarray.DataArray
        At least two axes; on the host or on a GPU, lazy or not.
    path : pathlib.Path
        Image file to write.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  # installed with the extra "demo" only

    field = DataArrayAccessor(array.isel(dict.fromkeys(array.dims[:-2], 0))).to_host().load()
    # Coordinates other than numbers and times, such as text, cannot be drawn. So they are dropped, and their axes show
    # positions.
    field = field.drop_vars([dim for dim in field.dims if dim in field.coords and field[dim].dtype.kind not in "iufM"])
    for labelled in [field, *field.coords.values()]:  # their attributes become labels
        labelled.attrs = {key: visible(value) for key, value in labelled.attrs.items() if isinstance(value, str)}
    figure = Figure(figsize=(9, 4.9), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.8")
    mesh: Any = field.plot.pcolormesh(ax=axes, robust=True, infer_intervals=False, shading="nearest")
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label, mesh.colorbar.ax.yaxis.label):
        text.set_parse_math(False)  # a name may contain $, which begins a formula
    axes.set_title(visible(axes.get_title()))
    figure.savefig(path)
