"""`ObjectWriter`: carry out a `WriteCall`, some objects at a time, to files or to any other store."""

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
from xarray_gpuzarr.fetch.object_names import place_of, written
from xarray_gpuzarr.fetch.remote.store_source import requests_at_once
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop
from xarray_gpuzarr.fetch.source import ObjectChangedError, ObjectSource, is_obstore_memory
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read import StoredArray, read_target
from xarray_gpuzarr.read.stopping import Stop, on_thread, read_threads
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.write.call import DamagedObjectError, WriteCall, WrittenObject
from xarray_gpuzarr.write.object_locks import turns
from xarray_gpuzarr.write.puts import put
from xarray_gpuzarr.write.refusals import naming_object
from xarray_gpuzarr.write.writes_behind import Encoding, WritesBehind

_GROUP_NBYTES, _THREAD_NBYTES = 128 * 1024 * 1024, 16 * 1024 * 1024
"""Decoded bytes of the objects of one call, or so many for each thread; a write may be stopped between two calls."""
_LITTLE_NBYTES = 256 * 1024
"""Decoded bytes that are written on the event loop, in under 1 ms: reaching a thread takes as long."""
_ATTEMPTS = 5
"""Attempts to write a file that other processes keep replacing."""


class ObjectWriter:
    """Writes shards, and chunks that are objects, of one array to its store.

    Writes of this process to one object take turns. Errors are those of `WriteCall`, and `StoreWriteError`.
    """

    def __init__(self, stored: StoredArray, store: Store) -> None:
        assert isinstance(stored.spec, ArraySpec)
        assert stored.source is not None
        self._stored, self._spec, self._store = stored, stored.spec, store
        self._source: ObjectSource = stored.source
        self._place = place_of(store, stored.spec.path)

    async def write(self, call: WriteCall, encoding: Encoding | None = None) -> Sequence[WrittenObject]:
        """Write on a thread, if it takes long; return the objects that only zarr-python can write.

        Those hold chunks that the compiled loops cannot decode. `encoding` is told when all others are encoded.
        """
        unwritten = list(call.objects)
        try:
            for group in _groups(call):
                is_last = len(group) == len(unwritten)
                async with turns.of(self._place, [each.key for each in group]) as names:
                    if isinstance(self._source, LocalSource):
                        await _run(call, partial(_to_files, call, group, self._source))
                    else:
                        await self._to_store(call, group, encoding, is_last=is_last)
                self._forget_indexes(group, names)
                del unwritten[: len(group)]
        except DamagedObjectError as err:
            await on_thread(partial(self._explain, err), read_threads(None))
            return unwritten
        return ()

    def write_now(self, call: WriteCall, behind: WritesBehind | None = None) -> bool:
        """Write on this thread; return False if zarr-python has to write all of it again.

        It waits for the store, unless `behind` does so later.
        """
        if not isinstance(self._source, LocalSource):
            if behind is not None:
                return not behind.write(self._source.name, partial(self.write, call))
            return not run_on_loop(self._source.name, partial(self.write, call))
        try:
            for group in _groups(call):
                with turns.held(self._place, [each.key for each in group]) as names:
                    _to_files(call, group, self._source, Stop())
                self._forget_indexes(group, names)
        except DamagedObjectError as err:
            self._explain(err, Stop())
            return False
        return True

    def _forget_indexes(self, group: Sequence[WrittenObject], names: Sequence[Hashable]) -> None:
        """Let no read use the indexes of shards that were there before; `names` are those of the objects."""
        if self._spec.index is not None:
            written.add(names)
            for each in group:
                index_cache.cache.drop((self._source.identity, each.key, self._spec.index))

    async def _to_store(
        self, call: WriteCall, group: Sequence[WrittenObject], encoding: Encoding | None, *, is_last: bool
    ) -> None:
        """Assemble the objects of a group in memory, and pass them to the store."""
        keys = [each.key for each in group]
        needed = [each.key for each in group if each.needs_old]
        old = dict(zip(needed, await _some_at_once(self._stored_bytes, needed), strict=True))
        # Stores of objects in memory keep what they are handed; fsspec's get a copy by zarr-python.
        may_share = isinstance(self._store, ObjectStore) and not is_obstore_memory(self._store.store)
        encoded = await _run(call, lambda _: call.to_memory(group, [*map(old.get, keys)], may_share=may_share))
        if encoding is not None:
            encoding.add(sum(len(data) for data in encoded if data is not None))
            if is_last:
                encoding.end()
        await _some_at_once(self._put, keys, encoded)

    async def _stored_bytes(self, key: str) -> memoryview | None:
        """Return what is stored under a key."""
        with naming_object(self._spec, key, self._source.name, "to read the part that stays"):
            stored = await self._store.get(key, cpu.buffer_prototype)
        return None if stored is None else memoryview(stored.as_buffer_like())

    async def _put(self, key: str, data: npt.NDArray[np.uint8] | None) -> None:
        """Store an object, or remove it."""
        if data is None:
            with naming_object(self._spec, key, self._source.name, "to remove it, since all of it is the fill value"):
                await self._store.delete(key)
        else:
            with naming_object(self._spec, key, self._source.name, f"to store {len(data)} bytes"):
                await put(self._store, key, data)

    def _explain(self, err: DamagedObjectError, _: Stop) -> None:
        """Read a damaged chunk, which raises the error about it, unless only the loops cannot decode it."""
        grid = self._spec.grid
        bounds = [(c * n, (c + 1) * n) for c, n in zip(err.chunk, grid.chunk_shape, strict=True)]
        shape = tuple([end for _, end in bounds])
        selection = outer_selection(tuple([slice(*each) for each in bounds]), shape)
        with naming_object(self._spec, err.key, self._source.name, "to read the part that stays"):
            read_target(self._stored, self._spec, box_target(selection, grid, shape), decoder_for("host"))


def _groups(call: WriteCall) -> Iterator[Sequence[WrittenObject]]:
    """Return the objects of a call, as many at a time as are encoded together."""
    group_nbytes = max(_GROUP_NBYTES, _THREAD_NBYTES * call.n_threads)
    n_at_once = group_nbytes // max(1, call.object_nbytes)
    # `batched` allocates room for as many as it may yield at once.
    return batched(call.objects, min(max(1, n_at_once), max(1, len(call.objects))))


async def _run[Result](call: WriteCall, write: Callable[[Stop], Result]) -> Result:
    """Return the result of `write`, which runs on a thread unless it is very short."""
    nbytes = len(call.objects) * call.object_nbytes
    return write(Stop()) if nbytes <= _LITTLE_NBYTES else await on_thread(write, read_threads(None))


def _to_files(call: WriteCall, group: Sequence[WrittenObject], source: LocalSource, stop: Stop) -> None:
    for attempt in range(_ATTEMPTS):
        stop.check()
        try:
            call.to_files(group, source)
            break
        except ObjectChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise call.changed(group).within(source.name) from None


async def _some_at_once[Result](request: Callable[..., Awaitable[Result]], *arguments: Iterable[Any]) -> list[Result]:
    """Make as many concurrent requests as a read does; after a failure, none continues."""
    limit = asyncio.Semaphore(requests_at_once())

    async def one(*argument: Any) -> Result:
        async with limit:
            return await request(*argument)

    tasks = [asyncio.ensure_future(one(*argument)) for argument in zip(*arguments, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
