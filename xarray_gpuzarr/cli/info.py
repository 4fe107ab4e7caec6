"""``gpuzarr info``: how a store is laid out, where it would be decoded, and what a task would need on a GPU."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.backend.accessor import Explanation
from xarray_gpuzarr.backend.accessor.base import device_of, explanation
from xarray_gpuzarr.backend.accessor.explain import Row, explain_variables, lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import brief_cells, format_nbytes
from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.backend.open_errors import ALONE
from xarray_gpuzarr.cli.contents import GroupBelow, groups_below, open_contents
from xarray_gpuzarr.cli.terminal import address_of, aligned, say, table_of
from xarray_gpuzarr.errors import DeviceMemoryError, masked
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.native.library import why_absent
from xarray_gpuzarr.process.device_options import resource_options
from xarray_gpuzarr.process.settings import parse_nbytes
from xarray_gpuzarr.tasks.memory import TaskMemory, task_memory

MOST_FILES = 20_000
"""More files than this are not counted: `info` should answer at once."""
_MOST_DETAILED = 12
"""Variables with axes that get rows of their own in tables; where there are more, each gets one line."""
_MOST_GROUPS = 30
"""Groups that are listed unless all are asked for."""
_AS_STORED = f"Dtypes are as stored; {ALONE}."


def run(options: argparse.Namespace) -> int:
    """Print how a store is laid out and where it would be decoded. Reads metadata and, locally, file lengths."""
    gpu_nbytes = parse_nbytes(
        options.gpu_memory,
        "unusable memory of a GPU",
        tried=f"--gpu-memory {options.gpu_memory!r}",
        do="leave it out, or give a size",
    )
    address = address_of(options)
    contents = open_contents(address, options.device)
    stored, variables, store = contents.node, contents.variables, masked(address.store)
    explained = explanation(explain_variables(variables), device_of(variables))
    if contents.why_apart:
        note = f"{contents.why_apart}. {_AS_STORED} {explained.note}"
        explained = replace(explained, note=note.rstrip())
    lazy = ((row.variable, lazy_array_of(variables[row.variable])) for row in explained.rows)
    ours = {name: array for name, array in lazy if array is not None}
    # Children and variables come from the same metadata, consolidated or not.
    group = stored if isinstance(stored, zarr.Group) else None
    is_consolidated = group is not None and group.metadata.consolidated_metadata is not None
    children = () if group is None else groups_below(group, is_local=address.is_local, whole=options.all)
    kind, path, zarr_format = "array" if group is None else "group", f"/{stored.path}", stored.metadata.zarr_format
    if options.json:
        document = {
            "store": store,
            kind: path,
            "zarr_format": zarr_format,
            "is_consolidated": is_consolidated,
            "groups": [asdict(child) for child in children],
            "variables": [_row_json(row, ours.get(row.variable), gpu_nbytes) for row in explained.rows],
            "note": explained.note,
            "why_no_loops": why_absent(),
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return 0
    loose = "" if group is None or is_consolidated else ", metadata not consolidated"
    say(f"{store}, {kind} {path}, Zarr format {zarr_format}{loose}")
    _print_groups(children, whole=options.all)
    _print_variables(explained, ours, options, gpu_nbytes)
    return 0


def _row_json(row: Row, lazy: LazyArray | None, gpu_nbytes: int) -> dict[str, Any]:
    """Return all that is printed of a variable, and more, for a GPU of so many bytes of memory."""
    if lazy is None:
        return asdict(row)
    memory = _task(row, lazy, gpu_nbytes)
    return asdict(row) | {
        "disk_nbytes": disk_nbytes(lazy),
        "task_shape": _block_shape(row),
        "task_device_nbytes": None if memory is None else memory.device_nbytes,
        "n_tasks_at_once": 0 if memory is None else _n_at_once(memory, gpu_nbytes),
    }


def _print_variables(
    explained: Explanation, ours: Mapping[str, LazyArray], options: argparse.Namespace, gpu_nbytes: int
) -> None:
    """Print rows of tables, or one line for each variable where there are many."""
    detailed, brief = explained.rows, tuple[Row, ...]()
    if not options.all:
        detailed, brief = (tuple(row for row in detailed if bool(row.shape) == has_axes) for has_axes in (True, False))
        if len(detailed) > _MOST_DETAILED:
            detailed, brief = (), explained.rows
    read = [(row, ours[row.variable]) for row in detailed if row.variable in ours]
    console = Console()
    if detailed:
        console.print("", Explanation(rows=detailed, note=explained.note), "", sep="\n")
    if read:
        columns = ("variable", "on disk", "decompressed", "decoded", "one task gives")
        cells = []
        for row, lazy in read:
            on_disk = disk_nbytes(lazy)
            shown = "not counted" if on_disk is None else format_nbytes(on_disk) if on_disk else "no files"
            a_task = math.prod(_block_shape(row)) * np.dtype(row.dtype).itemsize
            nbytes = (row.decompressed_nbytes or 0, row.decoded_nbytes, a_task)
            cells.append((row.variable, shown, *map(format_nbytes, nbytes)))
        console.print(table_of(columns, cells), "")
        parts = ("a task on a GPU", "result", "batches", "peak", f"at once in {options.gpu_memory}")
        cells = []
        for row, lazy in read:
            memory = _task(row, lazy, gpu_nbytes)
            if memory is None:
                cells.append((row.variable, "", "", "a chunk does not fit", "0"))
            else:
                sizes = map(format_nbytes, (memory.result_nbytes, memory.batches_nbytes, memory.device_nbytes))
                cells.append((row.variable, *sizes, str(_n_at_once(memory, gpu_nbytes))))
        console.print(table_of(parts, cells))
    if brief:
        say("", *aligned([brief_cells(row) for row in brief]), "")
        say(f"{_counted(len(brief), 'variable')}, one line each; --all shows chunks, codecs and bytes")
        if explained.note and not detailed:
            say(explained.note)


def _print_groups(groups: tuple[GroupBelow, ...], *, whole: bool) -> None:
    if not groups:
        return
    shown = groups if whole else groups[:_MOST_GROUPS]
    rest = len(groups) - len(shown)
    is_partial = any(group.n_arrays is None and not group.failure for group in shown)
    lines = []
    for group in shown:
        nbytes = format_nbytes(group.decompressed_nbytes or 0)
        has = f"{_counted(group.n_arrays, 'array')}, {nbytes} decompressed" if group.n_arrays else group.failure
        lines.append((group.path, has))
    say(
        "groups below it (gpuzarr info STORE --group PATH):",
        *(f"  {line}" for line in aligned(lines)),
        *([f"  and {_counted(rest, 'more group')}; --all shows them"] if rest else []),
        *(["not looked into, nor listed further down; --all does"] if is_partial else []),
    )


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"


def _block_shape(row: Row) -> tuple[int, ...]:
    """Return the shape of what one task reads."""
    return tuple(map(min, row.shape, row.shard_shape or row.chunk_shape or row.shape))


def _task(row: Row, lazy: LazyArray, gpu_nbytes: int) -> TaskMemory | None:
    """Return what one task takes of a GPU, None if not one chunk of it fits."""
    with suppress(DeviceMemoryError):
        return task_memory(lazy.stored, _block_shape(row), options=resource_options(), gpu_nbytes=gpu_nbytes)
    return None


def _n_at_once(memory: TaskMemory, gpu_nbytes: int) -> int:
    """Return how many such tasks read at once: as many as fit, and `n_reads` at most."""
    return min(memory.n_fitting(gpu_nbytes), resource_options().n_reads)


def disk_nbytes(lazy: LazyArray) -> int | None:
    """Return the bytes of an array's objects in a local store, or None if that is not cheap or not allowed to know."""
    source, spec = lazy.stored.store_source, lazy.stored.spec
    if not isinstance(source, LocalSource):
        return None
    try:
        return _nbytes_below(Path(source.root) / getattr(spec, "path", "/").lstrip("/"))
    except (OSError, ValueError):  # a folder that may not be listed, a link to itself, a name that no file can have
        return None


def _nbytes_below(folder: Path) -> int | None:
    """Add up the files below a folder, None if they are too many; what is gone, or a link to nothing, has no bytes."""
    folders, seen, n_files, total = [folder], set[tuple[int, int]](), 0, 0
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError):
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:  # links may lead in a circle
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in os.scandir(folder):
                if entry.is_dir():
                    folders.append(Path(entry.path))
                    continue
                with suppress(FileNotFoundError):
                    total += entry.stat().st_size
                n_files += 1
        if n_files > MOST_FILES:
            return None
    return total
