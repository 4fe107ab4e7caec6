"""Writing for the codec pipeline: a batch of chunks becomes one selection, written object by object.

Where zarr-python's own pipeline has to write, nothing is changed.
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

from xarray_gpuzarr.codec_pipeline.batches import Coord, coords_of, requested
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
"""A shard or chunk to write: setter, spec, selection within it, selection of the value, whether it is all."""
_FEW_OBJECTS = 4
"""At most so many objects are planned on the event loop."""


class ArrayWriter:
    """Writes one array for its codec pipeline."""

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata, self._store = metadata, store
        self._stored: StoredArray | Unplanned | None = None
        self._encoder: Encoder | str = ""
        self._writer: ObjectWriter | None = None
        self._path = ""
        """Path of the array, once something was written."""
        self._threads: ThreadPoolExecutor | None = None
        """Threads of the last write."""

    async def write(self, batch: Sequence[Item], value: NDBuffer, drop_axes: Coord, own: CodecPipeline) -> None:
        """Write a batch from `value`; zarr-python's own pipeline writes what the compiled loops cannot."""
        other_items = await self.by_loops(batch, value, drop_axes)
        if other_items:
            keys = [getattr(item[0], "path", "") for item in other_items]
            async with turns.hold_async(place_of(self._store, self._path), keys):
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
        writer = self._writer = self._writer or ObjectWriter(stored, self._store)
        unwritten = await writer.write(planned)
        return [items[each.key] for each in unwritten]

    def _parse(self, key: str) -> StoredArray | Unplanned:
        self._path = array_path(self._metadata, key)
        self._stored = stored = planned_array(self._metadata, self._store, self._path)
        if isinstance(stored, StoredArray) and isinstance(stored.spec, ArraySpec):
            self._encoder = encoder_for(self._metadata, stored.spec)
        return stored


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
    columns = [each for each in selection.outer.selectors if not isinstance(each, slice)]
    if any((column[1:] == column[:-1]).any() for column in columns):
        return None
    placed = selection.place(np.broadcast_to(data, shape))  # with an axis for each of the array's, in their order
    if placed is None:  # which would need a copy
        return None
    target = box_target(selection.outer, spec.grid, selection.bounds)
    whole = None if spec.index else {coord: item[4] for coord, item in zip(coords, batch, strict=True)}
    return WriteCall(encoder, target, placed, keeps_empty=batch[0][1].config.write_empty_chunks, is_covered=whole)


def _shape_of(batch: Iterable[Item]) -> tuple[int, ...] | None:
    """Return the shape of the selection that a scalar is written to; None if the items do not say."""
    ends: list[tuple[int, ...]] = []
    for _, _, _, place, _ in batch:
        if not isinstance(place, tuple) or not all(type(each) is slice and each.stop is not None for each in place):
            return None
        ends.append(tuple([each.stop for each in place]))
    return tuple(map(max, zip(*ends, strict=True))) if ends else None
