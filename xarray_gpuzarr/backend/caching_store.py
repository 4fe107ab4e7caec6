"""`CachingStore`: wraps a slow store while something is opened, and requests each object and listing once.

Requests that are made ahead answer those of xarray's own opening. A failed one has used up the retries of its client:
it is not made again, and whoever asks for the same gets its error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from xarray.backends import ZarrStore
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

from xarray_gpuzarr.fetch.remote.store_source import requests_at_once

_DOCUMENTS = {
    2: (".zgroup", ".zattrs", ".zmetadata"),
    3: ("zarr.json",),
    None: ("zarr.json", ".zgroup", ".zattrs", ".zmetadata"),
}
"""Requested format -> documents of the first group."""


class CachingStore(WrapperStore[Store]):
    """A store that remembers answers and errors, and makes a bounded number of requests at a time."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.itself = store
        self._answers: dict[str, asyncio.Task[Any]] = {}
        """Key of an object, or path of a group and a slash -> task of the request."""
        self._at_once = requests_at_once()
        self._n_under_way = 0
        self._slots = asyncio.Semaphore(self._at_once)
        self._is_given_up = False
        self._errors: list[Exception] = []
        """Errors in which requests have ended."""

    def __str__(self) -> str:
        return str(self.itself)

    def __repr__(self) -> str:
        return repr(self.itself)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store has consolidated metadata as zarr-python writes them."""
        return self.itself.supports_consolidated_metadata

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object or bytes of it. Bytes of an object that was not requested as a whole are not remembered."""
        if byte_range is not None and self._answer(key) is None:
            return await self._in_turn(lambda: self.itself.get(key, prototype, byte_range))
        # Who is cancelled, since another request has failed, leaves this one to those that ask for the same next.
        whole = await asyncio.shield(self.whole(key))
        return None if whole is None else await MemoryStore({key: whole}).get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Return the names below a path."""
        for name in await asyncio.shield(self.names(prefix)):
            yield name

    def whole(self, key: str) -> asyncio.Task[Buffer | None]:
        """Request an object, and return a task for it."""
        return self._once(key, lambda: self.itself.get(key, cpu.buffer_prototype))

    def names(self, path: str) -> asyncio.Task[list[str]]:
        """Request the names below a path, and return a task for the list."""

        async def all_names() -> list[str]:
            return [name async for name in self.itself.list_dir(path)]

        return self._once(f"{path.strip('/')}/", all_names)

    def documents(self, path: str, names: Iterable[str]) -> list[asyncio.Task[Buffer | None]]:
        """Request objects of a group by their names, and return tasks for them."""
        return [self.whole(f"{path}/{name}".strip("/")) for name in names]

    def has_room(self, n_requests: int) -> bool:
        """Return whether requests would be sent now, without waiting for others."""
        return self._n_under_way + n_requests <= self._at_once

    def give_up(self) -> None:
        """Cancel unanswered requests, and refuse new ones."""
        self._is_given_up = True
        for task in [each for each in list(self._answers.values()) if not each.done()]:
            task.get_loop().call_soon_threadsafe(task.cancel)

    def detach(self, opened: ZarrStore) -> None:
        """Let what was opened through this store read from the store itself."""
        for node in (opened.zarr_group, *opened.members.values()):
            if node.store_path.store is self:
                node.store_path.store = self.itself

    def has_raised(self, err: BaseException) -> bool:
        """Whether an error, or one of its causes, is that of a request."""
        if any(each is err for each in self._errors):
            return True
        return err.__cause__ is not None and self.has_raised(err.__cause__)

    def error_within(self, err: BaseException) -> BaseException | None:
        """Return the first error of a request in a group of errors, or the error itself; None if no request failed."""
        if isinstance(err, BaseExceptionGroup):
            return next(filter(None, map(self.error_within, err.exceptions)), None)
        return err if self.has_raised(err) else None

    def _answer(self, what: str) -> asyncio.Task[Any] | None:
        """Return the task of an earlier request, unless it was cancelled."""
        task = self._answers.get(what)
        return None if task is not None and task.cancelled() else task

    def _once[Answer](self, what: str, request: Callable[[], Coroutine[Any, Any, Answer]]) -> asyncio.Task[Answer]:
        task = self._answer(what)
        if task is None:
            task = self._answers[what] = asyncio.ensure_future(self._in_turn(request))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # asyncio is not to log it
        return task

    async def _in_turn[Answer](self, request: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make a request as soon as there is a slot for it."""
        if self._is_given_up:
            raise asyncio.CancelledError
        self._n_under_way += 1
        try:
            async with self._slots:
                return await request()
        except Exception as err:
            self._errors.append(err)
            raise
        finally:
            self._n_under_way -= 1


async def cached(where: Any, options: Mapping[str, Any]) -> tuple[CachingStore, str]:
    """Return a store that has requested the documents of the group that xarray opens first, and the path in that store.

    `options` are those of `ZarrStore.open_group`.
    """
    at = await make_store_path(where, mode="r", storage_options=options.get("storage_options"))
    cache, names = CachingStore(at.store), _DOCUMENTS[options.get("zarr_format")]
    top = f"{at.path}/{(options.get('group') or '').strip('/')}".strip("/")
    if options.get("consolidated") is not False and getattr(at.store, "supports_consolidated_metadata", True):
        documents = await asyncio.gather(*cache.documents(at.path, names), return_exceptions=True)
        known = {name: each.to_bytes() for name, each in zip(names, documents, strict=True) if isinstance(each, Buffer)}
        if top == at.path or not known or any(b"consolidated" in document for document in known.values()):
            return cache, at.path
        names = _DOCUMENTS[3] if "zarr.json" in known else (".zarray", ".zgroup", ".zattrs")
    await asyncio.gather(*cache.documents(top, names), cache.names(top), return_exceptions=True)
    return cache, at.path


async def store_path_of(where: str, storage_options: dict[str, Any] | None) -> StorePath:
    """Return the store at an address, which may be written to."""
    return await make_store_path(where, mode="a", storage_options=storage_options)


def takes_long(where: object) -> bool:
    """Return whether a store is slow, so that requests should be concurrent."""
    store = where.store if isinstance(where, StorePath) else where
    if isinstance(store, str):
        return "://" in store
    return not isinstance(store, os.PathLike | dict | LocalStore | MemoryStore | ZipStore)
