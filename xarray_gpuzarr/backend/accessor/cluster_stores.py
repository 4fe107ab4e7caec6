"""`require_shared_store`: refuses a write in other processes to a store that only this process can write to."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from xarray import Dataset
from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, StorePath

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.fetch.stores import file_system_of, innermost_store, is_obstore_memory
from xarray_gpuzarr.process.dask_client import client_of_dask


def require_shared_store(store: Any, datasets: Iterable[Dataset], scheduler: Any) -> None:
    """Raise `OptionError` if tasks that are pickled for other processes would write to a store that only this one has.

    Parameters
    ----------
    store
        The store, as for `xarray.Dataset.to_zarr`.
    datasets : iterable of xarray.Dataset
        The datasets that are written. If none has a dask array, there are no tasks, and nothing is checked.
    scheduler
        The scheduler that dask is given, or None; as for `client_of_dask`.
    """
    variables = [variable for dataset in datasets for variable in dataset.variables.values()]
    if all(variable.chunks is None for variable in variables):
        return
    found = _why_unreachable(store.store if isinstance(store, StorePath) else store, scheduler)
    if found is not None:
        raise OptionError(
            "the workers of dask cannot write to the store",
            tried=f"to send them the store, an instance of {type(store).__name__}",
            found=found,
            do="write to files or to an object store, or compute in this process, with scheduler='threads'. "
            "For Icechunk: icechunk.xarray.to_icechunk(ds, session, encoding=ds.gpuzarr.encoding(...))",
        )


def _why_unreachable(store: Any, scheduler: Any) -> str | None:
    """Return why tasks in other processes cannot write to a store; None if there is no known reason."""
    if _is_in_memory(innermost_store(store) if isinstance(store, Store) else store, scheduler):
        return "a store in the memory of this process; workers would write to copies of it"
    if isinstance(store, Store):
        try:
            pickle.dumps(store)
        except Exception as err:  # noqa: BLE001  # pickling may raise anything
            return f"it cannot be pickled: {err}"
    return None


def _is_in_memory(store: Any, scheduler: Any) -> bool:
    """Return whether a pickled copy of a store, which is no wrapper, has other objects in memory than the store."""
    if isinstance(store, ObjectStore):
        return is_obstore_memory(store.store)
    if isinstance(store, FsspecStore):
        return "memory" in file_system_of(store).protocol and not _are_workers_in_this_process(scheduler)
    if isinstance(store, str):
        return store.startswith("memory://") and not _are_workers_in_this_process(scheduler)
    return isinstance(store, MemoryStore | Mapping)


def _are_workers_in_this_process(scheduler: Any) -> bool:
    """Return whether dask computes on a cluster of threads, whose workers share the memory of fsspec with this one."""
    client = client_of_dask(scheduler)
    return client is not None and client.scheduler.address.startswith("inproc://")
