"""``gpuzarr info``: how a store is laid out, where it would be decoded, and what a task would need on a GPU."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.accessor import DatasetAccessor
from xarray_gpuzarr.accessor.explain import Row, lazy_array_of
from xarray_gpuzarr.accessor.explanation import format_nbytes
from xarray_gpuzarr.cli.terminal import open_store, say, table_of
from xarray_gpuzarr.cuda.options import resource_options
from xarray_gpuzarr.errors import DeviceMemoryError, OptionError
from xarray_gpuzarr.fetch import LocalSource
from xarray_gpuzarr.lazy_array import LazyArray
from xarray_gpuzarr.option_values import parse_nbytes
from xarray_gpuzarr.tasks.memory import task_memory

_MOST_FILES = 20_000
"""More files than this are not counted: `info` should answer at once."""


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
