"""`ObjectWriter`: carry out a `WriteCall`, a group of objects at a time, for files or any other store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import batched
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import ObjectStore

from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.object_names import place_of_source, written
from xarray_gpuzarr.fetch.remote.request_limits import max_concurrent_requests
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError
from xarray_gpuzarr.fetch.stores import is_obstore_memory
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read import StoredArray, read_target
from xarray_gpuzarr.read.stopping import Stop, on_thread, read_threads
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.write.call import WriteCall
from xarray_gpuzarr.write.object_locks import turns
from xarray_gpuzarr.write.puts import put
from xarray_gpuzarr.write.refusals import naming_object, replaced_error
from xarray_gpuzarr.write.writes_behind import EncodingProgress, WritesBehind
from xarray_gpuzarr.write.written_object import DamagedObjectError, WrittenObject

_GROUP_NBYTES = 128 * 1024 * 1024
"""Decoded bytes of the objects that one call of the loops writes. A write can be stopped between two calls."""
_THREAD_GROUP_NBYTES = 16 * 1024 * 1024
"""Decoded bytes for each thread in one call of the loops, if that is more than `_GROUP_NBYTES` for all threads."""
_SMALL_WRITE_NBYTES = 256 * 1024
"""Writes of at most so many decoded bytes run on the event loop. They take under 1 ms, about as long as it takes to
hand them to another thread."""
_ATTEMPTS = 5
"""Number of attempts to write a group of files, if other processes keep replacing one of them."""


class ObjectWriter:
    """Writes the shards, or the unsharded chunks, of one array to its store.

    Writes of this process to one object take turns.

    Parameters
    ----------
    stored : StoredArray
        The array, which this package can read.
    store : zarr.abc.store.Store
        Its store, which may be written to.
    """

    def __init__(self, stored: StoredArray, store: Store) -> None:
        assert isinstance(stored.spec, ArraySpec)
        assert stored.source is not None
        self._stored = stored
        self._spec = stored.spec
        self._store = store
        self._source: ObjectSource = stored.source
        self._identity = stored.source.identity
        place = place_of_source(stored.source, stored.spec.path)
        assert place is not None
        self._place = place

    async def write(self, call: WriteCall, progress: EncodingProgress | None = None) -> Sequence[WrittenObject]:
        """Carry out a write, on another thread unless it is small.

        Parameters
        ----------
        call : WriteCall
            The write.
        progress : EncodingProgress, optional
            Is told how many bytes are encoded so far, and when all objects are encoded.

        Returns
        -------
        sequence of WrittenObject
            The objects that are left to zarr-python, because the compiled loops cannot decode a chunk that is written
            in part: all objects of its group, some of which may have been written already, and of later groups.
            Usually empty.

        Raises
        ------
        StoreWriteError
            If the store does not take an object, or another process keeps replacing it.
        StoreReadError
            If the parent of this forked process has used the store's client.
        GpuZarrError
            Other errors of `WriteCall.to_files` and `WriteCall.to_memory`. For a chunk that the host decoder cannot
            decode either, its errors.
        """
        unwritten = list(call.objects)
        if isinstance(self._source, StoreSource):
            self._source.require_usable()
        try:
            for group in _groups(call):
                is_last = len(group) == len(unwritten)
                async with turns.hold_async(self._place, [obj.key for obj in group]) as names:
                    if isinstance(self._source, LocalSource):
                        await _run(call, partial(_write_files, call, group, self._source))
                    else:
                        await self._to_store(call, group, progress, is_last=is_last)
                if self._spec.index is not None:
                    self._forget_indexes(group, names)
                del unwritten[: len(group)]
        except DamagedObjectError as err:
            await on_thread(partial(self._check_readable, err), read_threads(None))
            return unwritten
        return ()

    def write_now(self, call: WriteCall, behind: WritesBehind | None = None) -> bool:
        """Carry out a write on this thread.

        Parameters
        ----------
        call : WriteCall
            The write.
        behind : WritesBehind, optional
            Waits for stores other than local files, in the background. Without it, this thread waits.

        Returns
        -------
        bool
            False if zarr-python has to write everything again, because the loops cannot decode a chunk.

        Raises
        ------
        GpuZarrError
            As for `write`.
        """
        if not isinstance(self._source, LocalSource):
            left_objects: Sequence[WrittenObject] | None
            if behind is None:
                left_objects = run_on_loop(self._source.name, partial(self.write, call))
            else:  # None if encoded objects are still being sent: the loops have decoded all chunks that they had to
                left_objects = behind.write(self._source.name, partial(self.write, call))
            return not left_objects
        try:
            for group in _groups(call):
                with turns.hold(self._place, [obj.key for obj in group]) as names:
                    _write_files(call, group, self._source)
                if self._spec.index is not None:
                    self._forget_indexes(group, names)
        except DamagedObjectError as err:
            self._check_readable(err, Stop())
            return False
        return True

    def _forget_indexes(self, group: Sequence[WrittenObject], names: Sequence[Hashable]) -> None:
        """Keep reads from using the old indexes of shards that were written.

        `names` are those that `turns` gave for the objects of the group.
        """
        written.add(names)
        for obj in group:
            index_cache.cache.drop((self._identity, obj.key, self._spec.index))

    async def _to_store(
        self, call: WriteCall, group: Sequence[WrittenObject], progress: EncodingProgress | None, *, is_last: bool
    ) -> None:
        """Assemble the objects of a group in memory, and send them to the store."""
        keys = [obj.key for obj in group]
        keys_to_read = [obj.key for obj in group if obj.needs_stored]
        answers = await _run_concurrently(self._stored_bytes, keys_to_read)
        stored = dict(zip(keys_to_read, answers, strict=True))
        # The encoded bytes may share memory with the caller's array only if the store sends them. obstore's store in
        # memory keeps them instead. For fsspec's stores, zarr-python copies them anyway.
        may_share = isinstance(self._store, ObjectStore) and not is_obstore_memory(self._store.store)
        encoded = await _run(call, lambda _: call.to_memory(group, [*map(stored.get, keys)], may_share=may_share))
        if progress is not None:
            progress.add(sum(len(data) for data in encoded if data is not None))
            if is_last:
                progress.end()
        await _run_concurrently(self._put, keys, encoded)

    async def _stored_bytes(self, key: str) -> memoryview | None:
        """Return all bytes of an object; None if it is not stored."""
        with naming_object(self._spec, key, self._source.name, "to read the part that stays"):
            stored = await self._store.get(key, cpu.buffer_prototype)
        return None if stored is None else memoryview(stored.as_buffer_like())

    async def _put(self, key: str, data: npt.NDArray[np.uint8] | None) -> None:
        """Store an object, or remove it if `data` is None, since it holds only the fill value."""
        if data is None:
            with naming_object(self._spec, key, self._source.name, "to remove it, since all of it is the fill value"):
                await self._store.delete(key)
        else:
            with naming_object(self._spec, key, self._source.name, f"to store {len(data)} bytes"):
                await put(self._store, key, data)

    def _check_readable(self, err: DamagedObjectError, _: Stop) -> None:
        """Read a chunk that the loops cannot decode, by the host decoder.

        If this decoder cannot decode the chunk either, its error names the damage.
        """
        grid = self._spec.grid
        bounds = [(c * n, (c + 1) * n) for c, n in zip(err.chunk, grid.chunk_shape, strict=True)]
        shape = tuple([stop for _, stop in bounds])  # of the array up to the end of the chunk
        selection = outer_selection(tuple([slice(start, stop) for start, stop in bounds]), shape)
        with naming_object(self._spec, err.key, self._source.name, "to read the part that stays"):
            read_target(self._stored, self._spec, box_target(selection, grid, shape), decoder_for("host"))


def _groups(call: WriteCall) -> Iterator[Sequence[WrittenObject]]:
    """Return the objects of a call in groups, each of which one call of the loops writes."""
    group_nbytes = max(_GROUP_NBYTES, _THREAD_GROUP_NBYTES * call.max_threads)
    n_per_group = max(1, group_nbytes // max(1, call.object_nbytes))
    # `batched` allocates a tuple of the length that it is given, so this is no more than there are objects.
    n_objects = max(1, len(call.objects))
    return batched(call.objects, min(n_per_group, n_objects))


async def _run[Result](call: WriteCall, write: Callable[[Stop], Result]) -> Result:
    """Return the result of `write`, which runs on another thread unless the whole call is small."""
    nbytes = len(call.objects) * call.object_nbytes
    if nbytes <= _SMALL_WRITE_NBYTES:
        return write(Stop())
    return await on_thread(write, read_threads(None))


def _write_files(
    call: WriteCall, group: Sequence[WrittenObject], source: LocalSource, stop: Stop | None = None
) -> None:
    """Write a group of objects as files. Begin again, a few times, if another process has replaced one meanwhile.

    Raises `CancelledError` before an attempt if `stop` is set. Without `stop`, the write cannot be stopped.
    """
    for attempt in range(_ATTEMPTS):
        if stop is not None:
            stop.check()
        try:
            call.to_files(group, source)
            break
        except ObjectChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise replaced_error(call.spec, group[0].key, len(group)).within(source.name) from None


async def _run_concurrently[Result](
    request: Callable[..., Awaitable[Result]], *arguments: Iterable[Any]
) -> list[Result]:
    """Return the results of requests. As many run at once as for a read. If one fails, the others are cancelled."""
    limit = asyncio.Semaphore(max_concurrent_requests())

    async def run_one(*argument: Any) -> Result:
        async with limit:
            return await request(*argument)

    tasks = [asyncio.ensure_future(run_one(*argument)) for argument in zip(*arguments, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
