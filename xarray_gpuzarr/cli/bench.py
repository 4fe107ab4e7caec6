"""``gpuzarr bench``: choose an array of a store, let `bench_array` measure, print tables, write JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import xarray as xr
from rich.console import Console

from xarray_gpuzarr.backend.accessor.explain import lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.cli.terminal import (
    StatusLine,
    address_of,
    make_writable,
    naming_unwritable,
    open_store,
    say,
    table_of,
)
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.machine.bench import READERS, ArrayReader, BenchResult, CaseRows, Location, Row, bench_array
from xarray_gpuzarr.process.sizes import parse_nbytes

_TITLES = {
    "read": "stored values, as one array",
    "load": "the variable of xarray, decoded, as one array",
}
_COLUMNS = ("reader", "ms", "min-max", "GB/s", "CPU ms", "extra MB", "/ peer")


def run_bench(options: argparse.Namespace) -> int:
    """Measure and print; return 1 if a reader failed or gave other values than the first, else 0.

    Raises
    ------
    OptionError
        A size, a variable or the part of a reader's name is unusable, or ``--out`` cannot be written to.
    StoreReadError
        The store cannot be opened.
    """
    readers = _chosen(options.readers)
    tried = f"--nbytes {options.nbytes!r}"
    most_nbytes = parse_nbytes(options.nbytes, "unusable size", tried=tried, do="leave it out, or give a size")
    if options.out is not None:
        _require_file(options.out)
    address = address_of(options)
    with open_store("gpuzarr", address, group=address.group or None, device="host", **address.given) as dataset:
        variable = _variable(dataset, options.variable)
    location = Location(store=address.store, group=address.group, variable=variable, **address.given)
    line = StatusLine()
    try:
        result = bench_array(
            location, most_nbytes=most_nbytes, n_rounds=options.rounds, readers=readers, progress=line.show
        )
    finally:
        line.clear()
    if options.out is not None:  # before it is printed: to a pipe, perhaps, whose reader ends
        with naming_unwritable("--out", options.out):
            options.out.write_text(json.dumps(result.as_json(), indent=1) + "\n")
    _print(result, Console())
    return int(result.failed)


def _require_file(out: Path) -> None:
    """Make sure that a file can be written, before anything is measured."""
    with naming_unwritable("--out", out):
        if out.exists():
            out.open("a").close()
        else:
            make_writable(out.parent)


def _chosen(parts: Sequence[str] | None) -> list[ArrayReader]:
    chosen = [reader for reader in READERS.values() if any(part in reader.name for part in parts or [""])]
    if not chosen:
        raise OptionError(
            "no reader is named like that",
            tried=f"--readers {' '.join(parts or ())}",
            found="valid readers: " + "; ".join(READERS),
            do="pass part of one of these names",
        )
    return chosen


def _variable(dataset: xr.Dataset, name: str | None) -> str:
    """Return the variable to read: the one asked for, else the largest."""
    ours = {str(k): v for k, v in dataset.variables.items() if lazy_array_of(v) is not None and v.size}
    if name is None and ours:
        return max(ours, key=lambda k: ours[k].nbytes)
    if name in ours:
        return name
    known = ", ".join(sorted(ours)) or "none"
    raise OptionError(
        "nothing to read",
        tried=f"variable {name!r}" if name else "the largest variable that this engine reads",
        found=f"variables that this engine reads: {known}",
        do="choose one with --variable, and its group with --group",
    )


def _print(result: BenchResult, console: Console) -> None:
    shape = "\N{MULTIPLICATION SIGN}".join(str(part.stop - part.start) for part in result.box)
    whole = "\N{MULTIPLICATION SIGN}".join(map(str, result.shape))
    of = "" if shape == whole else f" of {whole}"
    say(f"{result.location.array_path}: {shape}{of} {result.dtype}, {format_nbytes(result.stored_nbytes)} uncompressed")
    for operation, case in result.cases.items():
        timed = [row for row in case.rows if row.status == "measured"]
        if timed:
            rounds = f"median of {len(timed[0].samples)} rounds"
            say("", f"{_TITLES[operation]}: {rounds}; last column: time relative to the best other reader")
            table = table_of(_COLUMNS, [_cells(row, case) for row in timed])
            table.columns[0].no_wrap = True
            console.print(table)
        for row in case.rows:
            if row.note:
                say(f"{row.name}: {row.note}")


def _cells(row: Row, case: CaseRows) -> tuple[str, ...]:
    walls = [s.wall_s * 1e3 for s in row.samples]
    best = case.best("peer")
    return (
        row.name.removeprefix("xarray "),
        f"{row.wall_s * 1e3:.1f}",
        f"{min(walls):.0f}-{max(walls):.0f}",
        f"{row.rate / 1e9:.2f}",
        "" if row.cpu_s is None else f"{row.cpu_s * 1e3:.0f}",
        "" if row.peak is None else f"{row.peak.extra_nbytes / 1e6:.0f}",
        f"{row.wall_s / best.wall_s:.2f}" if best else "",
    )
