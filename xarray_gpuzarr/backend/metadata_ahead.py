"""Metadata of a group, or of a whole tree of groups, asked for at once before xarray opens it.

xarray and zarr-python ask for one group after another, which takes minutes on an object store. Here all documents and
listings are fetched first, many at a time, and `MetadataAhead` answers from them while xarray's own code opens the
store. What was not fetched, or failed, is asked of the store again by that code, so that values, warnings and errors
are its own.

References
----------
Zarr specification, format 3, "Metadata"; format 2, "Arrays" and "Groups".
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
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
_NO_NODES = frozenset(_ROOT[None] + _NODE[2])

type Wanted = Callable[[str], bool]
"""Whether a group, by its path from the root, or groups below it are to be opened."""


class MetadataAhead(WrapperStore[Store]):
    """A store some of whose documents and listings are known.

    Parameters
    ----------
    store : zarr.abc.store.Store
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.itself = store
        self.documents: dict[str, Buffer | None] = {}
        """Key -> what is stored there; None if nothing is."""
        self.listings: dict[str, list[str]] = {}
        """Path of a group -> names below it."""

    def _with_store(self, store: Store) -> MetadataAhead:
        other = type(self)(store)
        other.documents, other.listings = self.documents, self.listings
        return other

    def __str__(self) -> str:
        return str(self.itself)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store has consolidated metadata as zarr-python writes them."""
        return self.itself.supports_consolidated_metadata

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a document that is known, else what the store says."""
        if byte_range is None and key in self.documents:
            return self.documents[key]
        return await self.itself.get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Return the names below a path, without a request if they are known."""
        known = self.listings.get(prefix.strip("/"))
        if known is None:
            known = [name async for name in self.itself.list_dir(prefix)]
        for name in known:
            yield name

    def hand_over(self, opened: ZarrStore) -> None:
        """Let what was opened through this store read from the store itself."""
        for node in (opened.zarr_group, *opened.members.values()):
            if node.store_path.store is self:
                node.store_path.store = self.itself


def takes_long(where: object) -> bool:
    """Return whether a store takes so long to answer that it pays to make many requests at once."""
    store = where.store if isinstance(where, StorePath) else where
    if isinstance(store, str):
        return "://" in store
    return not isinstance(store, os.PathLike | dict | LocalStore | MemoryStore | ZipStore)


async def fetch_metadata(
    where: Any,
    *,
    group: str | None,
    consolidated: bool | None,
    zarr_format: int | None,
    storage_options: dict[str, Any] | None,
    wanted: Wanted | None,
) -> tuple[MetadataAhead, str]:
    """Return a store that knows what opening a group, or a tree, asks for; and the path of `where` in it.

    Parameters
    ----------
    where : path, URL, zarr store, or any other input of xarray's zarr engine
    group : str or None
        Its path from `where`.
    consolidated : bool or None
        Whether consolidated metadata are taken, if there are any.
    zarr_format : 2, 3 or None
    storage_options : dict or None
    wanted : callable or None
        None: the group's own arrays are wanted, and no groups below it.
    """
    at = await make_store_path(where, mode="r", storage_options=storage_options)
    if not getattr(at.store, "supports_consolidated_metadata", True):
        consolidated = False
    ahead = MetadataAhead(at.store)
    crawl = _Crawl(ahead, at.path, wanted)
    await crawl.run((group or "").strip("/"), consolidated=consolidated, zarr_format=zarr_format)
    return ahead, at.path


class _Crawl:
    """One pass over a group or tree: each object is asked for once, and a level takes one round trip."""

    def __init__(self, ahead: MetadataAhead, base: str, wanted: Wanted | None) -> None:
        self._ahead = ahead
        self._base = base
        self._wanted = wanted
        self._format = 3
        self._at_once = requests_at_once()
        self._n_under_way = 0
        self._slots = asyncio.Semaphore(self._at_once)

    async def run(self, group: str, *, consolidated: bool | None, zarr_format: int | None) -> None:
        """Fetch the metadata of a group; what fails is left to whoever asks for it again."""
        top = _join(self._base, group)
        if consolidated is False:
            listing = asyncio.ensure_future(self._list(top))
            try:
                if await self._open_first(top, zarr_format) is not None:
                    await self._below(await listing, top)
            finally:
                listing.cancel()
        else:
            is_consolidated = await self._open_first(self._base, zarr_format)
            if is_consolidated is False and group:
                await self._node(top, goes_on=True, lists_early=True)
            elif is_consolidated is False:
                await self._below(await self._list(top), top)

    async def _open_first(self, path: str, zarr_format: int | None) -> bool | None:
        """Fetch the documents of the first group; return whether they are consolidated, None if it is not there."""
        found = await self._documents(path, _ROOT[zarr_format])
        self._format = 3 if found.get("zarr.json") is not None else 2
        if self._format == 2 and found.get(".zgroup") is None:
            return None
        return found.get(".zmetadata") is not None if self._format == 2 else _is_consolidated(found)

    async def _below(self, names: Iterable[str], path: str) -> None:
        """Fetch the documents of all nodes of a group, and of the groups below them that are wanted."""
        children = [_join(path, name) for name in names if name not in _NO_NODES]
        # Groups are listed before it is known that they are groups, unless arrays' documents would have to wait for it.
        lists_early = self._n_under_way + 2 * len(children) <= self._at_once
        async with asyncio.TaskGroup() as tasks:
            for child in children:
                goes_on = self._wanted is not None and self._wanted("/" + child.removeprefix(self._base).strip("/"))
                tasks.create_task(self._node(child, goes_on=goes_on, lists_early=lists_early))

    async def _node(self, path: str, *, goes_on: bool, lists_early: bool) -> None:
        listing = asyncio.ensure_future(self._list(path)) if goes_on and lists_early else None
        try:
            if not await self._is_group(path):
                return
            if goes_on:
                await self._below(await (listing or self._list(path)), path)
            elif self._wanted is not None:
                self._hide(path)
        finally:
            if listing is not None:
                listing.cancel()

    async def _is_group(self, path: str) -> bool:
        """Fetch the documents of a node; return whether it is a group that has to be listed."""
        found = await self._documents(path, _NODE[self._format])
        if self._format == 2:
            return found[".zarray"] is None and found[".zgroup"] is not None
        return _fields(found["zarr.json"]).get("node_type") == "group" and not _is_consolidated(found)

    def _hide(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        self._ahead.listings[parent].remove(name)

    async def _documents(self, path: str, names: Sequence[str]) -> dict[str, Buffer | None]:
        found = await asyncio.gather(*(self._document(_join(path, name)) for name in names))
        return dict(zip(names, found, strict=True))

    async def _document(self, key: str) -> Buffer | None:
        async with self._asking():
            self._ahead.documents[key] = await self._ahead.itself.get(key, default_buffer_prototype())
        return self._ahead.documents.get(key)

    async def _list(self, path: str) -> list[str]:
        async with self._asking():
            self._ahead.listings[path] = [name async for name in self._ahead.itself.list_dir(path)]
        return list(self._ahead.listings.get(path, []))

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Wait for a slot; take no notice of an error, which comes again when zarr asks the store."""
        self._n_under_way += 1
        try:
            with suppress(Exception):
                async with self._slots:
                    yield
        finally:
            self._n_under_way -= 1


def _join(path: str, name: str) -> str:
    return f"{path}/{name}".strip("/")


def _fields(document: Buffer | None) -> dict[str, Any]:
    """Return the fields of a document, none if it is not readable: zarr will say why."""
    try:
        fields = json.loads(b"" if document is None else document.to_bytes())
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_consolidated(found: dict[str, Buffer | None]) -> bool:
    return _fields(found.get("zarr.json")).get("consolidated_metadata") is not None
