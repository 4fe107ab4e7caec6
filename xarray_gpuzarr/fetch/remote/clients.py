"""`client_for`: the client for a store.

With each answer, obstore, s3fs and fsspec's HTTP file system tell the version of the object and the range of the bytes.
So a read notices if an object was replaced, or if a server sends other bytes. All other stores are asked through zarr's
interface, which tells neither (`store_clients`). Credentials, options, retries and timeouts are those of the store that
the user opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore, ZipStore

from xarray_gpuzarr.fetch.remote.fsspec_clients import HttpClient, S3fsClient
from xarray_gpuzarr.fetch.remote.obstore_client import ObstoreClient
from xarray_gpuzarr.fetch.remote.store_clients import AdlfsClient, Client, IcechunkClient, StoreClient, ZipClient

_CLIENTS: dict[str, Callable[[Any], Client]] = {
    "s3fs.core.S3FileSystem": S3fsClient,
    "fsspec.implementations.http.HTTPFileSystem": HttpClient,
    "adlfs.spec.AzureBlobFileSystem": AdlfsClient,
    "icechunk.store.IcechunkStore": IcechunkClient,
}
"""Clients by the names of stores and file systems, whose libraries are optional."""


def client_for(store: Store) -> Client:
    """Return the client for a store. Subclasses and wrappers, which may do anything, get a `StoreClient`."""
    if type(store) is ObjectStore:
        return ObstoreClient(store.store)
    if type(store) is ZipStore:
        return ZipClient(store)
    kind = type(store.fs if type(store) is FsspecStore else store)
    return _CLIENTS.get(f"{kind.__module__}.{kind.__name__}", StoreClient)(store)
