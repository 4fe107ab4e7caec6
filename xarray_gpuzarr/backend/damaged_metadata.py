"""Which document of a store's metadata is damaged, where zarr-python has met one and does not say which.

The store is looked through once more: as the group was opened, from the root downwards.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, StorePath

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch import run_on_loop

_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")
_MOST_NODES = 200
"""That are looked at, one after another."""


@contextmanager
def naming_damaged_metadata(
    where: Any, *, group: Any = None, storage_options: dict[str, Any] | None = None, **_: Any
) -> Iterator[None]:
    """Turn what is raised inside a ``with`` block into a `MetadataError`, if a document is no JSON object.

    Parameters
    ----------
    where : path, URL, zarr store, or any other input of zarr-python
    group : str, path object or None
    storage_options : dict or None
    """
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as err:
        try:
            damaged = run_on_loop(str(where), partial(_damaged, where, str(group or "").strip("/"), storage_options))
        except Exception:  # noqa: BLE001  # one failure is being named already; this only looks for its cause
            damaged = None
        if damaged is None:
            raise
        key, found = damaged
        unread = ", or open with consolidated=False" if key.endswith(".zmetadata") else ""
        raise MetadataError(
            f"cannot open '{where}': its document '{key}' is damaged",
            tried=f"reading '{key}' as a JSON object",
            found=found,
            do=f"restore this document from a copy, or write its array or group again{unread}",
        ) from err


async def _damaged(where: Any, group: str, storage_options: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return the key of the first document that is damaged, and what is wrong with it; None if there is none."""
    at = await _store_path(where, storage_options)
    top = f"{at.path}/{group}".strip("/")
    waiting = deque([at.path, *([top] if group else [])])
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        path = waiting.popleft()
        keys = [f"{path}/{name}".lstrip("/") for name in _DOCUMENTS]
        stored = await asyncio.gather(*(at.store.get(key, default_buffer_prototype()) for key in keys))
        found = zip(keys, stored, strict=True)
        documents = {key: document.to_bytes() for key, document in found if document is not None}
        for key, document in documents.items():
            fault = _fault(document)
            if fault:
                return key, fault
        is_array = any(key.endswith(".zarray") or _is_array(document) for key, document in documents.items())
        if documents and not is_array and (path != at.path or not group):
            waiting.extend([f"{path}/{name}".lstrip("/") async for name in at.store.list_dir(path)])
    return None


async def _store_path(where: Any, storage_options: dict[str, Any] | None) -> StorePath:
    """Return the place in a store that zarr-python means by a path, a URL, a store or a place in one.

    Raises
    ------
    TypeError
        It is none of these.
    """
    if isinstance(where, StorePath):
        return where
    if isinstance(where, Store):
        return StorePath(where)
    if "://" in (place := os.fspath(where)):
        return StorePath(FsspecStore.from_url(place, storage_options=storage_options, read_only=True))
    return StorePath(await LocalStore.open(place, read_only=True))


def _fault(document: bytes) -> str:
    """Say what is wrong with a document; empty if nothing is."""
    try:
        value = json.loads(document)
    except ValueError as err:
        return f"{len(document)} bytes that are no JSON: {err}"
    return "" if isinstance(value, dict) else f"JSON of a {type(value).__name__}"


def _is_array(document: bytes) -> bool:
    return bool(json.loads(document).get("node_type") == "array")
