"""Which server a store reads from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable
from typing import Any
from urllib.parse import urlsplit

from zarr.abc.store import Store
from zarr.storage import FsspecStore, ObjectStore

_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Environment variables that say which server is meant."""


def server_of(store: Store) -> Hashable:
    """Return a value that is equal for stores on one server that are opened with the same options.

    If the server is unknown, each store has a value of its own.
    """
    if isinstance(store, FsspecStore):
        url = urlsplit(store.fs.unstrip_protocol(store.path))
        return url.scheme, url.netloc, digest((store.fs.storage_args, store.fs.storage_options))
    if isinstance(store, ObjectStore):
        return obstore_server(store.store)
    return str(store)


def obstore_server(store: Any) -> Hashable:
    """Return the server of a store of obstore; see `server_of`."""
    options = [getattr(store, name, None) for name in ("config", "client_options")]
    text = json.dumps(options, sort_keys=True, default=str)
    return type(store).__name__, urlsplit(getattr(store, "url", "")).netloc, digest(text)


def digest(address_and_options: object) -> str:
    """Return a hash of a store's address and options, which does not reveal secrets among them.

    The environment variables that say which server is meant are hashed, too.
    """
    endpoints = [os.environ.get(name) for name in _ENDPOINTS]
    return hashlib.sha256(repr((address_and_options, endpoints)).encode()).hexdigest()
