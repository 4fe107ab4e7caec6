"""A store between zarr-python and a slow one, which is asked for each document and listing of metadata once.

Documents of the group that xarray opens first are fetched together before it does, and `MetadataAhead` answers from
them. It keeps what it is asked for later, too, so that a group may be looked at again. What failed is asked of the
store again, so that values, warnings and errors are those of xarray's own engine.

References
----------
Zarr specification, format 3, "Metadata"; format 2, "Arrays" and "Groups".
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from xarray.backends import ZarrStore
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

from xarray_gpuzarr.fetch import requests_at_once

_NODE = {2: (".zarray", ".zgroup", ".zattrs"), 3: ("zarr.json",)}
"""Format -> documents that tell what a node is."""
_ROOT = {
    2: (".zgroup", ".zattrs", ".zmetadata"),
    3: ("zarr.json",),
    None: ("zarr.json", ".zgroup", ".zattrs", ".zmetadata"),
}
"""Format that is asked for -> documents of the group that is opened first."""
NO_NODES = {2: (*_NODE[2], ".zmetadata"), 3: _NODE[3]}
"""Format of a group -> names in it that are not those of members; zarr-python warns of others that are none."""


class MetadataAhead(WrapperStore[Store]):
    """A store that is asked for each document and listing once, and for a bounded number of them at a time.

    Parameters
    ----------
    store : zarr.abc.store.Store
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.itself = store
        self._documents: dict[str, Buffer | None] = {}
        """Key -> what is stored there; None if nothing is."""
        self._listings: dict[str, list[str]] = {}
        """Path of a group -> names below it."""
        self._at_once = requests_at_once()
        self._n_under_way = 0
        self._slots = asyncio.Semaphore(self._at_once)

    def __str__(self) -> str:
        return str(self.itself)

    def __repr__(self) -> str:
        return repr(self.itself)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store has consolidated metadata as zarr-python writes them."""
        return self.itself.supports_consolidated_metadata

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a document."""
        if byte_range is not None:
            return await self.itself.get(key, prototype, byte_range)
        if key not in self._documents:
            self._documents[key] = await self._asked(lambda: self.itself.get(key, prototype))
        return self._documents[key]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Return the names below a path."""
        for name in await self.names(prefix):
            yield name

    async def names(self, prefix: str) -> Sequence[str]:
        """Return the names below a path, as a list."""
        path = prefix.strip("/")
        if path not in self._listings:
            self._listings[path] = await self._asked(lambda: _all_of(self.itself.list_dir(prefix)))
        return self._listings[path]

    def has_room(self, n_requests: int) -> bool:
        """Return whether requests would be made at once, without waiting for others."""
        return self._n_under_way + n_requests <= self._at_once

    async def _asked[Answer](self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a request as soon as there is a slot for it."""
        self._n_under_way += 1
        try:
            async with self._slots:
                return await request()
        finally:
            self._n_under_way -= 1

    def hand_over(self, opened: ZarrStore) -> None:
        """Let what was opened through this store read from the store itself."""
        for node in (opened.zarr_group, *opened.members.values()):
            if node.store_path.store is self:
                node.store_path.store = self.itself


async def _all_of(names: AsyncIterator[str]) -> list[str]:
    return [name async for name in names]


def takes_long(where: object) -> bool:
    """Return whether a store takes so long to answer that it pays to make many requests at once."""
    store = where.store if isinstance(where, StorePath) else where
    if isinstance(store, str):
        return "://" in store
    return not isinstance(store, os.PathLike | dict | LocalStore | MemoryStore | ZipStore)


async def fetch_first(
    where: Any,
    *,
    group: str | None,
    consolidated: bool | None,
    zarr_format: int | None,
    storage_options: dict[str, Any] | None,
) -> tuple[MetadataAhead, str]:
    """Return a store that knows the documents of the group that xarray opens first; and the path of `where` in it.

    Parameters
    ----------
    where : path, URL, zarr store, or any other input of xarray's zarr engine
    group : str or None
        Its path from `where`.
    consolidated : bool or None
        Whether consolidated metadata are taken, if there are any.
    zarr_format : 2, 3 or None
    storage_options : dict or None
    """
    at = await make_store_path(where, mode="r", storage_options=storage_options)
    if not getattr(at.store, "supports_consolidated_metadata", True):
        consolidated = False
    ahead = MetadataAhead(at.store)
    top = f"{at.path}/{(group or '').strip('/')}".strip("/")
    if consolidated is False:
        await _ask(ahead, top, _ROOT[zarr_format], lists=True)
        return ahead, at.path
    found = await _ask(ahead, at.path, _ROOT[zarr_format])
    if top != at.path:
        unconsolidated = _unconsolidated(found)
        if unconsolidated is not None:
            await _ask(ahead, top, _NODE[unconsolidated], lists=True)
    return ahead, at.path


async def _ask(ahead: MetadataAhead, path: str, names: Sequence[str], *, lists: bool = False) -> dict[str, Any]:
    """Return documents of a group, and let its members' names be known; an error stands for what failed."""
    prototype = default_buffer_prototype()
    documents = (ahead.get(f"{path}/{name}".strip("/"), prototype) for name in names)
    listing = [ahead.names(path)] if lists else []
    found = await asyncio.gather(*documents, *listing, return_exceptions=True)
    return dict(zip(names, found, strict=False))


def _unconsolidated(found: Mapping[str, Any]) -> int | None:
    """Return the format of a group that has no consolidated metadata, else None."""
    if isinstance(found.get("zarr.json"), Buffer):
        try:
            fields = json.loads(found["zarr.json"].to_bytes())
        except ValueError:  # zarr-python will say why
            return None
        return 3 if isinstance(fields, dict) and fields.get("consolidated_metadata") is None else None
    return 2 if isinstance(found.get(".zgroup"), Buffer) and not isinstance(found.get(".zmetadata"), Buffer) else None
