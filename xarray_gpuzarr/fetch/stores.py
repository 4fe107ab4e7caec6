"""Questions about a store of zarr-python: of which kind it is, where its files lie, what makes it unique."""

from __future__ import annotations

import hashlib
import os
import pickle
from typing import Any
from uuid import uuid4

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

_FSSPEC_LOCAL = "fsspec.implementations.local.LocalFileSystem"


def store_token(store: Store) -> str:
    """Return text that differs between stores: the `repr` of zarr's own stores, else a digest of the pickled store.

    The `repr` of other stores may lack what makes them unique: an `FsspecStore` shows neither its options nor its
    server. For a store that cannot be pickled, the text differs at each call.
    """
    if isinstance(store, LocalStore | MemoryStore | ZipStore):
        return repr(store)
    try:
        return hashlib.sha256(pickle.dumps(store)).hexdigest()
    except Exception:  # noqa: BLE001  # a client may raise anything
        return uuid4().hex


def inner_store(store: WrapperStore[Any]) -> Store:
    """Return the store that one of zarr's wrappers wraps, perhaps another wrapper."""
    inner: Store = store._store  # noqa: SLF001  # wrappers have no public name for it
    return inner


def innermost_store(store: Store) -> Store:
    """Return the store below all of zarr's wrappers; the store itself if it is none."""
    while isinstance(store, WrapperStore):
        store = inner_store(store)
    return store


def local_folder(store: Store) -> str | None:
    """Return the directory of a store of local files, whichever library opens them; None for other stores."""
    if isinstance(store, LocalStore):
        root = getattr(store, "root", None)  # stand-ins of tests have none
        return None if root is None else os.fspath(root)
    if isinstance(store, FsspecStore):
        fs = type(file_system_of(store))
        return store.path if f"{fs.__module__}.{fs.__name__}" == _FSSPEC_LOCAL else None
    if isinstance(store, ObjectStore) and type(store.store).__name__ == "LocalStore":
        return os.fspath(getattr(store.store, "prefix", None) or "/")
    return None


def file_system_of(store: FsspecStore) -> Any:
    """Return the file system of a store as the user knows it. zarr wraps those that are not asynchronous."""
    return getattr(store.fs, "sync_fs", store.fs)


def is_obstore_memory(client: Any) -> bool:
    """Whether a store of obstore keeps its objects in memory.

    The name of its class is compared, since obstore is an optional dependency. zarr refuses subclasses.
    """
    return type(client).__name__ == "MemoryStore"
