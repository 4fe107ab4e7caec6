"""``gpuzarr bench``: choose an array of a store, let `bench_array` measure, print tables, write JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import zarr
from rich.console import Console

from xarray_gpuzarr.backend.absent_groups import listed
from xarray_gpuzarr.backend.accessor.explain import lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.cli.contents import Contents, open_contents
from xarray_gpuzarr.cli.failures import Address
from xarray_gpuzarr.cli.groups import groups_below
from xarray_gpuzarr.cli.terminal import StatusLine, address_of, make_writable, naming_unwritable, say, table_of
from xarray_gpuzarr.errors import OptionError, perhaps
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
    tried = f"--nbytes {options.nbytes!r}"
    most_nbytes = parse_nbytes(options.nbytes, "unusable size", tried=tried, do="leave it out, or give a size")
    if options.out is not None:
        _require_file(options.out)
    address = address_of(options)
    contents = open_contents(address, "host")
    readers = _chosen(options.readers, contents)
    location = _location(address, contents, options.variable)
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
    if contents.why_apart:
        say("", f"{contents.why_apart}. So xarray's readers took no part.")
    return int(result.failed)


def _require_file(out: Path) -> None:
    """Make sure that a file can be written, before anything is measured."""
    with naming_unwritable("--out", out):
        if out.exists():
            out.open("a").close()
        else:
            make_writable(out.parent)


def _chosen(parts: Sequence[str] | None, contents: Contents) -> list[ArrayReader]:
    """Return the readers that were asked for; xarray's only where it makes a dataset of the arrays."""
    known = [reader for reader in READERS.values() if reader.operation == "read" or not contents.why_apart]
    chosen = [reader for reader in known if any(part in reader.name for part in parts or [""])]
    if not chosen:
        raise OptionError(
            "no reader is named like that",
            tried=f"--readers {' '.join(parts or ())}",
            found="valid readers: " + "; ".join(reader.name for reader in known),
            do="pass part of one of these names",
        )
    return chosen


def _location(address: Address, contents: Contents, name: str | None) -> Location:
    """Return where the array to read is: the one asked for, else the largest."""
    ours = {str(k): v for k, v in contents.variables.items() if lazy_array_of(v) is not None and v.size}
    if name is None and ours:
        name = max(ours, key=lambda k: ours[k].nbytes)
    if name not in ours:
        known = ", ".join(sorted(ours)) or "none"
        below = groups_below(contents.node, is_local=address.is_local) if isinstance(contents.node, zarr.Group) else ()
        groups = f": {listed([group.path for group in below])}" if below else ""
        raise OptionError(
            "nothing to read",
            tried=f"variable {name!r}" if name else "the largest variable that this engine reads",
            found=f"variables that this engine reads: {known}",
            do=f"choose one with --variable{perhaps(name or '', ours)}, and its group with --group{groups}",
        )
    group = address.group
    if isinstance(contents.node, zarr.Array):
        group, _, name = address.group.rpartition("/")
    return Location(store=address.store, group=group, variable=name, **address.given)


def _print(result: BenchResult, console: Console) -> None:
    shape = "\N{MULTIPLICATION SIGN}".join(str(part.stop - part.start) for part in result.box)
    whole = "\N{MULTIPLICATION SIGN}".join(map(str, result.shape))
    of = "" if shape == whole else f" of {whole}"
    path, nbytes = result.location.array_path or result.location.store, format_nbytes(result.stored_nbytes)
    say(f"{path}: {shape}{of} {result.dtype}, {nbytes} uncompressed")
    for operation, case in result.cases.items():
        timed = [row for row in case.rows if row.status == "measured"]
        if timed:
            rounds = f"median of {len(timed[0].samples)} rounds"
            say("", f"{_TITLES[operation]}: {rounds}; last column: time relative to the best other reader")
            console.print(table_of(_COLUMNS, [_cells(row, case) for row in timed], gap=1), crop=False)
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
