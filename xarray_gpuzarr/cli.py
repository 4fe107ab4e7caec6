"""The command ``gpuzarr``: `demo` shows this engine at work, `info` how a store would be read, `bench` how fast.

Every failure that a user can mend is printed as tried / found / do, without a traceback.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.accessor import DatasetAccessor
from xarray_gpuzarr.bench_command import add_bench_options, run_bench
from xarray_gpuzarr.cuda.options import resource_options
from xarray_gpuzarr.demo import open_store, run_demo, say, table_of
from xarray_gpuzarr.errors import DeviceMemoryError, GpuZarrError, OptionError
from xarray_gpuzarr.explain import Row, format_nbytes, lazy_array_of
from xarray_gpuzarr.fetch import LocalSource
from xarray_gpuzarr.lazy_array import LazyArray
from xarray_gpuzarr.option_values import parse_nbytes
from xarray_gpuzarr.sample import SAMPLES
from xarray_gpuzarr.task_memory import task_memory

_MOST_FILES = 20_000
"""More files than this are not counted: `info` should answer at once."""
_EXAMPLES = """\
examples:
  gpuzarr demo                               invented weather: write, read, compare, measure, draw
  gpuzarr demo --source era5.nc              the same with a file of yours, rewritten as sharded Zarr
  gpuzarr info era5.zarr                     shards, chunks, codecs, bytes, and where they would be decoded
  gpuzarr info s3://bucket/era5.zarr --group 2024
  gpuzarr bench era5.zarr                    this engine, zarr-python, zarrs and TensorStore on a store of yours

in Python:
  xr.open_dataset("era5.zarr", engine="gpuzarr", chunks={})
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of this process if left out.

    Returns
    -------
    int
        Exit status: 0, 1 if the demo's values differ, 2 if something has to be mended first.
    """
    options = parser().parse_args(argv)
    try:
        status: int = options.run(options)
    except GpuZarrError as err:
        say(f"{type(err).__name__}: {err}", Console(stderr=True))
        return 2
    return status


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; shtab makes shell completions of it."""
    parser = argparse.ArgumentParser(
        prog="gpuzarr",
        description="Read sharded Zarr through xarray with one task per shard, decoded where the result lives.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpuzarr {version('xarray-gpuzarr')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="write a sample, read it with both engines, compare, measure and draw")
    demo.add_argument("--source", metavar="FILE", help="any file that xarray can open, instead of the sample")
    demo.add_argument(
        "--dir",
        type=Path,
        default=Path("demo"),
        help="where the store and the picture go, in place of older ones (demo)",
    )
    demo.add_argument("--size", choices=SAMPLES, default="normal", help=argparse.SUPPRESS)
    demo.set_defaults(
        run=lambda options: run_demo(options.dir, source=options.source, size=options.size, device=options.device)
    )

    info = commands.add_parser("info", help="say how a store is laid out and where it would be decoded")
    info.add_argument("store", metavar="STORE", help="a path or URL that xarray's zarr engine can open")
    info.add_argument("--group", help="path of a group inside the store")
    info.add_argument("--gpu-memory", metavar="SIZE", default="80 GB", help="of the GPU that tasks are to fit (80 GB)")
    info.set_defaults(run=run_info)

    bench = commands.add_parser("bench", help="compare the readers that are installed on a store of yours")
    add_bench_options(bench)
    bench.set_defaults(run=run_bench)

    for command in (demo, info):
        command.add_argument("--device", default="auto", help="auto, cuda or host (auto)")
    return parser


def run_info(options: argparse.Namespace) -> int:
    """Print how a store is laid out and where it would be decoded. Reads metadata and, locally, file lengths."""
    gpu_nbytes = _gpu_nbytes(options.gpu_memory)
    dataset = open_store("gpuzarr", options.store, group=options.group, device=options.device)
    group = zarr.open_group(options.store, path=options.group, mode="r")
    say(f"{options.store}, group /{group.path}, Zarr format {group.metadata.zarr_format}")
    children = sorted(group.group_keys())
    if children:
        say(f"groups below it: {', '.join(children)} (gpuzarr info STORE --group NAME)")
    explained = DatasetAccessor(dataset).explain()
    console = Console()
    if explained.rows:
        console.print("", explained, "", sep="\n")
    ours = [(row, lazy) for row in explained.rows if (lazy := lazy_array_of(dataset.variables[row.variable]))]
    if ours:
        columns = ("variable", "on disk", "decompressed", "decoded", "one task gives")
        console.print(table_of(columns, [_byte_cells(row, lazy) for row, lazy in ours]), "")
        parts = ("a task on a GPU", "result", "encoded", "scratch", "peak", f"at once on {options.gpu_memory}")
        console.print(table_of(parts, [_memory_cells(row, lazy, gpu_nbytes) for row, lazy in ours]))
    return 0


def _gpu_nbytes(text: str) -> int:
    try:
        return parse_nbytes(text)
    except ValueError:
        raise OptionError(
            "unusable memory of a GPU",
            tried=f"--gpu-memory {text!r}",
            found="not a size such as 80GB, 24 GiB or 8000000000",
            do="leave it out, or give a size",
        ) from None


def _block_shape(row: Row) -> tuple[int, ...]:
    """Return the shape of what one task reads."""
    return tuple(map(min, row.shape, row.shard_shape or row.chunk_shape or row.shape))


def _memory_cells(row: Row, lazy: LazyArray, gpu_nbytes: int) -> tuple[str, ...]:
    try:
        memory = task_memory(lazy.stored, _block_shape(row), options=resource_options(), gpu_nbytes=gpu_nbytes)
    except DeviceMemoryError:
        return (row.variable, "", "", "", "a chunk does not fit", "0")
    parts = (memory.result_nbytes, memory.staged_nbytes, memory.scratch_nbytes, memory.device_nbytes)
    return (row.variable, *map(format_nbytes, parts), str(memory.n_fitting(gpu_nbytes)))


def _byte_cells(row: Row, lazy: LazyArray) -> tuple[str, ...]:
    on_disk = disk_nbytes(lazy)
    task = math.prod(_block_shape(row))
    per_element = np.dtype(row.dtype).itemsize
    return (
        row.variable,
        "not counted" if on_disk is None else format_nbytes(on_disk),
        format_nbytes(row.stored_nbytes or 0),
        format_nbytes(row.decoded_nbytes),
        format_nbytes(task * per_element),
    )


def disk_nbytes(lazy: LazyArray) -> int | None:
    """Return the bytes of an array's objects in a local store, or None if that is not cheap to know."""
    source, spec = lazy.stored.source, lazy.stored.spec
    if not isinstance(source, LocalSource):
        return None
    folders, n_files, total = [Path(source.root) / getattr(spec, "path", "/").lstrip("/")], 0, 0
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.is_dir():
                folders.append(Path(entry.path))
                continue
            total += entry.stat().st_size
            n_files += 1
        if n_files > _MOST_FILES:
            return None
    return total
