"""`StagedStore`: keeps metadata of a new store in memory until all are known, then sends them together.

xarray and zarr-python write each group, array and attribute by requests that follow one another, and ask before each
what is there. Below a path that they have found empty, or have emptied, this store knows the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Self

from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, WrapperStore

from xarray_gpuzarr.backend.caching_store import store_path_of
from xarray_gpuzarr.fetch.remote.store_source import requests_at_once
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.fetch.stores import is_obstore_memory


class StagedStore(WrapperStore[Store]):
    """A store that keeps the objects that it is given, but for the first one, until `send`.

    The first one, the metadata of a group, is stored at once: a store that takes no objects is an error before anything
    is encoded. Chunks are not written through it: see `detach`.

    Parameters
    ----------
    store : zarr.abc.store.Store
        A store that may be written to.
    is_own : bool
        Whether `close` closes the store.
    """

    def __init__(self, store: Store, *, is_own: bool = False) -> None:
        super().__init__(store)
        self.itself = store
        self._is_own = is_own
        self._staged = MemoryStore()
        self._unsent: dict[str, Buffer] = {}
        """Staged objects that the store does not have."""
        self._known: set[str] = set()
        """Paths below which the store has nothing but what is staged."""
        self._stored: set[str] = set()
        """Keys of the objects that have been stored through this one."""

    @classmethod
    def of(cls, where: Any, options: Mapping[str, Any]) -> Self | None:
        """Return a staged store where `to_zarr` begins a store anew on a server; None for others.

        `options` are those of `to_zarr`. Stores other than zarr-python's own, such as those that are versioned, may
        want metadata before chunks.
        """
        storage_options = options.get("storage_options")
        if isinstance(where, str) and "://" in where and "::" not in where:
            path = run_on_loop(where, partial(store_path_of, where, storage_options))
            store, is_own = path.store, True
        elif isinstance(where, Store) and not storage_options:
            store, is_own = where, False
        else:
            return None
        if not isinstance(store, FsspecStore | ObjectStore) or store.read_only:
            return None
        if isinstance(store, ObjectStore) and is_obstore_memory(store.store):
            return None
        return cls(store, is_own=is_own)

    def __str__(self) -> str:
        return str(self.itself)

    def __repr__(self) -> str:
        return repr(self.itself)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store has consolidated metadata as zarr-python writes them."""
        return self.itself.supports_consolidated_metadata

    async def is_empty(self, prefix: str) -> bool:
        """Return whether nothing is stored below a path."""
        if self._is_known(prefix):
            return await self._staged.is_empty(prefix)
        is_empty = await self._staged.is_empty(prefix) and await self.itself.is_empty(prefix)
        if is_empty:
            self._known.add(prefix.strip("/"))
        return is_empty

    async def delete_dir(self, prefix: str) -> None:
        """Remove what is below a path."""
        if not self._is_known(prefix):
            await self.itself.delete_dir(prefix)
            self._known.add(prefix.strip("/"))
        for key in [key async for key in self._staged.list_prefix(_folder(prefix))]:
            await self.delete(key)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object or bytes of it."""
        if await self._staged.exists(key) or self._is_known(key):
            return await self._staged.get(key, prototype, byte_range)
        return await self.itself.get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Return whether there is an object."""
        return await self._staged.exists(key) or (not self._is_known(key) and await self.itself.exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Keep an object; store the first one."""
        if self._stored:
            self._unsent[key] = value
        else:
            await self.itself.set(key, value)
            self._stored.add(key)
        await self._staged.set(key, cpu.Buffer.from_bytes(value.to_bytes()))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Keep an object, unless there is one."""
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self._unsent.pop(key, None)
        await self._staged.delete(key)
        if key in self._stored or not self._is_known(key):
            await self.itself.delete(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names below a path."""
        names = {name: None async for name in self._staged.list_dir(prefix)}
        if not self._is_known(prefix):
            names |= {name.rstrip("/"): None async for name in self.itself.list_dir(prefix)}
        for name in names:
            yield name

    def close(self) -> None:
        """Close the store if this object has opened it."""
        if self._is_own:
            self.itself.close()

    def send(self) -> None:
        """Store what is kept, many objects at a time; last those of the outermost group, which may describe all others.

        Raises
        ------
        Exception
            What the store raises.
        """
        run_on_loop(str(self), self._send)

    def detach(self, node: Any) -> None:
        """Let a group or an array of zarr-python use the store itself."""
        if node.store_path.store is self:
            node.store_path.store = self.itself

    async def _send(self) -> None:
        unsent, self._unsent = self._unsent, {}
        self._stored |= unsent.keys()
        outermost = min(key.count("/") for key in unsent) if unsent else 0
        limit = asyncio.Semaphore(requests_at_once())

        async def store(key: str) -> None:
            async with limit:
                await self.itself.set(key, unsent[key])

        await asyncio.gather(*[store(key) for key in unsent if key.count("/") > outermost])
        await asyncio.gather(*[store(key) for key in unsent if key.count("/") == outermost])

    def _is_known(self, key: str) -> bool:
        """Whether all that is stored under a key, or below a path, is staged."""
        parts = key.strip("/").split("/")
        return any("/".join(parts[:n]) in self._known for n in range(len(parts) + 1))


def _folder(prefix: str) -> str:
    """Return the prefix of the keys below a path."""
    return f"{prefix.strip('/')}/".lstrip("/")
