"""``gpuzarr info``: how a store is laid out, where it would be decoded, and what a task would need on a GPU."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.accessor import DatasetAccessor, Explanation
from xarray_gpuzarr.accessor.explain import Row, lazy_array_of
from xarray_gpuzarr.accessor.explanation import format_nbytes
from xarray_gpuzarr.backend.opening import open_group
from xarray_gpuzarr.cli.terminal import naming_failures, open_store, say, table_of
from xarray_gpuzarr.cuda.options import resource_options
from xarray_gpuzarr.errors import DeviceMemoryError, OptionError
from xarray_gpuzarr.fetch import LocalSource
from xarray_gpuzarr.lazy_array import LazyArray
from xarray_gpuzarr.option_values import parse_nbytes
from xarray_gpuzarr.tasks.memory import task_memory

_MOST_FILES = 20_000
"""More files than this are not counted: `info` should answer at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """What a store says of one of its groups."""

    headline: str
    children: tuple[str, ...]
    """Names of the groups below."""
    explained: Explanation
    ours: tuple[tuple[Row, LazyArray], ...]
    """The variables that this engine reads."""

    @classmethod
    def of(cls, store: str, *, group: str | None, device: str) -> Self:
        """Open a group, once: children and variables come from the same metadata, consolidated or not."""
        with naming_failures(store, f"xarray.open_dataset({store!r}, engine='gpuzarr')"):
            opened = open_group(store, group=group)
            dataset = open_store("gpuzarr", store, store=opened, device=device)
            stored = opened.zarr_group
            explained = DatasetAccessor(dataset).explain()
            lazy = ((row, lazy_array_of(dataset.variables[row.variable])) for row in explained.rows)
            return cls(
                headline=f"{store}, group /{stored.path}, Zarr format {stored.metadata.zarr_format}{_loose(stored)}",
                children=tuple(sorted(stored.group_keys())),
                explained=explained,
                ours=tuple((row, array) for row, array in lazy if array is not None),
            )


def run_info(options: argparse.Namespace) -> int:
    """Print how a store is laid out and where it would be decoded. Reads metadata and, locally, file lengths."""
    gpu_nbytes = _gpu_nbytes(options.gpu_memory)
    info = StoreInfo.of(options.store, group=options.group, device=options.device)
    say(info.headline)
    if info.children:
        say(f"groups below it: {', '.join(info.children)} (gpuzarr info STORE --group NAME)")
    console = Console()
    if info.explained.rows:
        console.print("", info.explained, "", sep="\n")
    if info.ours:
        columns = ("variable", "on disk", "decompressed", "decoded", "one task gives")
        console.print(table_of(columns, [_byte_cells(row, lazy) for row, lazy in info.ours]), "")
        parts = ("a task on a GPU", "result", "batches", "peak", f"at once on {options.gpu_memory}")
        console.print(table_of(parts, [_memory_cells(row, lazy, gpu_nbytes) for row, lazy in info.ours]))
    return 0


def _loose(group: zarr.Group) -> str:
    return ", metadata not consolidated" if group.metadata.consolidated_metadata is None else ""


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
        return (row.variable, "", "", "a chunk does not fit", "0")
    parts = (memory.result_nbytes, memory.batches_nbytes, memory.device_nbytes)
    return (row.variable, *map(format_nbytes, parts), str(memory.n_fitting(gpu_nbytes)))


def _byte_cells(row: Row, lazy: LazyArray) -> tuple[str, ...]:
    task = math.prod(_block_shape(row))
    per_element = np.dtype(row.dtype).itemsize
    return (
        row.variable,
        _disk_cell(disk_nbytes(lazy)),
        format_nbytes(row.stored_nbytes or 0),
        format_nbytes(row.decoded_nbytes),
        format_nbytes(task * per_element),
    )


def _disk_cell(nbytes: int | None) -> str:
    if nbytes is None:
        return "not counted"
    return format_nbytes(nbytes) if nbytes else "no files"


def disk_nbytes(lazy: LazyArray) -> int | None:
    """Return the bytes of an array's objects in a local store, or None if that is not cheap or not allowed to know."""
    source, spec = lazy.stored.source, lazy.stored.spec
    if not isinstance(source, LocalSource):
        return None
    try:
        return _nbytes_below(Path(source.root) / getattr(spec, "path", "/").lstrip("/"))
    except OSError:  # a folder that may not be listed, a link to itself
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
        if n_files > _MOST_FILES:
            return None
    return total
