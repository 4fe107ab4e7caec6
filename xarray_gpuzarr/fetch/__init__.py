"""Fetching encoded bytes from a store, into memory that the decoder provides.

There are three sources behind one protocol (`source`). `LocalSource` reads files at given offsets, on the calling
thread. `MemorySource` takes the objects of zarr's `MemoryStore`. `StoreSource` requests byte ranges from any other zarr
store, many at a time, on zarr's event loop. Sources are small and can be pickled, and hold no open file. They decode
nothing. `Snapshot` makes sure that all bytes of a shard are of one version, and `index_cache` keeps shard indexes.
`StrictSource` records which objects are missing.
"""

from __future__ import annotations

import os

from zarr.abc.store import Store
from zarr.storage import LocalStore

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.fetch.in_memory import MemorySource, fits_memory_source
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.source import ObjectSource, Storage


def object_source(store: Store, storage: Storage = "auto") -> ObjectSource:
    """Return the source for a zarr store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store.
    storage : {"auto", "posix", "gds"}
        How local files reach a GPU; see `Storage`.

    Raises
    ------
    OptionError
        If `storage` is "gds" and the store is not a directory of local files.
    """
    if type(store) is LocalStore:
        return LocalSource(root=os.fspath(store.root), storage=storage)
    if storage == "gds":
        raise OptionError(
            'storage="gds" cannot be used here',
            tried=f"storage='gds' for {store!r}",
            found="GPUDirect Storage reads local files only",
            do="leave storage out, or open the store by its local path",
        )
    return MemorySource(store=store) if fits_memory_source(store) else StoreSource(store=store)
