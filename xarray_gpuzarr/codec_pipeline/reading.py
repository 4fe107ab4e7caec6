"""What the codec pipeline does with a batch of chunks: one selection, one read by the trunk, into zarr-python's buffer.

Says no, and touches nothing, where zarr-python's own pipeline is to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import zarr.core.sync
from zarr.abc.store import Store
from zarr.buffer import cpu, gpu
from zarr.core.array_spec import ArrayConfig
from zarr.core.buffer import Buffer, NDBuffer
from zarr.storage import MemoryStore, ObjectStore, StorePath, ZipStore

from xarray_gpuzarr.codec_pipeline.batches import Coord, Item, Requested, requested
from xarray_gpuzarr.codec_pipeline.threads import StoppableDecoder, on_thread
from xarray_gpuzarr.decoders import Decoder, decoder_for, missing_for_cuda
from xarray_gpuzarr.decoders.choice import INSTALL_FOR_CUDA
from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch import byte_source
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.read_plan import PointTarget, Target, box_target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.read import StoredArray, read_target
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.metadata import Metadata, native_dtype, parse_metadata

_DEVICES = {(cpu.Buffer, cpu.NDBuffer): "host", (gpu.Buffer, gpu.NDBuffer): "cuda"}
"""Where the results of zarr-python's own buffers live; others may be anything."""
_ANY_LOOP = (MemoryStore, ObjectStore, ZipStore)
"""Stores whose sessions belong to no event loop."""


class Reader:
    """Reads one array for its pipeline.

    Parameters
    ----------
    metadata : zarr metadata of an array
    store : zarr.abc.store.Store
    """

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata = metadata
        self._store = store
        self._depth = metadata.encode_chunk_key((0,) * len(metadata.shape)).count("/") + 1
        """Names in the key of a chunk behind the path of its array."""
        self._stored: StoredArray | Unplanned | None = None
        self._decoders: dict[str, Decoder | None] = {}

    async def read(self, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord) -> bool:
        """Read a batch into `out`; say whether that was done.

        Parameters
        ----------
        batch : sequence of Item, one at least
        out : zarr buffer
        drop_axes : tuple of int
        """
        getter, chunk_spec = batch[0][:2]
        if not isinstance(getter, StorePath) or getter.store is not self._store:
            return False
        stored = self._stored or self._parse(getter.path)
        if isinstance(stored, Unplanned) or refuses_missing(chunk_spec.config):
            return False
        device = device_of(chunk_spec.prototype.buffer, type(out))
        decoder = None if device is None else self._decoder(device)
        if decoder is None or not self._may_be_read_here(stored):
            return False
        return await on_thread(
            lambda stop: _read(stored, batch, out, drop_axes, StoppableDecoder(decoder, stop)),
            is_remote=stored.source is not None and stored.source.is_remote,
        )

    def _parse(self, key: str) -> StoredArray | Unplanned:
        path = "/".join(key.split("/")[: -self._depth])
        self._stored = stored = planned_array(self._metadata, self._store, path)
        return stored

    def _decoder(self, device: str) -> Decoder | None:
        """Return the decoder of a device; None, and some advice, if it lacks something here."""
        if device not in self._decoders:
            missing = missing_for(device)
            if missing:
                advise(
                    "codec pipeline",
                    "zarr-python's own codec pipeline reads to the GPU, since this package's cannot",
                    found="missing: " + ", ".join(missing),
                    do=INSTALL_FOR_CUDA,
                )
            self._decoders[device] = None if missing else decoder_for(device)
        return self._decoders[device]

    def _may_be_read_here(self, stored: StoredArray) -> bool:
        """Whether requests on zarr's event loop do for a store that was perhaps opened on the running one."""
        is_local = stored.source is not None and not stored.source.is_remote
        on_zarrs_loop = asyncio.get_running_loop() is zarr.core.sync.loop[0]
        return is_local or on_zarrs_loop or type(self._store) in _ANY_LOOP


def refuses_missing(config: ArrayConfig) -> bool:
    """Say whether zarr-python is to raise for chunks that are not there; it knows that setting from 3.2 on."""
    return getattr(config, "read_missing_chunks", True) is False


def planned_array(metadata: Metadata, store: Store, path: str) -> StoredArray | Unplanned:
    """Describe an array by its metadata, or say why zarr-python reads it."""
    try:
        spec = parse_metadata(metadata, path)
    except MetadataError as err:
        return Unplanned(reason=err.found)
    if isinstance(spec, Unplanned):
        return spec
    return StoredArray(
        shape=spec.grid.shape,
        spec=spec,
        source=byte_source(store),
        zarr_array=None,
        cast=Cast(dtype=native_dtype(metadata).str),
    )


def device_of(buffer: type[Buffer], nd_buffer: type[NDBuffer]) -> str | None:
    """Return the device that buffers of these classes are on; None if that is unknown."""
    return _DEVICES.get((buffer, nd_buffer))


def missing_for(device: str) -> list[str]:
    """Return what decoding for a device needs and this machine lacks."""
    return missing_for_cuda() if device == "cuda" else []


def _read(stored: StoredArray, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord, decoder: Decoder) -> bool:
    spec, data = stored.spec, cast("Any", out.as_ndarray_like())
    assert isinstance(spec, ArraySpec)
    try:
        coords = [spec.keys.coord(item[0].path, spec.grid.ndim) for item in batch]  # type: ignore[attr-defined]
    except (AttributeError, ValueError):  # no path in a store, or not one of this array
        return False
    wanted = requested(coords, batch, spec.grid.shard_shape, data.shape, drop_axes)
    if wanted is None:
        return False
    place = wanted.place(data)
    if data.dtype != np.dtype(stored.cast.dtype):
        place = None
    with data.device if decoder.device == "cuda" else nullcontext():  # not the one that is current on this thread
        result = read_target(stored, spec, _target(wanted, spec), decoder, place)
        if result is not place:
            data[...] = result if wanted.outer is None else wanted.outer.restore(result)
    return True


def _target(wanted: Requested, spec: ArraySpec) -> Target:
    # Since the pipeline was made, the array may have been resized.
    grid = replace(spec.grid, shape=wanted.bounds)
    if wanted.outer is not None:
        return box_target(wanted.outer, grid)
    assert wanted.points is not None
    return PointTarget(groups=group_points(wanted.points, grid))
