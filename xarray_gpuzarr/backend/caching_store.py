"""`CachingStore`: wraps a slow store while something is opened, and requests each object and listing once.

This package requests many objects concurrently. xarray, which then reads one after another through the same
`CachingStore`, gets their answers. A failed request is not repeated, since the store's client has already retried it:
later requests for the same object raise the same error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from xarray.backends import ZarrStore
from zarr import Array
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import cpu
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore
from zarr.storage._common import make_store_path

from xarray_gpuzarr.codec_pipeline import CodecPipeline
from xarray_gpuzarr.fetch.remote.request_limits import max_concurrent_requests
from xarray_gpuzarr.fetch.remote.store_source import StoreSource

_GROUP_DOCUMENTS = {
    2: (".zgroup", ".zattrs", ".zmetadata"),
    3: ("zarr.json",),
    None: ("zarr.json", ".zgroup", ".zattrs", ".zmetadata"),
}
"""The argument `zarr_format` -> names of the metadata documents that a group of this format may have."""


class CachingStore(WrapperStore[Store]):
    """A store that remembers answers and errors, and makes a bounded number of requests at a time.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store to read from, opened read-only. Of others, zarr-python makes copies by `with_read_only`; such a
        copy would be another cache, which nothing gives up or detaches.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.wrapped_store = store
        self._requests: dict[str, asyncio.Task[Any]] = {}
        """Key of an object, or path of a listing with a slash at its end -> task of the request."""
        self._max_requests = max_concurrent_requests()
        self._n_requests = 0
        """Number of requests that are under way or wait until others are answered."""
        self._limit = asyncio.Semaphore(self._max_requests)
        self._is_given_up = False
        self._errors: list[Exception] = []
        """Errors of failed requests."""

    def __str__(self) -> str:
        return str(self.wrapped_store)

    def __repr__(self) -> str:
        return repr(self.wrapped_store)

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store can hold consolidated metadata as zarr-python writes them."""
        return self.wrapped_store.supports_consolidated_metadata

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return an object or a byte range of it; None if there is no such object.

        A byte range is cut from the object if the whole object was requested before. Otherwise it is requested anew.
        """
        if byte_range is not None and self._earlier_request(key) is None:
            return await self._request_within_limit(lambda: self.wrapped_store.get(key, prototype, byte_range))
        # A caller may be cancelled because another request has failed. The request then goes on for later callers.
        content = await asyncio.shield(self.request_object(key))
        if content is None:
            return None
        return await MemoryStore({key: content}).get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a path."""
        for name in await asyncio.shield(self.request_listing(prefix)):
            yield name

    def request_object(self, key: str) -> asyncio.Task[Buffer | None]:
        """Request an object unless that was done before, and return the task of the request."""
        return self._request_once(key, lambda: self.wrapped_store.get(key, cpu.buffer_prototype))

    def request_listing(self, path: str) -> asyncio.Task[list[str]]:
        """Request the names directly below a path unless that was done before, and return the task of the request."""

        async def list_names() -> list[str]:
            return [name async for name in self.wrapped_store.list_dir(path)]

        return self._request_once(f"{path.strip('/')}/", list_names)

    def request_documents(self, path: str, names: Iterable[str]) -> list[asyncio.Task[Buffer | None]]:
        """Request the objects of these names in a group, and return the tasks of the requests."""
        return [self.request_object(f"{path}/{name}".strip("/")) for name in names]

    def has_room(self, n_requests: int) -> bool:
        """Return whether this number of new requests could be sent now, without waiting for others to be answered."""
        return self._n_requests + n_requests <= self._max_requests

    def give_up(self) -> None:
        """Cancel unanswered requests, and refuse new ones, which coroutines that still run may make."""
        self._is_given_up = True
        for task in list(self._requests.values()):
            if not task.done():
                task.get_loop().call_soon_threadsafe(task.cancel)

    def detach(self, opened: ZarrStore) -> None:
        """Make a group that was opened through this store, and its members, read from the wrapped store."""
        for node in (opened.zarr_group, *opened.members.values()):
            if node.store_path.store is self:
                node.store_path.store = self.wrapped_store
            if isinstance(node, Array) and isinstance(node.async_array.codec_pipeline, CodecPipeline):
                node.async_array.codec_pipeline.use_store(self.wrapped_store)

    def has_raised(self, err: BaseException) -> bool:
        """Return whether an error, or one of its causes, is that of a failed request."""
        if any(request_error is err for request_error in self._errors):
            return True
        return err.__cause__ is not None and self.has_raised(err.__cause__)

    def find_request_error(self, err: BaseException) -> BaseException | None:
        """Return the error if a failed request has raised or caused it, else None.

        In a group of errors, the first such error is returned.
        """
        if isinstance(err, BaseExceptionGroup):
            return next(filter(None, map(self.find_request_error, err.exceptions)), None)
        return err if self.has_raised(err) else None

    def _earlier_request(self, key: str) -> asyncio.Task[Any] | None:
        """Return the task of an earlier request. None if there is none, or if it was cancelled."""
        task = self._requests.get(key)
        return None if task is not None and task.cancelled() else task

    def _request_once[Answer](
        self, key: str, request: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> asyncio.Task[Answer]:
        """Return the task of the earlier request that has the same key in `_requests`, or that of a new request."""
        task = self._earlier_request(key)
        if task is None:
            task = self._requests[key] = asyncio.ensure_future(self._request_within_limit(request))
            # Retrieving the exception keeps asyncio from logging that it was never retrieved.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _request_within_limit[Answer](self, request: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Make a request as soon as fewer than `_max_requests` others are sent."""
        if self._is_given_up:
            raise asyncio.CancelledError
        self._n_requests += 1
        try:
            async with self._limit:
                return await request()
        except Exception as err:
            self._errors.append(err)
            raise
        finally:
            self._n_requests -= 1


async def open_caching_store(location: Any, options: Mapping[str, Any]) -> tuple[CachingStore, str]:
    """Wrap a store, and request the metadata documents that xarray needs to open a group in it.

    Parameters
    ----------
    location : path, URL or zarr store
    options : mapping
        Keywords of xarray's `ZarrStore.open_group`.

    Returns
    -------
    store : CachingStore
        The store, which has the answers of the requests.
    path : str
        Path of `location` in the store.

    Raises
    ------
    StoreReadError
        If the parent of this forked process has used the store's client.
    """
    root = await make_store_path(location, mode="r", storage_options=options.get("storage_options"))
    StoreSource(store=root.store).require_usable()
    cache = CachingStore(root.store)
    names = _GROUP_DOCUMENTS[options.get("zarr_format")]
    group = (options.get("group") or "").strip("/")
    group_path = f"{root.path}/{group}".strip("/")
    if options.get("consolidated") is not False and getattr(root.store, "supports_consolidated_metadata", True):
        answers = await asyncio.gather(*cache.request_documents(root.path, names), return_exceptions=True)
        documents = {
            name: answer.to_bytes() for name, answer in zip(names, answers, strict=True) if isinstance(answer, Buffer)
        }
        # Consolidated metadata have the key "consolidated_metadata" in format 3, and in format 2
        # "zarr_consolidated_format". If the word occurs elsewhere, the group is not requested in advance, which only
        # takes longer.
        is_consolidated = any(b"consolidated" in document for document in documents.values())
        # Nothing more is requested if the group is the root, or if the consolidated metadata of the root describe it.
        # xarray opens the root first, so it needs nothing more either if there is no group at the root.
        if group_path == root.path or not documents or is_consolidated:
            return cache, root.path
        # xarray opens the group as a member of the root, and zarr-python first asks if this member is an array.
        names = _GROUP_DOCUMENTS[3] if "zarr.json" in documents else (".zarray", ".zgroup", ".zattrs")
    # Without consolidated metadata, only the listing tells which members there are. It is requested together with the
    # documents. In the case above, `walk_on_loop` requests it, after the documents of the root have been answered.
    requests = [*cache.request_documents(group_path, names), cache.request_listing(group_path)]
    await asyncio.gather(*requests, return_exceptions=True)
    return cache, root.path


async def store_path_of(address: str, storage_options: dict[str, Any] | None) -> StorePath:
    """Return the store at a path or URL, opened for writing, and the path in it."""
    return await make_store_path(address, mode="a", storage_options=storage_options)


def takes_long(location: object) -> bool:
    """Return whether a path, URL or store is slow to answer, so that requests should be concurrent.

    Local folders, zip files and memory are fast. All other stores count as slow, and so does every URL, also one with
    ``file://``. A text without "://" is a local path.
    """
    store = location.store if isinstance(location, StorePath) else location
    if isinstance(store, str):
        return "://" in store
    return not isinstance(store, os.PathLike | dict | LocalStore | MemoryStore | ZipStore)
