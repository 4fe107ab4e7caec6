"""Writing for the codec pipeline: a batch of chunks becomes one selection, written object by object.

Where zarr-python's own pipeline has to write, nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import batched
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import ByteSetter, Store
from zarr.buffer import cpu
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec
from zarr.core.buffer import NDBuffer
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import ObjectStore, StorePath

from xarray_gpuzarr.codec_pipeline.batches import Coord, coords_of, requested
from xarray_gpuzarr.codec_pipeline.reading import array_path, device_of, planned_array
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import ObjectChangedError, is_obstore_memory
from xarray_gpuzarr.plan.read_plan import box_target
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.read import StoredArray, read_target
from xarray_gpuzarr.read.stopping import Stop, on_thread, read_threads
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import Metadata
from xarray_gpuzarr.write.call import DamagedObjectError, WriteCall, WrittenObject
from xarray_gpuzarr.write.encoder import Encoder, encoder_of
from xarray_gpuzarr.write.object_locks import root_of, turns
from xarray_gpuzarr.write.refusals import naming_object

Item = tuple[ByteSetter, ZarrChunkSpec, Any, Any, bool]
"""A shard or chunk to write: setter, spec, selection within it, selection of the value, whether it is all."""
_GROUP_NBYTES, _THREAD_NBYTES = 128 * 1024 * 1024, 16 * 1024 * 1024
"""Decoded bytes of the objects of one call, or so many for each thread; a write may be stopped between two calls."""
_FEW_OBJECTS = 4
"""At most so many objects are planned on the event loop."""
_LITTLE_NBYTES = 256 * 1024
"""Decoded bytes that are written on the event loop, in under 1 ms: reaching a thread takes as long."""
_ATTEMPTS = 5
"""Attempts to write a file that other processes keep replacing."""


def encoder_for(metadata: Metadata, spec: ArraySpec) -> Encoder | str:
    """Return how the loops encode the chunks of an array, or why zarr-python has to."""
    if "\0" in spec.path:  # the loops would cut the name there, and write another file
        return "a name that no file can have is zarr-python's to refuse"
    order = "morton"
    if isinstance(metadata, ArrayV3Metadata):
        sharding = next((c for c in metadata.codecs if isinstance(c, ShardingCodec)), None)
        order = getattr(sharding, "subchunk_write_order", order)
    return encoder_of(spec, str(order))


class ArrayWriter:
    """Writes one array for its codec pipeline."""

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata, self._store = metadata, store
        self._root = root_of(store)
        self._stored: StoredArray | Unplanned | None = None
        self._encoder: Encoder | str = ""
        self._path = ""
        """Path of the array, once something was written."""
        self._threads: ThreadPoolExecutor | None = None
        """Threads of the last write."""

    async def write(self, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord, own: CodecPipeline) -> None:
        """Write a batch from `value`; zarr-python's own pipeline writes what the compiled loops cannot."""
        other_items = await self.by_loops(batch, value, drop_axes)
        if other_items:
            keys = [getattr(item[0], "path", "") for item in other_items]
            async with turns.of(self._root, keys, self._path):
                await own.write(other_items, value, drop_axes)

    async def by_loops(self, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord) -> Sequence[Item]:
        """Write the items that the compiled loops can; return the others."""
        setter, chunk_spec = batch[0][:2]
        if not isinstance(setter, StorePath) or setter.store is not self._store or self._store.read_only:
            return batch
        stored = self._stored or self._parse(setter.path)
        if isinstance(stored, Unplanned) or isinstance(self._encoder, str):
            return batch
        if device_of(chunk_spec.prototype.buffer, type(value)) != "host":
            return batch
        self._threads = threads = read_threads(None)
        plan = partial(_planned, stored, self._encoder, batch, value, drop_axes)
        planned = plan() if len(batch) <= _FEW_OBJECTS else await on_thread(lambda _: plan(), threads)
        if planned is None:
            return batch
        items = {item[0].path: item for item in batch}  # type: ignore[attr-defined]  # they are of one store
        unwritten = list(planned.objects)
        try:
            await self._write_objects(planned, stored, unwritten)
        except DamagedObjectError as err:
            await on_thread(partial(_explain, stored, planned.spec, err), threads)
            return [items[each.key] for each in unwritten]
        return ()

    def _parse(self, key: str) -> StoredArray | Unplanned:
        self._path = array_path(self._metadata, key)
        self._stored = stored = planned_array(self._metadata, self._store, self._path)
        if isinstance(stored, StoredArray) and isinstance(stored.spec, ArraySpec):
            self._encoder = encoder_for(self._metadata, stored.spec)
        return stored

    async def _write_objects(self, call: WriteCall, stored: StoredArray, unwritten: list[WrittenObject]) -> None:
        """Write all objects, those of a group at once, and remove them from `unwritten`."""
        objects, spec, source = call.objects, call.spec, stored.source
        assert source is not None
        group_nbytes = max(_GROUP_NBYTES, _THREAD_NBYTES * thread_budget())
        n_at_once = group_nbytes // max(1, call.object_nbytes)
        # `batched` allocates room for as many as it may yield at once.
        for group in batched(objects, min(max(1, n_at_once), len(objects))):
            async with turns.of(self._root, [each.key for each in group], spec.path):
                if isinstance(source, LocalSource):
                    await self._run(call, partial(_to_files, call, group, source))
                else:
                    await self._to_store(call, group, source.name)
            if spec.index is not None:  # no read is to take what was there before
                for each in group:
                    index_cache.cache.drop((source.identity, each.key, spec.index))
            del unwritten[: len(group)]

    async def _run[Result](self, call: WriteCall, write: Callable[[Stop], Result]) -> Result:
        """Return the result of `write`, which runs on a thread unless it is very short."""
        nbytes = len(call.objects) * call.object_nbytes
        return write(Stop()) if nbytes <= _LITTLE_NBYTES else await on_thread(write, read_threads(None))

    async def _to_store(self, call: WriteCall, group: Sequence[WrittenObject], name: str) -> None:
        """Assemble the objects of a group in memory, and pass them to the store of this name."""
        keys = [each.key for each in group]
        needed = [each.key for each in group if each.needs_old]
        stored_bytes = partial(self._stored_bytes, call.spec, name)
        old = dict(zip(needed, await _some_at_once(stored_bytes, needed), strict=True))
        # Stores of objects in memory keep what they are handed; fsspec's get a copy by zarr-python.
        may_share = isinstance(self._store, ObjectStore) and not is_obstore_memory(self._store.store)
        encoded = await self._run(call, lambda _: call.to_memory(group, [*map(old.get, keys)], may_share=may_share))
        await _some_at_once(partial(self._put, call.spec, name), keys, encoded)

    async def _stored_bytes(self, spec: ArraySpec, name: str, key: str) -> memoryview | None:
        """Return what is stored under a key; `name` is the store's."""
        with naming_object(spec, key, name, "to read the part that stays"):
            stored = await self._store.get(key, cpu.buffer_prototype)
        return None if stored is None else memoryview(stored.as_buffer_like())

    async def _put(self, spec: ArraySpec, name: str, key: str, data: npt.NDArray[np.uint8] | None) -> None:
        """Store an object, or remove it; `name` is the store's."""
        if data is None:
            with naming_object(spec, key, name, "to remove it, since all of it is the fill value"):
                await self._store.delete(key)
        else:
            with naming_object(spec, key, name, f"to store {len(data)} bytes"):
                await self._store.set(key, cpu.Buffer.from_array_like(data))


def _to_files(call: WriteCall, group: Sequence[WrittenObject], source: LocalSource, stop: Stop) -> None:
    for attempt in range(_ATTEMPTS):
        stop.check()
        try:
            call.to_files(group, source)
            break
        except ObjectChangedError:
            if attempt + 1 == _ATTEMPTS:
                raise call.changed(group).within(source.name) from None


def _explain(stored: StoredArray, spec: ArraySpec, err: DamagedObjectError, _: Stop) -> None:
    """Read a damaged chunk, which raises the error about it, unless only the loops cannot decode it."""
    bounds = [(c * n, (c + 1) * n) for c, n in zip(err.chunk, spec.grid.chunk_shape, strict=True)]
    shape = tuple([end for _, end in bounds])
    selection = outer_selection(tuple([slice(*each) for each in bounds]), shape)
    assert stored.source is not None
    with naming_object(spec, err.key, stored.source.name, "to read the part that stays"):
        read_target(stored, spec, box_target(selection, spec.grid, shape), decoder_for("host"))


async def _some_at_once[Result](request: Callable[..., Awaitable[Result]], *arguments: Iterable[Any]) -> list[Result]:
    """Make as many concurrent requests as zarr-python does; after a failure, none continues."""
    limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or 1)

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


def _planned(
    stored: StoredArray, encoder: Encoder | str, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord
) -> WriteCall | None:
    """Return a batch as a call of the loops; None if they cannot write it."""
    spec = stored.spec
    assert isinstance(spec, ArraySpec)
    assert isinstance(encoder, Encoder)
    array: Any = value.as_ndarray_like()
    native = spec.numpy_dtype.newbyteorder("=")
    # Masked arrays, matrices and others have assignments of their own.
    is_usual = type(array) in (np.ndarray, np.memmap) and array.dtype.newbyteorder("=") == native
    coords = coords_of(batch, spec)
    if not is_usual or coords is None:
        return None
    data = np.asarray(array).astype(native, copy=False)
    shape = data.shape or _shape_of(batch)
    if shape is None:
        return None
    selection = requested(coords, batch, spec.grid.shard_shape, shape, drop_axes)
    if selection is None or selection.outer is None:
        return None
    # If an element is written more than once, zarr-python decides which value it gets.
    columns = [each for each in selection.outer.wanted if not isinstance(each, slice)]
    if any((column[1:] == column[:-1]).any() for column in columns):
        return None
    placed = selection.place(np.broadcast_to(data, shape))  # with an axis for each of the array's, in their order
    if placed is None:  # which would need a copy
        return None
    target = box_target(selection.outer, spec.grid, selection.bounds)
    whole = None if spec.index else {coord: item[4] for coord, item in zip(coords, batch, strict=True)}
    return WriteCall(encoder, target, placed, keeps_empty=batch[0][1].config.write_empty_chunks, whole=whole)


def _shape_of(batch: Iterable[Item]) -> tuple[int, ...] | None:
    """Return the shape of the selection that a scalar is written to; None if the items do not say."""
    ends: list[tuple[int, ...]] = []
    for _, _, _, place, _ in batch:
        if not isinstance(place, tuple) or not all(type(each) is slice and each.stop is not None for each in place):
            return None
        ends.append(tuple([each.stop for each in place]))
    return tuple(map(max, zip(*ends, strict=True))) if ends else None
