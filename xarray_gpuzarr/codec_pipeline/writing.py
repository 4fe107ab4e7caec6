"""`ArrayWriter`: writes for the codec pipeline. A batch becomes one selection, which is written object by object.

zarr-python's own pipeline writes what the compiled loops cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import ByteSetter, Store
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec
from zarr.core.buffer import NDBuffer
from zarr.storage import StorePath

from xarray_gpuzarr.codec_pipeline.batches import Coord, join_batch, shard_coords
from xarray_gpuzarr.codec_pipeline.reading import array_path, device_of, planned_array
from xarray_gpuzarr.fetch.object_names import place_of
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.read.stopping import on_thread, read_threads
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.metadata import Metadata
from xarray_gpuzarr.write.array_encoder import encoder_for
from xarray_gpuzarr.write.call import WriteCall
from xarray_gpuzarr.write.encoder import Encoder
from xarray_gpuzarr.write.object_locks import turns
from xarray_gpuzarr.write.object_writer import ObjectWriter

Item = tuple[ByteSetter, ZarrChunkSpec, Any, Any, bool]
"""A shard or unsharded chunk as zarr-python passes it: byte setter, spec, selection inside it, selection of the value,
and whether it is written completely."""
_MAX_PLANNED_ON_LOOP = 4
"""Number of objects up to which a write is planned on the event loop. Writes of more are planned on a thread."""


class ArrayWriter:
    """Writes one array for its codec pipeline."""

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata = metadata
        self._store = store
        self._stored: StoredArray | Unplanned | None = None
        self._encoder: Encoder | str = ""
        """The encoder; or why the compiled loops cannot write the array, empty before the first write."""
        self._writer: ObjectWriter | None = None
        self._path = ""
        """Path of the array in the store; known once the loops were first asked to write, empty before."""
        self._threads: ThreadPoolExecutor | None = None
        """Threads of the last write. They would end if nothing referred to them."""

    async def write(self, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord, fallback: CodecPipeline) -> None:
        """Write a batch.

        Parameters
        ----------
        batch : sequence of Item
            One item or more.
        value : zarr.core.buffer.NDBuffer
            The values that are written.
        drop_axes : tuple of int
            Axes that `value` lacks, see `zarr.abc.codec.CodecPipeline.write`.
        fallback : zarr.abc.codec.CodecPipeline
            zarr-python's own pipeline, which writes what the compiled loops cannot.
        """
        other_items = await self.write_by_loops(batch, value, drop_axes)
        if other_items:
            # A name consists of the address of the array in the store and the rest of the object's key. If `_path` is
            # still empty, it consists of the address of the store and the whole key, which gives the same name. Items
            # that are no paths in a store need no turn, since nothing else writes them. They share a name that belongs
            # to no object.
            setter = other_items[0][0]
            store = setter.store if isinstance(setter, StorePath) else self._store
            keys = [getattr(item[0], "path", "") for item in other_items]
            async with turns.hold_async(place_of(store, self._path), keys):
                await fallback.write(other_items, value, drop_axes)

    async def write_by_loops(self, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord) -> Sequence[Item]:
        """Write the items that the compiled loops can write; return the others."""
        setter, chunk_spec = batch[0][:2]
        if not isinstance(setter, StorePath) or setter.store is not self._store or self._store.read_only:
            return batch
        stored = self._stored or self._parse(setter.path)
        if isinstance(stored, Unplanned) or isinstance(self._encoder, str):
            return batch
        if device_of(chunk_spec.prototype.buffer, type(value)) != "host":
            return batch
        self._threads = threads = read_threads(None)
        plan = partial(_plan_write, stored, self._encoder, batch, value, drop_axes)
        if len(batch) <= _MAX_PLANNED_ON_LOOP:
            call = plan()
        else:
            call = await on_thread(lambda _: plan(), threads)
        if call is None:
            return batch
        items = {item[0].path: item for item in batch}  # type: ignore[attr-defined]  # all are paths in one store
        writer = self._writer = self._writer or ObjectWriter(stored, self._store)
        unwritten = await writer.write(call)
        return [items[obj.key] for obj in unwritten]

    def _parse(self, key: str) -> StoredArray | Unplanned:
        """Return the array, given the store key of one of its objects, or why zarr-python has to write it."""
        self._path = array_path(self._metadata, key)
        self._stored = stored = planned_array(self._metadata, self._store, self._path)
        if isinstance(stored, StoredArray) and isinstance(stored.spec, ArraySpec):
            self._encoder = encoder_for(self._metadata, stored.spec)
        return stored


def _plan_write(
    stored: StoredArray, encoder: Encoder, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord
) -> WriteCall | None:
    """Return the call of the compiled loops that writes a batch; None if they cannot write it."""
    spec = stored.spec
    assert isinstance(spec, ArraySpec)
    array: Any = value.as_ndarray_like()
    native = spec.numpy_dtype.newbyteorder("=")
    # Subclasses, such as masked arrays and matrices, assign in ways of their own.
    is_plain = type(array) in (np.ndarray, np.memmap) and array.dtype.newbyteorder("=") == native
    coords = shard_coords(batch, spec)
    if not is_plain or coords is None:
        return None
    data = np.asarray(array).astype(native, copy=False)
    shape = data.shape or _selection_shape(batch)  # zarr-python passes a scalar as an array without axes
    if shape is None:
        return None
    selection = join_batch(coords, batch, spec.grid.shard_shape, shape, drop_axes)
    if selection is None or selection.outer is None:
        return None
    # If an element is written more than once, zarr-python decides which value it gets. `join_batch` has sorted indexes,
    # so equal ones are neighbours.
    index_arrays = [key for key in selection.outer.selectors if not isinstance(key, slice)]
    if any((index[1:] == index[:-1]).any() for index in index_arrays):
        return None
    values = selection.view_of(np.broadcast_to(data, shape))
    if values is None:  # they are in another order than the array's elements
        return None
    target = box_target(selection.outer, spec.grid, selection.bounds)
    is_covered = None
    if spec.index is None:
        is_covered = {coord: is_complete for coord, (_, _, _, _, is_complete) in zip(coords, batch, strict=True)}
    keeps_empty = batch[0][1].config.write_empty_chunks
    return WriteCall(encoder, target, values, keeps_empty=keeps_empty, is_covered=is_covered)


def _selection_shape(batch: Iterable[Item]) -> tuple[int, ...] | None:
    """Return the shape of the selection that a scalar is written to; None if the items do not select by slices."""
    ends: list[tuple[int, ...]] = []
    for _, _, _, out, _ in batch:
        if not isinstance(out, tuple) or not all(type(key) is slice and key.stop is not None for key in out):
            return None
        ends.append(tuple([key.stop for key in out]))
    return tuple(map(max, zip(*ends, strict=True))) if ends else None
