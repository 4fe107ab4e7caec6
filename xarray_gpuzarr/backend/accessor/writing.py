"""`write_groups`: writes datasets as xarray does, in tasks of whole shards, so that no two tasks write to one shard.

xarray's own `ZarrStore` decides everything that is stored: which encoding is kept, how values are packed, which arrays
are created or resized, and what is refused. This package decides the lengths of chunks and shards, how dask chunks are
aligned with them, and how much memory a block takes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

import dask.array as da
from dask.delayed import delayed
from rich.filesize import decimal
from xarray import Dataset
from xarray.backends import ZarrStore
from xarray.backends.writers import get_writable_zarr_store
from zarr.abc.store import Store
from zarr.storage import StorePath

from xarray_gpuzarr.backend.accessor.block_writer import BlockWriter, UnencodedVariable
from xarray_gpuzarr.backend.accessor.cluster_stores import require_shared_store
from xarray_gpuzarr.backend.accessor.error_notes import explaining_longer_arrays, explaining_refusals, naming_group
from xarray_gpuzarr.backend.accessor.own_source import require_another_store
from xarray_gpuzarr.backend.accessor.packing import encoding_store
from xarray_gpuzarr.backend.accessor.sample_writes import check_names_and_changes
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.backend.accessor.staged_store import StagedStore
from xarray_gpuzarr.backend.accessor.stored_advice import advise_of_region
from xarray_gpuzarr.backend.accessor.task_progress import compute_with_progress
from xarray_gpuzarr.backend.accessor.whole_shards import DatasetInShards
from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.errors import OptionError, similar_name_hint
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.process.dask_client import computes_in_other_processes
from xarray_gpuzarr.write.writes_behind import WritesBehind

Prepared = tuple[Dataset, dict[str, UnencodedVariable]]
"""What `DatasetInShards.prepare` returns."""
_STORE_ARGUMENTS = signature(da.store).parameters
"""Parameters of dask's `store`. It passes other keywords, such as `scheduler`, to dask's `compute`."""
_OPTIONS = signature(get_writable_zarr_store).parameters
"""Parameters of the function with which xarray opens the store: the options that `write_groups` passes on."""
_OWN_ARGUMENTS = ("chunks", "shards", "compressors", "encoding", "rechunk", "progress", "check_values", "compute")
"""Names of the other arguments of `DatasetAccessor.to_zarr`."""


def write_groups(  # noqa: PLR0913  # as xarray's
    datasets: Mapping[str, Dataset],
    store: Any,
    sharding: ShardingArguments,
    *,
    changes: Mapping[str, Mapping[Any, Mapping[str, Any]]],
    progress: bool,
    checks_values: bool,
    compute: bool = True,
    chunkmanager_store_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write datasets to groups of a store; see `DatasetAccessor.to_zarr`.

    Parameters
    ----------
    datasets : mapping of str to xarray.Dataset
        Datasets by the paths of their groups, relative to the first one, whose path is ".". All arrays are on the host.
    store
        The store, as for `xarray.Dataset.to_zarr`.
    sharding : ShardingArguments
        Chunks, shards and codecs of new variables.
    changes : mapping of str to mapping
        By the paths of the groups, entries that replace those in the encoding of variables.
    progress, checks_values, compute, chunkmanager_store_kwargs, **options
        As for `DatasetAccessor.to_zarr` and `xarray.Dataset.to_zarr`.

    Returns
    -------
    xarray.backends.ZarrStore or dask.delayed.Delayed
        The store of the first group, or a task that writes if `compute` is false.

    Raises
    ------
    TypeError
        If an option is unknown.
    OptionError, StoreWriteError
        As for `DatasetAccessor.to_zarr`.
    """
    if isinstance(store, str | os.PathLike):
        store = os.path.expanduser(store)  # noqa: PTH111  # as xarray does; a `Path` would change a URL
    keywords = chunkmanager_store_kwargs or {}
    compute_keywords = {name: value for name, value in keywords.items() if name not in _STORE_ARGUMENTS}
    # With `compute` false, it is not known where the tasks will run.
    scheduler = compute_keywords.get("scheduler")
    leaves_process = compute and computes_in_other_processes(scheduler)
    _check_arguments(datasets, store, changes, options)
    if leaves_process:
        require_shared_store(store, datasets.values(), scheduler)
    groups = _in_shards(datasets, sharding, changes, options, checks_values=checks_values)
    makes_store = makes_new_store(options)
    # Variables that cannot be written are refused before anything is erased.
    prepared = _prepare_new(groups, encoding_store(options.get("zarr_format"))) if makes_store else None

    # With `compute` false, the tasks may run at any time, so the metadata are stored at once.
    staged = StagedStore.of(store, options) if compute and makes_store else None
    root = _open_store(store, staged, options)
    # Objects may be sent in the background only if this process writes them, and does so before this function returns:
    # `finish` waits for no others.
    sends_behind = compute and takes_long(store) and not leaves_process
    behind = WritesBehind() if sends_behind else None
    with behind or nullcontext(), explaining_longer_arrays(groups["."]):  # trees, with more groups, have no appends
        writer = BlockWriter(checks_values=checks_values, behind=behind, staged=staged)
        _dump_groups(root, groups, prepared, writer, append_dim=options.get("append_dim"), region=options.get("region"))
        if not compute:
            return _delayed_writes(writer, root, keywords)
        if staged is not None:
            with explaining_refusals(store):
                staged.send()
            staged.detach(root.zarr_group)
        if leaves_process:  # arrays in memory are written by this process, and not sent to others
            writer.write_from_memory()
        else:  # one computation writes all blocks
            writer.add_from_memory()
        _compute(writer, keywords, compute_keywords, progress=progress)
        if behind is not None:
            behind.finish()
    root.close()
    if staged is not None:
        staged.close()
    return root


def _check_arguments(
    datasets: Mapping[str, Dataset],
    store: Any,
    changes: Mapping[str, Mapping[Any, Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> None:
    """Raise an error for arguments of `write_groups` that cannot be carried out, before anything is stored."""
    for name in options:
        if name not in _OPTIONS:
            hint = similar_name_hint(name, [*_OPTIONS, *_OWN_ARGUMENTS])
            raise TypeError(f"to_zarr() got an unexpected keyword argument {name!r}{hint}")
    opened_store = store.store if isinstance(store, StorePath) else store
    if isinstance(opened_store, Store) and takes_long(opened_store):
        StoreSource(store=opened_store).require_usable()
    require_another_store(store, datasets.values(), options)
    if options.get("append_dim") is not None:
        _require_folder_to_append_to(store, options["append_dim"])
    for path, dataset in datasets.items():
        check_names_and_changes(dataset, changes.get(path, {}), options.get("zarr_format"))


def _in_shards(
    datasets: Mapping[str, Dataset],
    sharding: ShardingArguments,
    changes: Mapping[str, Mapping[Any, Mapping[str, Any]]],
    options: Mapping[str, Any],
    *,
    checks_values: bool,
) -> dict[str, DatasetInShards]:
    """Return the datasets as they will be chunked, by the paths of their groups."""
    dims = [*dict.fromkeys([dim for dataset in datasets.values() for dim in dataset.dims])]
    # With `safe_chunks`, xarray would also check the chunks that NumPy arrays are cut into, which no user has chosen.
    cuts_numpy = not options.get("safe_chunks")
    return {
        path: DatasetInShards(
            dataset,
            sharding,
            dims=dims,
            changes=changes.get(path, {}),
            cuts_numpy=cuts_numpy,
            checks_values=checks_values,
        )
        for path, dataset in datasets.items()
    }


def _prepare_new(groups: Mapping[str, DatasetInShards], target: ZarrStore) -> dict[str, Prepared]:
    """Prepare datasets for new groups; see `DatasetInShards.prepare`. An empty group, `target`, stands for each."""
    prepared: dict[str, Prepared] = {}
    for path, group in groups.items():
        with naming_group(path):
            prepared[path] = group.prepare(target, append_dim=None)
    return prepared


def _prepare_existing(
    groups: Mapping[str, DatasetInShards],
    targets: Mapping[str, ZarrStore],
    append_dim: Any,
    region: Any,
) -> dict[str, Prepared]:
    """Prepare datasets for groups that may have variables already, before the first of them is written."""
    prepared: dict[str, Prepared] = {}
    for path, group in groups.items():
        target = targets[path]
        with naming_group(path):
            # These are the next steps of xarray's own `to_zarr`, which have no public names.
            with_indexes = group.dataset  # xarray leaves out the indexes if there is a region
            group.dataset = target._validate_and_autodetect_region(with_indexes)  # noqa: SLF001
            if isinstance(region, Mapping):
                given_slices = {dim: part for dim, part in region.items() if isinstance(part, slice)}
                advise_of_region(target, with_indexes, given_slices)
            target._validate_encoding(group.changes)  # noqa: SLF001
            prepared[path] = group.prepare(target, append_dim=append_dim)
    return prepared


def _require_folder_to_append_to(store: Any, append_dim: Any) -> None:
    """Raise `OptionError` for an append to a local folder that does not exist. xarray would make a group there.

    URLs and chains of fsspec, such as "simplecache::...", are left to xarray.
    """
    is_path = isinstance(store, str) and "://" not in store and "::" not in store
    if is_path and not Path(store).exists():
        raise OptionError(
            "there is no store to append to",
            tried=f"append_dim={append_dim!r}, to {store!r}",
            found="no such folder",
            do="write the first piece without append_dim, or correct the path",
        )


def _open_store(store: Any, staged: StagedStore | None, options: Mapping[str, Any]) -> ZarrStore:
    """Return xarray's store for the write, on top of `staged` if there is one."""
    # Dask chunks are whole shards, so xarray need not check them.
    with explaining_refusals(store):
        if staged is None:
            return get_writable_zarr_store(store, **{"safe_chunks": False, **options})
        return get_writable_zarr_store(staged, **{"safe_chunks": False, **options, "storage_options": None})


def _dump_groups(
    root: ZarrStore,
    groups: Mapping[str, DatasetInShards],
    prepared: Mapping[str, Prepared] | None,
    writer: BlockWriter,
    *,
    append_dim: Any,
    region: Any,
) -> None:
    """Create or resize the arrays of all groups, and hand their values to `writer`.

    `prepared` has the datasets for a new store. If it is None, they are prepared here, for groups that may have
    variables already.
    """
    targets = {path: root if path == "." else root.get_child_store(path) for path in groups}
    if prepared is None:
        prepared = _prepare_existing(groups, targets, append_dim, region)
    for path, target in targets.items():
        dataset, unencoded_variables = prepared[path]
        writer.expect(unencoded_variables, target.zarr_group.path)
        dataset.dump_to_store(target, writer=writer)


def _delayed_writes(writer: BlockWriter, target: ZarrStore, keywords: dict[str, Any]) -> Any:
    """Write the blocks of NumPy arrays. Return a dask task that writes the other blocks and then closes the store."""
    writer.write_from_memory()
    writes = writer.sync(compute=False, chunkmanager_store_kwargs=keywords)  # type: ignore[no-untyped-call]
    return delayed(_close)(writes, target)


def _compute(
    writer: BlockWriter, keywords: dict[str, Any], compute_keywords: dict[str, Any], *, progress: bool
) -> None:
    """Write all blocks, and wait for them. The keywords are those for dask's `store` and `compute`."""
    n_tasks = writer.n_tasks
    if not n_tasks:
        return
    writes = writer.sync(compute=False, chunkmanager_store_kwargs=keywords)  # type: ignore[no-untyped-call]
    task = delayed(_do_nothing)(writes)
    if progress:
        size = decimal(writer.block_nbytes)
        print(f"{n_tasks} tasks, each of at most {size}: one decoded block and its packed copy")  # noqa: T201
        compute_with_progress(task, compute_keywords)
    else:
        task.compute(**compute_keywords)


def makes_new_store(options: Mapping[str, Any]) -> bool:
    """Whether a write makes a new store, or fails because there is a store."""
    mode = options.get("mode")
    if mode is None:
        return options.get("append_dim") is None and options.get("region") is None
    return mode in ("w", "w-")


def _do_nothing(_: Any) -> None:
    """Return None. As a task, this depends on all writes, which are its argument."""


def _close(_: Any, target: ZarrStore) -> None:
    """Close a store. As a task, this depends on all writes, which are its first argument."""
    target.close()
