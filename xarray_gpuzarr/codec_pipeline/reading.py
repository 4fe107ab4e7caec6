"""Reading for the codec pipeline: a batch of chunks becomes one selection, and one read into zarr-python's buffer.

Where zarr-python's own pipeline has to read, nothing is changed and the answer is False or None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import zarr.core.sync
from zarr.abc.store import Store
from zarr.buffer import cpu, gpu
from zarr.core.buffer import Buffer, NDBuffer
from zarr.storage import MemoryStore, ObjectStore, StorePath, ZipStore

from xarray_gpuzarr.codec_pipeline.batches import Coord, Item, Requested, coords_of, requested
from xarray_gpuzarr.codec_pipeline.buffer import NDBuffer as OurNDBuffer
from xarray_gpuzarr.decoders.choice import INSTALL_FOR_CUDA, decoder_for, missing_for_cuda
from xarray_gpuzarr.decoders.host.compressors import decoded_rate
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.in_memory import MemorySource
from xarray_gpuzarr.fetch.remote.clients import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.targets import PointTarget, Target, box_target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.read import StoredArray, read_target
from xarray_gpuzarr.read.stopping import StoppableDecoder, on_thread, read_threads
from xarray_gpuzarr.read.stored_array import refuses_missing
from xarray_gpuzarr.stored.array_spec import ArraySpec, Unplanned
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.metadata import Metadata, native_dtype, parse_metadata

_DEVICES = {(cpu.Buffer, cpu.NDBuffer): "host", (cpu.Buffer, OurNDBuffer): "host", (gpu.Buffer, gpu.NDBuffer): "cuda"}
"""Where the results of zarr-python's own buffers, and of this package's, live; others may be anything."""
_ANY_LOOP = (MemoryStore, ObjectStore, ZipStore)
"""Stores whose sessions belong to no event loop."""
LITTLE_S = 2e-3
"""Seconds. Reads whose decoding takes no longer, with two threads if there are cores, run on zarr-python's event loop
unless another read goes on. To hand one to a thread, and to hear of its end, takes 0.3 to 0.9 ms (November 2026, two
cores)."""
FEW_CHUNKS = 2
"""Raw chunks of a `MemoryStore` that zarr-python copies sooner than a plan is made (November 2026, two cores)."""
SLOW_S, BREAK = 10e-3, 20
"""After a read on that loop that took longer, waiting for a disk or a core, others run on threads for so many times as
long: slow ones hold the loop for a twentieth of the time."""


class ArrayReader:
    """Reads one array for its codec pipeline."""

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata = metadata
        self._store = store
        self._stored: StoredArray | Unplanned | None = None
        self._decoders: dict[str, Decoder | None] = {}
        self._server: Hashable = None
        self._threads: ThreadPoolExecutor | None = None
        """Threads of the last read."""
        self._on_threads_until = 0.0
        self._little_nbytes = 0.0
        """Bytes that one thread decodes in `LITTLE_S`; 0 if that needs zarr-python, which waits for its event loop."""

    async def read(self, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord, own: Any) -> bool:
        """Read a batch of at least one item into `out` if this package can; return whether it was read.

        `own` is zarr-python's pipeline, which has ``read_sync`` where its stores have ``get_sync``. Chunks or shards
        that are not there are a `MissingChunkError` if the array's setting ``array.read_missing_chunks`` is off.
        """
        getter, chunk_spec = batch[0][:2]
        if not isinstance(getter, StorePath) or getter.store is not self._store:
            return False
        stored = self._stored or self._parse(getter.path)
        if isinstance(stored, Unplanned):
            return False
        device = device_of(chunk_spec.prototype.buffer, type(out))
        decoder = None if device is None else self._decoder(device)
        source, is_of_any_loop = stored.source, type(self._store) in _ANY_LOOP
        # Other stores get their requests from zarr-python's event loop alone.
        if decoder is None or source is None or (source.is_remote and not (is_of_any_loop or _is_on_zarrs_loop())):
            return False
        if refuses_missing(chunk_spec.config):
            stored = replace(stored, source=StrictSource(source))
        read = PipelineRead(stored, batch, out, drop_axes)
        if device == "host" and read.is_short_copy(self._little_nbytes):
            own.read_sync(batch, out, drop_axes)  # on this thread: another one takes as long to reach
            return True
        start = time.monotonic()
        may_hold_loop = device == "host" and start >= self._on_threads_until and _is_on_zarrs_loop()
        if may_hold_loop and read.is_little(self._little_nbytes):
            is_done = read.carry_out(decoder)
            took = time.monotonic() - start
            if took > SLOW_S:
                self._on_threads_until = start + BREAK * took
        else:
            self._threads = threads = read_threads(self._server)
            is_done = await on_thread(lambda stop: read.carry_out(StoppableDecoder(decoder, stop)), threads)
        return is_done

    def _parse(self, key: str) -> StoredArray | Unplanned:
        self._stored = stored = planned_array(self._metadata, self._store, array_path(self._metadata, key))
        if isinstance(stored, Unplanned):
            return stored
        if isinstance(stored.source, StoreSource):
            self._server = server_of(self._store)
        if isinstance(stored.spec, ArraySpec) and stored.spec.codecs.other is None:
            self._little_nbytes = LITTLE_S * decoded_rate(stored.spec.codecs)
        return stored

    def _decoder(self, device: str) -> Decoder | None:
        """Return the decoder of a device; None, after advice to the user, if something that it needs is missing."""
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


def _is_on_zarrs_loop() -> bool:
    return asyncio.get_running_loop() is zarr.core.sync.loop[0]


def array_path(metadata: Metadata, key: str) -> str:
    """Return the path of an array, given the store key of one of its shards or chunks."""
    n_names = metadata.encode_chunk_key((0,) * len(metadata.shape)).count("/") + 1
    return "/".join(key.split("/")[:-n_names])


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
        source=object_source(store),
        zarr_array=None,
        cast=Cast(dtype=native_dtype(metadata).str),
    )


def device_of(buffer: type[Buffer], nd_buffer: type[NDBuffer]) -> str | None:
    """Return the device that buffers of these classes are on; None if that is unknown."""
    return _DEVICES.get((buffer, nd_buffer))


def missing_for(device: str) -> list[str]:
    """Return what decoding for a device needs and this machine lacks."""
    return missing_for_cuda() if device == "cuda" else []


class PipelineRead:
    """The read of one batch. It is planned on first use: a large one on the thread that reads it."""

    def __init__(self, stored: StoredArray, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord) -> None:
        assert isinstance(stored.spec, ArraySpec)
        self._stored, self._spec = stored, stored.spec
        self._batch, self._drop_axes = batch, drop_axes
        self._data = cast("Any", out.as_ndarray_like())

    def is_short_copy(self, one_thread: float) -> bool:
        """Whether zarr-python copies the chunks faster than a plan is made: few raw chunks in memory."""
        is_copy = isinstance(self._stored.source, MemorySource) and not (self._spec.index or self._spec.codecs.stages)
        return is_copy and len(self._batch) <= FEW_CHUNKS and bool(self._data.nbytes <= one_thread)

    def is_little(self, one_thread: float) -> bool:
        """Whether reading takes not much longer than handing it to a thread, and all cores are free.

        `one_thread` are the bytes that one thread decodes in `LITTLE_S`.
        """
        is_remote = self._stored.source is not None and self._stored.source.is_remote
        if is_remote or crew.n_active or self._data.nbytes > 2 * one_thread:
            return False
        n_chunks = 0 if self._planned is None else self._planned[1].n_chunks
        nbytes: int = max(self._data.nbytes, n_chunks * self._spec.chunk_nbytes)
        return nbytes <= one_thread or nbytes <= one_thread * min(2, thread_budget())

    def carry_out(self, decoder: Decoder) -> bool:
        """Read, and return whether the batch could be planned."""
        if self._planned is None:
            return False
        (requested_chunks, target), data = self._planned, self._data
        place = requested_chunks.place(data) if data.dtype == np.dtype(self._stored.cast.dtype) else None
        with data.device if decoder.device == "cuda" else nullcontext():  # not the one that is current on this thread
            result = read_target(self._stored, self._spec, target, decoder, place)
            if result is not place:
                data[...] = result if requested_chunks.outer is None else requested_chunks.outer.restore(result)
        return True

    @cached_property
    def _planned(self) -> tuple[Requested, Target] | None:
        """The selection and its target; None if the batch cannot be planned."""
        spec, data = self._spec, self._data
        if isinstance(data, np.generic) or not np.can_cast(self._stored.cast.dtype, data.dtype, "safe"):
            return None  # an output of the caller's; zarr-python has its own ways with what does not fit
        coords = coords_of(self._batch, spec)
        if coords is None:
            return None
        requested_chunks = requested(coords, self._batch, spec.grid.shard_shape, data.shape, self._drop_axes)
        if requested_chunks is None:
            return None
        # Since the pipeline was made, the array may have been resized: its shape here is the selection's.
        bounds = requested_chunks.bounds
        if requested_chunks.outer is not None:
            return requested_chunks, box_target(requested_chunks.outer, spec.grid, bounds)
        assert requested_chunks.points is not None
        groups = group_points(requested_chunks.points, replace(spec.grid, shape=bounds))
        return requested_chunks, PointTarget(groups=groups)
