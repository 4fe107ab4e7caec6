"""Encoded bytes from a store into memory that the decoder chose.

Three sources behind one protocol: `LocalSource` reads files by position, straight into the caller's buffer and on the
caller's thread; `MemorySource` takes what zarr's `MemoryStore` holds; `StoreSource` asks any other zarr store for byte
ranges, many at a time, on zarr's own event loop. They are small, frozen and picklable, and hold no open file. Chunks
are not decoded here. `Snapshot` keeps to one version of a shard, and `index_cache` keeps indexes. `StrictSource` notes
which objects one of them misses.
"""

from __future__ import annotations

import os

from zarr.abc.store import Store
from zarr.storage import LocalStore

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.fetch.in_memory import MemorySource, answers_at_once
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.source import ObjectSource, Storage


def object_source(store: Store, storage: Storage = "auto") -> ObjectSource:
    """Return the best source for a zarr store.

    Raises `OptionError` for ``storage="gds"`` where the store is no directory of local files.
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
    return MemorySource(store=store) if answers_at_once(store) else StoreSource(store=store)
