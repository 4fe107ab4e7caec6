"""Write datasets as xarray does, in dask chunks of whole shards, so that no two tasks write to one shard.

xarray's own `ZarrStore` decides everything that is stored: what encoding is kept, how values are packed, which arrays
are created or resized, and what is refused. This module decides how long chunks and shards are, how the chunks of dask
are brought to them, and how much memory a block takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
import xarray as xr
from dask.delayed import delayed
from rich.filesize import decimal
from xarray import Dataset, Variable
from xarray.backends import ZarrStore
from xarray.backends.writers import get_writable_zarr_store
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.accessor.block_writer import BlockWriter
from xarray_gpuzarr.backend.accessor.cluster_stores import require_store_of_workers
from xarray_gpuzarr.backend.accessor.packing import encoder
from xarray_gpuzarr.backend.accessor.staged_store import StagedStore
from xarray_gpuzarr.backend.accessor.task_progress import compute_with_progress
from xarray_gpuzarr.backend.accessor.whole_shards import DatasetInShards, Sizes
from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.errors import OptionError, masked, perhaps
from xarray_gpuzarr.process.dask_client import client_of_dask
from xarray_gpuzarr.write.writes_behind import WritesBehind

_OPTIONS = signature(get_writable_zarr_store).parameters


def write_groups(  # noqa: PLR0913  # as xarray's
    datasets: Mapping[str, Dataset],
    store: Any,
    sizes: Sizes,
    *,
    changes: Mapping[str, Mapping[Any, Mapping[str, Any]]],
    progress: bool,
    checks_values: bool,
    compute: bool = True,
    chunkmanager_store_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write datasets, all of whose arrays are on the host, to groups of a store; see `DatasetAccessor.to_zarr`.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        Datasets by the paths of their groups, relative to that of the first one, whose path is ".".
    store
        What `xarray.Dataset.to_zarr` takes.
    sizes : Sizes
        Chunks, shards and codecs of new variables.
    changes : mapping of str to mapping
        Entries of the encoding of variables that are to be different, by the paths of the groups.
    progress, checks_values, compute, chunkmanager_store_kwargs, **options
        As of `DatasetAccessor.to_zarr` and `xarray.Dataset.to_zarr`.
    """
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(f"to_zarr() got an unexpected keyword argument {name!r}")
    require_store_of_workers(store, datasets.values(), compute=compute)
    for path, dataset in datasets.items():
        check_names_and_changes(dataset, changes.get(path, {}), options.get("zarr_format"))
    dims = [*dict.fromkeys(dim for dataset in datasets.values() for dim in dataset.dims)]
    is_cut = not options.get("safe_chunks")  # xarray would look at chunks that the dataset does not have
    groups = {
        path: DatasetInShards(dataset, sizes, dims=dims, changes=changes.get(path, {}), is_cut=is_cut)
        for path, dataset in datasets.items()
    }
    if is_new(options):  # what cannot be written is refused before anything is erased
        no_store = encoder(options.get("zarr_format"))
        prepared = {path: group.prepare(no_store, append_dim=None) for path, group in groups.items()}
    staged = StagedStore.of(store, options) if compute and is_new(options) else None
    with _explaining_permissions(store):
        root = _opened(store, staged, options)
    with WritesBehind() as behind:
        is_behind = compute and takes_long(store) and client_of_dask() is None
        writer = BlockWriter(checks_values=checks_values, behind=behind if is_behind else None, staged=staged)
        for path, group in groups.items():
            target = root if path == "." else root.get_child_store(path)
            if is_new(options):
                dataset, originals = prepared[path]
            else:
                # xarray has no public name for what its own `to_zarr` does next.
                group.dataset = target._validate_and_autodetect_region(group.dataset)  # noqa: SLF001
                target._validate_encoding(changes.get(path, {}))  # noqa: SLF001
                dataset, originals = group.prepare(target, append_dim=options.get("append_dim"))
            writer.expect(originals, target.zarr_group.path)
            dataset.dump_to_store(target, writer=writer)
        if not compute:
            return _tasks(writer, root, chunkmanager_store_kwargs)
        if staged is not None:
            with _explaining_permissions(store):
                staged.send()
            staged.detach(root.zarr_group)
        _compute(writer, progress=progress, keywords=chunkmanager_store_kwargs)
        behind.finish()
    _close(None, root, staged)
    return root


def _opened(store: Any, staged: StagedStore | None, options: Mapping[str, Any]) -> ZarrStore:
    """Return xarray's store for a write."""
    # The chunks of dask are whole shards, so xarray need not look at them.
    if staged is None:
        return get_writable_zarr_store(store, **{"safe_chunks": False, **options})
    return get_writable_zarr_store(staged, **{"safe_chunks": False, **options, "storage_options": None})


@contextmanager
def _explaining_permissions(store: Any) -> Iterator[None]:
    """Add to a `PermissionError` what was tried and what to do."""
    try:
        yield
    except PermissionError as err:
        err.add_note(
            f"tried: to write groups and arrays to {masked(str(store))}\ndo:    check that you may write there"
        )
        raise


def _tasks(writer: BlockWriter, target: ZarrStore, keywords: dict[str, Any] | None) -> Any:
    """Write what is in memory, and return a task of dask that writes the rest and closes the store."""
    writer.write_in_memory()
    writes = writer.sync(compute=False, chunkmanager_store_kwargs=keywords)  # type: ignore[no-untyped-call]
    return delayed(_close)(writes, target)


def _compute(writer: BlockWriter, *, progress: bool, keywords: dict[str, Any] | None) -> None:
    """Write all blocks."""
    if client_of_dask() is None:
        writer.join()
    else:  # what this process has in memory is not sent to workers
        writer.write_in_memory()
    n_tasks, block_nbytes = writer.n_tasks, writer.block_nbytes
    writes = writer.sync(compute=False, chunkmanager_store_kwargs=keywords)  # type: ignore[no-untyped-call]
    tasks = delayed(_all)(writes)
    if progress and n_tasks:
        size = decimal(block_nbytes)
        print(f"{n_tasks} tasks, each of at most {size}: one decoded block and its packed copy")  # noqa: T201  # above the bar of dask
    if n_tasks and progress:
        compute_with_progress(tasks)
    elif n_tasks:
        tasks.compute()


def is_new(options: Mapping[str, Any]) -> bool:
    """Whether a write begins a store anew, or ends in an error where there is one."""
    mode = options.get("mode")
    is_added = options.get("append_dim") is not None or options.get("region") is not None
    return mode in ("w", "w-") or (mode is None and not is_added)


def check_names_and_changes(
    dataset: Dataset, changes: Mapping[Any, Mapping[str, Any]], zarr_format: int | None
) -> None:
    """Let xarray refuse names and entries of an encoding that it does not know, by a write of one element to memory."""
    names = [name for name in dataset.variables if not isinstance(name, str) or not name]
    if not names and not changes:
        return
    for name in changes:
        if name not in dataset.variables:
            raise OptionError(
                f"unknown variable {name!r}",
                tried=f"encoding= of variable {name!r}",
                found=f"variables {', '.join(map(repr, dataset.variables))}"[:200],
                do=f"name one of these{perhaps(str(name), dataset.variables)}",
            )
    for name in [*names, *changes]:
        encoding = {name: dict(changes[name])} if name in changes else {}
        elements = _elements(dataset.variables[name])
        for number, element in enumerate(elements, 1):
            try:
                alone = xr.Dataset({name: element})
                alone.to_zarr(MemoryStore(), encoding=encoding, zarr_format=zarr_format, consolidated=False)
                break
            except Exception:  # of any kind: it is xarray's to say
                if number == len(elements):
                    raise


def _elements(variable: Variable) -> list[Variable]:
    """Return variables of one element and of none that are of the kind of another one."""
    if variable.dtype.kind == "O":  # dates of a calendar, text, numbers: the first one says
        first = variable.isel(dict.fromkeys(variable.dims, slice(1))).values
    else:
        first = np.zeros((1,) * variable.ndim, variable.dtype)
    dims = [f"dim_{axis}" for axis in range(variable.ndim)]
    arrays = [first]
    if variable.ndim:  # an element may be no number where others are
        arrays.append(np.zeros((0,) * variable.ndim, variable.dtype))
    return [Variable(dims, array) for array in arrays]


def _all(_: Any) -> None:
    """Do nothing once all tasks have run."""


def _close(_: Any, target: ZarrStore, staged: StagedStore | None = None) -> None:
    """Close a store after all tasks have run."""
    target.close()
    if staged is not None:
        staged.close()
