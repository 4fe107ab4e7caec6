"""`require_store_of_workers`: refuses a write on a cluster to a store that only this process can write to."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from xarray import Dataset
from zarr.abc.store import Store
from zarr.storage import MemoryStore, ObjectStore, StorePath

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.fetch.stores import is_obstore_memory
from xarray_gpuzarr.process.dask_client import client_of_dask


def require_store_of_workers(store: Any, datasets: Iterable[Dataset], *, compute: bool) -> None:
    """Raise `OptionError` if the workers of a cluster would write to a store that only this process has.

    Parameters
    ----------
    store
        The store, as for `xarray.Dataset.to_zarr`.
    datasets : iterable of xarray.Dataset
        The datasets that are written. If none has a dask array, workers get no tasks, and nothing is checked.
    compute : bool
        Whether the tasks are computed now. If not, nothing is checked: the user may compute them in this process.
    """
    if not compute or client_of_dask() is None:
        return
    variables = [variable for dataset in datasets for variable in dataset.variables.values()]
    if all(variable.chunks is None for variable in variables):
        return
    found = _why_unreachable(store.store if isinstance(store, StorePath) else store)
    if found is not None:
        raise OptionError(
            "workers of the cluster cannot write to the store",
            tried=f"to send them the store, an instance of {type(store).__name__}",
            found=found,
            do="write to files or to an object store, or compute in this process, with scheduler='threads'. "
            "For Icechunk: icechunk.xarray.to_icechunk(ds, session, encoding=ds.gpuzarr.encoding(...))",
        )


def _why_unreachable(store: Any) -> str | None:
    """Return why other processes cannot write to a store; None if there is no known reason."""
    is_memory = isinstance(store, MemoryStore | Mapping)
    if is_memory or (isinstance(store, ObjectStore) and is_obstore_memory(store.store)):
        return "a store in the memory of this process; workers would write to copies of it"
    if isinstance(store, Store):
        try:
            pickle.dumps(store)
        except Exception as err:  # noqa: BLE001  # pickling may raise anything
            return f"it cannot be pickled: {err}"
    return None
