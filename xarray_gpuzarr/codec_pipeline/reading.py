"""`ArrayReader`: reads for the codec pipeline. A batch becomes one selection, which is read into zarr-python's buffer.

zarr-python's own pipeline reads what this package cannot; the functions here then return False or None.
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

from xarray_gpuzarr.codec_pipeline.batches import BatchSelection, Coord, Item, join_batch, shard_coords
from xarray_gpuzarr.codec_pipeline.buffer import NDBuffer as OurNDBuffer
from xarray_gpuzarr.decoders.choice import INSTALL_FOR_CUDA, decoder_for, missing_for_cuda
from xarray_gpuzarr.decoders.host.compressors import decoded_rate
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.in_memory import MemorySource
from xarray_gpuzarr.fetch.remote.servers import server_of
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
"""Device of the results, by the classes of zarr-python's buffers and of this package's. Others are unknown."""
_ANY_LOOP = (MemoryStore, ObjectStore, ZipStore)
"""Stores that may be used from any event loop, since their sessions are not bound to one."""
SHORT_READ_S = 2e-3
"""A read that decodes for at most this many seconds is short. It runs on zarr-python's event loop unless another read
runs, since a change to a thread and back takes 0.3 to 0.9 ms (November 2026, two cores). With two cores or more, a read
of up to twice as many bytes is short, because two threads decode it."""
FEW_CHUNKS = 2
"""Number of raw chunks of a `MemoryStore` up to which zarr-python copies them in less time than a plan takes (November
2026, two cores)."""
SLOW_READ_S = 10e-3
"""A read on the event loop that takes longer than this, in seconds, is slow: it has waited for a disk or a core."""
THREADS_FACTOR = 20
"""After a slow read, reads run on threads for this many times as long as it took. So slow reads block the event loop
for a twentieth of the time at most."""


class ArrayReader:
    """Reads one array for its codec pipeline."""

    def __init__(self, metadata: Metadata, store: Store) -> None:
        self._metadata = metadata
        self._store = store
        self._stored: StoredArray | Unplanned | None = None
        self._decoders: dict[str, Decoder | None] = {}
        self._server: Hashable = None
        """The server of a remote store, which has threads of its own; None for other stores."""
        self._threads: ThreadPoolExecutor | None = None
        """Threads of the last read. They would end if nothing referred to them."""
        self._on_threads_until = 0.0
        """Time of `time.monotonic` until which all reads run on threads, because one was slow."""
        self._short_nbytes = 0.0
        """Bytes that one thread decodes in `SHORT_READ_S`. 0 if a codec is left to zarr-python, which decodes on its
        event loop: a read must not hold this loop then."""

    async def read(self, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord, fallback: Any) -> bool:
        """Read a batch, if this package can.

        Parameters
        ----------
        batch : sequence of Item
            One item or more.
        out : zarr.core.buffer.NDBuffer
            The output, all of which is filled.
        drop_axes : tuple of int
            Axes that `out` lacks; see `zarr.abc.codec.CodecPipeline.read`.
        fallback : zarr.abc.codec.CodecPipeline
            zarr-python's own pipeline. Its ``read_sync`` is called for short reads of a `MemorySource`. The fused
            pipeline of zarr-python 3.3 and newer has this method. An array that was copied or unpickled while
            zarr-python's settings name another pipeline may lack it.

        Returns
        -------
        bool
            Whether the batch was read.

        Raises
        ------
        MissingChunkError
            If a chunk or shard does not exist, and the array was opened with ``array.read_missing_chunks`` off.
        """
        getter, chunk_spec = batch[0][:2]
        if not isinstance(getter, StorePath) or getter.store is not self._store:
            return False
        stored = self._stored or self._parse(getter.path)
        if isinstance(stored, Unplanned):
            return False
        device = device_of(chunk_spec.prototype.buffer, type(out))
        decoder = None if device is None else self._decoder(device)
        source = stored.source
        if decoder is None or source is None:
            return False
        # Remote stores of other kinds are used on zarr-python's event loop only.
        if source.is_remote and type(self._store) not in _ANY_LOOP and not _is_on_zarrs_loop():
            return False
        if refuses_missing(chunk_spec.config):
            stored = replace(stored, source=StrictSource(source))
        read = PipelineRead(stored, batch, out, drop_axes)
        if device == "host" and hasattr(fallback, "read_sync") and read.is_short_copy(self._short_nbytes):
            fallback.read_sync(batch, out, drop_axes)  # on this thread, since a change to another takes longer
            return True
        start = time.monotonic()
        may_hold_loop = device == "host" and start >= self._on_threads_until and _is_on_zarrs_loop()
        if may_hold_loop and read.is_short(self._short_nbytes):
            is_done = read.run(decoder)
            duration_s = time.monotonic() - start
            if duration_s > SLOW_READ_S:
                self._on_threads_until = start + THREADS_FACTOR * duration_s
        else:
            self._threads = threads = read_threads(self._server)
            is_done = await on_thread(lambda stop: read.run(StoppableDecoder(decoder, stop)), threads)
        return is_done

    def _parse(self, key: str) -> StoredArray | Unplanned:
        """Return the array, given the store key of one of its objects, or why zarr-python has to read it."""
        self._stored = stored = planned_array(self._metadata, self._store, array_path(self._metadata, key))
        if isinstance(stored, Unplanned):
            return stored
        if isinstance(stored.source, StoreSource):
            self._server = server_of(self._store)
        if isinstance(stored.spec, ArraySpec) and stored.spec.codecs.other is None:
            self._short_nbytes = SHORT_READ_S * decoded_rate(stored.spec.codecs)
        return stored

    def _decoder(self, device: str) -> Decoder | None:
        """Return the decoder for a device. If the machine lacks something for it, advise the user and return None."""
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
    """Return the array at a path of a store, as its metadata describe it, or why zarr-python has to read it."""
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
    """Return the device, "host" or "cuda", of buffers of these classes; None if it is unknown."""
    return _DEVICES.get((buffer, nd_buffer))


def missing_for(device: str) -> list[str]:
    """Return the names of packages and hardware that decoding for a device needs and this machine lacks."""
    return missing_for_cuda() if device == "cuda" else []


class PipelineRead:
    """The read of one batch. Its plan is made when it is first needed, so that large reads are planned on a thread."""

    def __init__(self, stored: StoredArray, batch: Sequence[Item], out: NDBuffer, drop_axes: Coord) -> None:
        assert isinstance(stored.spec, ArraySpec)
        self._stored = stored
        self._spec = stored.spec
        self._batch = batch
        self._drop_axes = drop_axes
        self._data = cast("Any", out.as_ndarray_like())

    def is_short_copy(self, short_nbytes: float) -> bool:
        """Whether zarr-python reads the batch in less time than a plan takes: few raw chunks in memory.

        `short_nbytes` is the number of bytes that one thread decodes in `SHORT_READ_S`.
        """
        is_copy = isinstance(self._stored.source, MemorySource) and not (self._spec.index or self._spec.codecs.stages)
        return is_copy and len(self._batch) <= FEW_CHUNKS and bool(self._data.nbytes <= short_nbytes)

    def is_short(self, short_nbytes: float) -> bool:
        """Whether reading takes little more time than a change of threads, and all cores are free.

        `short_nbytes` is the number of bytes that one thread decodes in `SHORT_READ_S`.
        """
        is_remote = self._stored.source is not None and self._stored.source.is_remote
        if is_remote or crew.n_active or self._data.nbytes > 2 * short_nbytes:
            return False
        n_chunks = 0 if self._plan is None else self._plan[1].n_chunks
        nbytes: int = max(self._data.nbytes, n_chunks * self._spec.chunk_nbytes)
        # The second comparison would suffice. The first one saves the call of `thread_budget` where it is true.
        return nbytes <= short_nbytes or nbytes <= short_nbytes * min(2, thread_budget())

    def run(self, decoder: Decoder) -> bool:
        """Read the batch; return False if it cannot be planned."""
        if self._plan is None:
            return False
        selection, target = self._plan
        data = self._data
        out = selection.view_of(data) if data.dtype == np.dtype(self._stored.cast.dtype) else None
        with data.device if decoder.device == "cuda" else nullcontext():  # another device may be current
            result = read_target(self._stored, self._spec, target, decoder, out)
            if result is not out:
                data[...] = result if selection.outer is None else selection.outer.restore(result)
        return True

    @cached_property
    def _plan(self) -> tuple[BatchSelection, Target] | None:
        """The selection and its target; None if the batch cannot be planned."""
        spec = self._spec
        data = self._data
        if isinstance(data, np.generic):  # a NumPy scalar cannot be written to
            return None
        if not np.can_cast(self._stored.cast.dtype, data.dtype, "safe"):
            return None  # the caller has passed an output, and zarr-python decides how values are converted
        coords = shard_coords(self._batch, spec)
        if coords is None:
            return None
        selection = join_batch(coords, self._batch, spec.grid.shard_shape, data.shape, self._drop_axes)
        if selection is None:
            return None
        # The array may have been resized since the pipeline was made. So the bounds of the selection take the place of
        # the shape that the metadata declare.
        if selection.outer is not None:
            return selection, box_target(selection.outer, spec.grid, selection.bounds)
        assert selection.points is not None
        groups = group_points(selection.points, replace(spec.grid, shape=selection.bounds))
        return selection, PointTarget(groups=groups)
