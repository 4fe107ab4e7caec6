"""Finds a damaged metadata document in a store that could not be opened."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from typing import Any

from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, StorePath

_METADATA_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")
"""Names of metadata documents, in the order in which they are examined."""
_MOST_PATHS = 200
"""Largest number of paths that are examined: those of groups and arrays, and of whatever else a group contains, such as
its `zarr.json`."""


async def find_damage(location: Any, group: str, storage_options: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return the key of the first damaged metadata document, from the root downwards, and what is wrong with it.

    Returns None if no document directly below one of the first `_MOST_PATHS` paths is damaged. With a path for `group`,
    only the root and what is in that group are searched.
    """
    root = await _open_store_path(location, storage_options)
    waiting = deque([root.path])
    if group:
        waiting.append(f"{root.path}/{group}".strip("/"))
    for _ in range(_MOST_PATHS):
        if not waiting:
            break
        path = waiting.popleft()
        keys = [f"{path}/{name}".lstrip("/") for name in _METADATA_DOCUMENTS]
        buffers = await asyncio.gather(*(root.store.get(key, default_buffer_prototype()) for key in keys))
        is_group = any(buffer is not None for buffer in buffers)  # unless a document of an array is found below
        for key, buffer in zip(keys, buffers, strict=True):
            if buffer is None:
                continue
            document = buffer.to_bytes()
            try:
                value = json.loads(document)
            except ValueError as err:
                return key, f"{len(document)} bytes that are no JSON: {err}"
            if not isinstance(value, dict):
                return key, f"JSON of a {type(value).__name__}"
            if key.endswith(".zarray") or value.get("node_type") == "array":
                is_group = False
        is_searched_below = path != root.path or not group
        if is_group and is_searched_below:
            waiting.extend([f"{path}/{name}".lstrip("/") async for name in root.store.list_dir(path)])
    return None


async def _open_store_path(location: Any, storage_options: dict[str, Any] | None) -> StorePath:
    """Return the store and the path in it of a path, URL or zarr store."""
    if isinstance(location, StorePath):
        return location
    if isinstance(location, Store):
        return StorePath(location)
    address = os.fspath(location)
    if "://" in address:
        return StorePath(FsspecStore.from_url(address, storage_options=storage_options, read_only=True))
    return StorePath(await LocalStore.open(address, read_only=True))
