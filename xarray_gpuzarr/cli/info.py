"""``gpuzarr info``: prints the layout of a store, where it would be decoded, and the GPU memory that a task needs.

It reads metadata, the index coordinates of a dataset and, of local stores, the lengths of files. If variables are read
to a GPU of this machine, it starts CUDA to learn how much memory that GPU has.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.backend.accessor import Explanation
from xarray_gpuzarr.backend.accessor.abstract_accessor import device_of, explanation_of
from xarray_gpuzarr.backend.accessor.explanation import brief_cells, format_nbytes
from xarray_gpuzarr.backend.accessor.variable_rows import Row, explain_variables, lazy_array_of
from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.backend.open_errors import IMAGE_RECIPES_HINT
from xarray_gpuzarr.cli.contents import Contents, GroupBelow, list_groups, open_contents
from xarray_gpuzarr.cli.lengths_of_files import disk_nbytes
from xarray_gpuzarr.cli.terminal import address_of, aligned, counted, say, table_of
from xarray_gpuzarr.cuda.find_gpu import find_gpu
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError, masked
from xarray_gpuzarr.native.library import why_absent
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import resource_options
from xarray_gpuzarr.process.settings import parse_nbytes
from xarray_gpuzarr.tasks.memory import TaskMemory, task_memory

_MOST_DETAILED = 12
"""Largest number of variables with axes that are shown in tables. If there are more, each variable gets one line."""
_MOST_GROUPS = 30
"""Number of groups that are listed unless ``--all`` is given."""
_AS_STORED = f"Dtypes are as stored; {IMAGE_RECIPES_HINT}."


def run(options: argparse.Namespace) -> int:
    """Run the command and return 0."""
    gpu_nbytes = _parse_gpu_memory(options.gpu_memory)
    address = address_of(options)
    contents = open_contents(address, options.device)
    if gpu_nbytes is None:
        gpu_nbytes = _gpu_nbytes(device_of(contents.variables.values()))
    node = contents.node
    explained = _explain(contents)
    lazy_arrays = _find_lazy_arrays(contents, explained.rows)
    kind = "array"
    is_consolidated = False
    groups: tuple[GroupBelow, ...] = ()
    if isinstance(node, zarr.Group):
        kind = "group"
        is_consolidated = node.metadata.consolidated_metadata is not None
        groups = list_groups(node, is_local=address.is_local, list_all=options.all)
    store = masked(address.store)
    zarr_format = node.metadata.zarr_format
    if options.json:
        document = {
            "store": store,
            kind: f"/{node.path}",
            "zarr_format": zarr_format,
            "is_consolidated": is_consolidated,
            "groups": [asdict(group) for group in groups],
            "gpu_nbytes": gpu_nbytes,
            "variables": [_row_json(row, lazy_arrays.get(row.variable), gpu_nbytes) for row in explained.rows],
            "note": explained.note,
            "why_no_loops": why_absent(),
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return 0
    remark = ", metadata not consolidated" if kind == "group" and not is_consolidated else ""
    say(f"{store}, {kind} /{node.path}, Zarr format {zarr_format}{remark}")
    _print_groups(groups, show_all=options.all)
    _print_variables(explained, lazy_arrays, options, gpu_nbytes)
    return 0


def _parse_gpu_memory(size: str | None) -> int | None:
    """Return the memory that ``--gpu-memory`` gives, in bytes; None if the option was left out."""
    if size is None:
        return None
    return parse_nbytes(
        size, "unusable memory of a GPU", tried=f"--gpu-memory {size!r}", do="leave it out, or give a size"
    )


def _gpu_nbytes(device: Device | None) -> int | None:
    """Return the memory of the GPU that variables are read to, in bytes.

    None if they are not read to a GPU, or if the GPU does not start; the latter gives a warning.
    """
    if device in (None, "host"):
        return None
    try:
        gpu = find_gpu(device)
        with gpu.activate():
            _, total_nbytes = gpu.memory_nbytes()
    except (CudaError, DeviceUnavailableError) as error:
        advise(
            "memory of the GPU",
            "the memory of the GPU is unknown, so what tasks take of it is not shown",
            found=f"{error.headline}: {error.found}",
            do='give its size, as in --gpu-memory "24 GB"; gpuzarr doctor examines the GPU',
        )
        return None
    return total_nbytes


def _explain(contents: Contents) -> Explanation:
    """Return where each variable would be decoded. If the variables are no dataset, the note says why."""
    explained = explanation_of(explain_variables(contents.variables), device_of(contents.variables.values()))
    if not contents.why_no_dataset:
        return explained
    note = f"{contents.why_no_dataset}. {_AS_STORED} {explained.note}"
    return replace(explained, note=note.rstrip())


def _find_lazy_arrays(contents: Contents, rows: tuple[Row, ...]) -> dict[str, LazyArray]:
    """Return the lazy arrays of the variables that this package reads, by the names in `rows`."""
    lazy_arrays = {}
    for row in rows:
        lazy = lazy_array_of(contents.variables[row.variable])
        if lazy is not None:
            lazy_arrays[row.variable] = lazy
    return lazy_arrays


def _row_json(row: Row, lazy: LazyArray | None, gpu_nbytes: int | None) -> dict[str, Any]:
    """Return what the JSON document says about a variable, given the memory of a GPU in bytes; None for no GPU.

    Sizes and tasks are left out if this package does not read the variable (`lazy` is None).
    """
    if lazy is None:
        return asdict(row)
    task_device_nbytes = None
    n_tasks_at_once = None
    if gpu_nbytes is not None:
        memory = _task_memory(row, lazy, gpu_nbytes)
        task_device_nbytes = None if memory is None else memory.device_nbytes
        n_tasks_at_once = 0 if memory is None else _n_at_once(memory, gpu_nbytes)
    return asdict(row) | {
        "disk_nbytes": disk_nbytes(lazy),
        "task_shape": _block_shape(row),
        "task_device_nbytes": task_device_nbytes,
        "n_tasks_at_once": n_tasks_at_once,
    }


def _print_variables(
    explained: Explanation, lazy_arrays: Mapping[str, LazyArray], options: argparse.Namespace, gpu_nbytes: int | None
) -> None:
    """Print tables of the variables with axes, and one line for each scalar.

    If there are more than `_MOST_DETAILED` variables with axes, each variable gets one line, and there are no tables.
    """
    detailed, brief = _divide_rows(explained.rows, show_all=options.all)
    lazy_rows = [(row, lazy_arrays[row.variable]) for row in detailed if row.variable in lazy_arrays]
    console = Console()
    if detailed:
        console.print("", Explanation(rows=detailed, note=explained.note), "", sep="\n")
    if lazy_rows:
        columns = ("variable", "on disk", "decompressed", "decoded", "one task gives")
        console.print(table_of(columns, [_size_cells(row, lazy) for row, lazy in lazy_rows]))
    if lazy_rows and gpu_nbytes is not None:
        memory = options.gpu_memory or format_nbytes(gpu_nbytes)
        columns = ("a task on a GPU", "result", "batches", "peak", f"at once in {memory}")
        console.print("", table_of(columns, [_task_cells(row, lazy, gpu_nbytes) for row, lazy in lazy_rows]))
    if brief:
        say("", *aligned([brief_cells(row) for row in brief]), "")
        say(f"{counted(len(brief), 'variable')}, one line each; --all shows chunks, codecs and bytes")
        if explained.note and not detailed:
            say(explained.note)


def _divide_rows(rows: tuple[Row, ...], *, show_all: bool) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Return the variables that are shown in tables, and those that get one line each."""
    if show_all:
        return rows, ()
    detailed = tuple(row for row in rows if row.shape)
    if len(detailed) > _MOST_DETAILED:
        return (), rows
    return detailed, tuple(row for row in rows if not row.shape)


def _size_cells(row: Row, lazy: LazyArray) -> tuple[str, ...]:
    """Return the cells of a variable in the table of sizes."""
    nbytes = disk_nbytes(lazy)
    if nbytes is None:
        on_disk = "not counted"
    elif nbytes == 0:
        on_disk = "no files"
    else:
        on_disk = format_nbytes(nbytes)
    task_nbytes = math.prod(_block_shape(row)) * np.dtype(row.dtype).itemsize
    return row.variable, on_disk, *map(format_nbytes, (row.decompressed_nbytes or 0, row.decoded_nbytes, task_nbytes))


def _task_cells(row: Row, lazy: LazyArray, gpu_nbytes: int) -> tuple[str, ...]:
    """Return the cells of a variable in the table of what a task takes on a GPU."""
    memory = _task_memory(row, lazy, gpu_nbytes)
    if memory is None:
        return row.variable, "", "", "a chunk does not fit", "0"
    sizes = map(format_nbytes, (memory.result_nbytes, memory.batches_nbytes, memory.device_nbytes))
    return row.variable, *sizes, str(_n_at_once(memory, gpu_nbytes))


def _print_groups(groups: tuple[GroupBelow, ...], *, show_all: bool) -> None:
    if not groups:
        return
    shown = groups if show_all else groups[:_MOST_GROUPS]
    cells = []
    for group in shown:
        remark = group.failure
        if group.n_arrays is not None:
            remark = counted(group.n_arrays, "array")
        if group.n_arrays:
            remark += f", {format_nbytes(group.decompressed_nbytes or 0)} decompressed"
        cells.append((group.path, remark))
    lines = ["groups below it (gpuzarr info STORE --group PATH):", *(f"  {line}" for line in aligned(cells))]
    n_hidden = len(groups) - len(shown)
    if n_hidden:
        lines.append(f"  and {counted(n_hidden, 'more group')}; --all shows them")
    if any(group.n_arrays is None and not group.failure for group in shown):
        lines.append("groups without a number were not opened, and those below them not listed; --all opens all")
    say(*lines)


def _block_shape(row: Row) -> tuple[int, ...]:
    """Return the shape of the first block that a dask task reads: a shard, or a chunk if there are no shards.

    It is cut off at the end of the array.
    """
    return tuple(map(min, row.shape, row.shard_shape or row.chunk_shape or row.shape))


def _task_memory(row: Row, lazy: LazyArray, gpu_nbytes: int) -> TaskMemory | None:
    """Return the memory that one task takes on a GPU with `gpu_nbytes`; None if there is no room for a single chunk."""
    with suppress(DeviceMemoryError):
        return task_memory(lazy.stored, _block_shape(row), options=resource_options(), gpu_nbytes=gpu_nbytes)
    return None


def _n_at_once(memory: TaskMemory, gpu_nbytes: int) -> int:
    """Return the number of such tasks that read at once on a GPU: as many as fit, but at most `n_reads`."""
    return min(memory.n_fitting(gpu_nbytes), resource_options().n_reads)
