"""`StagedStore`: keeps the metadata of a new store in memory until they are complete, then sends them together.

xarray and zarr-python write groups, arrays and attributes with consecutive requests, and ask before each what is stored
already. Below a path that was found empty, or was emptied, this store answers such questions without a request.
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
from xarray_gpuzarr.fetch.remote.request_limits import max_concurrent_requests
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.fetch.stores import is_obstore_memory


class StagedStore(WrapperStore[Store]):
    """A store that keeps all objects but the first in memory until `send` is called.

    The first object, the metadata of a group, is stored at once, so that a store which refuses objects raises its error
    before anything is encoded. Chunks are not written through this store; see `detach`.

    Parameters
    ----------
    store : zarr.abc.store.Store
        A store that may be written to.
    is_own : bool
        Whether `close` closes the inner store.
    """

    def __init__(self, store: Store, *, is_own: bool = False) -> None:
        super().__init__(store)
        self.inner = store
        self._is_own = is_own
        self._staged = MemoryStore()
        self._unsent: dict[str, Buffer] = {}
        """Staged objects that were not sent to `inner` yet."""
        self._complete_paths: set[str] = set()
        """Paths below which every object of `inner` is also in `_staged`, so that `inner` need not be asked."""
        self._sent: set[str] = set()
        """Keys of the objects that were sent to `inner`."""

    @classmethod
    def of(cls, store: Any, options: Mapping[str, Any]) -> Self | None:
        """Return a staged store for a write that makes a new store on a server.

        Parameters
        ----------
        store
            The store, as for `xarray.Dataset.to_zarr`.
        options : mapping
            Options of `to_zarr`.

        Returns
        -------
        StagedStore or None
            None for stores that are not on a server, and for classes other than zarr-python's own: versioned stores,
            for example, may need metadata before chunks.
        """
        storage_options = options.get("storage_options")
        if isinstance(store, str) and "://" in store and "::" not in store:
            store_path = run_on_loop(store, partial(store_path_of, store, storage_options))
            store = store_path.store  # which begins at the URL, so the path in it is empty
            is_own = True
        elif isinstance(store, Store) and not storage_options:
            is_own = False
        else:
            return None
        if not isinstance(store, FsspecStore | ObjectStore) or store.read_only:
            return None
        if isinstance(store, ObjectStore) and is_obstore_memory(store.store):
            return None
        return cls(store, is_own=is_own)

    def __str__(self) -> str:
        return str(self.inner)

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store supports consolidated metadata."""
        return self.inner.supports_consolidated_metadata

    async def is_empty(self, prefix: str) -> bool:
        """Return whether nothing is stored below a path."""
        if self._memory_answers_for(prefix):
            return await self._staged.is_empty(prefix)
        is_empty = await self._staged.is_empty(prefix) and await self.inner.is_empty(prefix)
        if is_empty:
            self._complete_paths.add(prefix.strip("/"))
        return is_empty

    async def delete_dir(self, prefix: str) -> None:
        """Remove all objects below a path."""
        if not self._memory_answers_for(prefix):
            await self.inner.delete_dir(prefix)
            self._complete_paths.add(prefix.strip("/"))
        for key in [key async for key in self._staged.list_prefix(_folder(prefix))]:
            await self.delete(key)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object, or a byte range of it; None if there is no such object."""
        if await self._staged.exists(key) or self._memory_answers_for(key):
            return await self._staged.get(key, prototype, byte_range)
        return await self.inner.get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Return whether there is an object."""
        return await self._staged.exists(key) or (not self._memory_answers_for(key) and await self.inner.exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Keep an object until `send`. The first one is sent to the inner store at once."""
        if self._sent:
            self._unsent[key] = value
        else:
            await self.inner.set(key, value)
            self._sent.add(key)
        await self._staged.set(key, cpu.Buffer.from_bytes(value.to_bytes()))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Keep an object, unless there is one with this key."""
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self._unsent.pop(key, None)
        await self._staged.delete(key)
        if key in self._sent or not self._memory_answers_for(key):
            await self.inner.delete(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names below a path."""
        names = {name: None async for name in self._staged.list_dir(prefix)}
        if not self._memory_answers_for(prefix):
            names |= {name.rstrip("/"): None async for name in self.inner.list_dir(prefix)}
        for name in names:
            yield name

    def close(self) -> None:
        """Close the inner store if `of` has opened it."""
        if self._is_own:
            self.inner.close()

    def send(self) -> None:
        """Send all objects that are kept to the inner store, many at a time.

        Those of the outermost group come last, since its metadata may describe all others.

        Raises
        ------
        Exception
            What the store raises.
        """
        run_on_loop(str(self), self._send)

    def detach(self, node: Any) -> None:
        """Make a group or an array of zarr-python use the inner store from now on."""
        if node.store_path.store is self:
            node.store_path.store = self.inner

    async def _send(self) -> None:
        """Send all objects that are kept, those of the outermost group last."""
        unsent = self._unsent
        self._unsent = {}
        self._sent |= unsent.keys()
        outermost_depth = min(key.count("/") for key in unsent) if unsent else 0
        limit = asyncio.Semaphore(max_concurrent_requests())

        async def send_object(key: str) -> None:
            async with limit:
                await self.inner.set(key, unsent[key])

        await asyncio.gather(*[send_object(key) for key in unsent if key.count("/") > outermost_depth])
        await asyncio.gather(*[send_object(key) for key in unsent if key.count("/") == outermost_depth])

    def _memory_answers_for(self, key: str) -> bool:
        """Whether a key or path is one of `_complete_paths`, or lies below one of them."""
        parts = key.strip("/").split("/")
        return any("/".join(parts[:n]) in self._complete_paths for n in range(len(parts) + 1))


def _folder(prefix: str) -> str:
    """Return the prefix of the keys below a path."""
    return f"{prefix.strip('/')}/".lstrip("/")
