"""Short reads: a box of a few chunks of one object, read by a single call of the compiled loops.

In an ordinary read, the work of Python (a snapshot of the shards, a table of the chunks) takes longer than decoding a
chunk of 64 KB. A short read passes the box, the index of the shard and the output to one call, which looks up, reads,
decodes and places the chunks on the calling thread. The object is a local file, whose index is in the cache, or lies in
zarr's `MemoryStore`, where the index is decoded for each read, since objects in memory have no versions.

A short read succeeds only if all chunks are stored and a file has the version that its index was read from. Chunks of
which a part is requested may come from `chunk_cache`. In all other cases, and if chunks are to be kept in the cache,
`read_short` returns None, and an ordinary read starts from the beginning.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xarray_gpuzarr.decoders.host import chunk_cache
from xarray_gpuzarr.decoders.host.chunk_cache import (
    CachedChunk,
    ChunkKey,
    are_kept_at_once,
    are_unfit,
    may_be_kept,
    object_key,
)
from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.decoders.host.loop_output import cached_job_struct
from xarray_gpuzarr.decoders.host.loop_table import READ_BUFFER_NBYTES, encoded_path, whole_blocks
from xarray_gpuzarr.decoders.host.schedule import Costs
from xarray_gpuzarr.errors import ShardIndexError
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.in_memory import MemorySource
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import Version
from xarray_gpuzarr.native.library import address, int64_columns, view_address
from xarray_gpuzarr.native.structs import BoxStruct
from xarray_gpuzarr.plan.axis_pieces import chunks_of_span
from xarray_gpuzarr.plan.partial_chunks import PartialChunks, takes_part
from xarray_gpuzarr.plan.targets import BoxTarget, Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.host_memory import borrow_buffer
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex, decode_shard_index

_MOST_CHUNKS = 16
"""Largest number of chunks in a short read. It must be `MOST_BOX_CHUNKS` of `read_box.h`."""


class _BoxSettings:
    """Settings of the compiled loops that all short reads of one array share."""

    def __init__(self, array: HostArray) -> None:
        ones = (1,) * array.spec.grid.ndim
        # The call itself fills in whatever depends on the box.
        self._job, self._referenced = cached_job_struct(array, ones, ones, ones, (), 0)
        self.job_address = ctypes.addressof(self._job)
        assert array.program is not None
        self.scratch_nbytes = array.program.scratch_nbytes
        """Scratch for decoding, in bytes."""
        self.buffer_nbytes = max(READ_BUFFER_NBYTES, whole_blocks(array.spec.expected_nbytes))
        """Memory for encoded chunks, in bytes. A longer chunk is left to an ordinary read."""


_box_settings = lru_cache(maxsize=128)(_BoxSettings)


@record
class _Object:
    """The object that holds all chunks of a box."""

    key: str
    index: ShardIndex | None
    """Index of the shard; None for an unsharded chunk."""
    path: bytes | None = None
    """Path of a local file; None for an object in memory."""
    version: Version = None
    """Version that the file must have; None for unsharded chunks, and for objects in memory."""
    data: memoryview | None = None
    """Bytes of an object in memory."""


def read_short(
    array: HostArray, target: Target, source: Any, out: Array | None, *, costs: Costs, keeps_chunks: bool
) -> Array | None:
    """Read a box of a few chunks of one object, or return None if an ordinary read has to.

    Parameters
    ----------
    array : HostArray
        The array and the cast of its elements.
    target : Target
        Requested elements, cut at the borders of chunks.
    source : ObjectSource
        Where the array is stored. Only a `LocalSource` or a `MemorySource` itself, without wrappers, is read.
    out : numpy.ndarray or None
        Where the result goes; None for a new array.
    costs : Costs
        Determines for which reads further threads do not help.
    keeps_chunks : bool
        Whether chunks of which a part is requested are kept in `chunk_cache`.

    Returns
    -------
    numpy.ndarray or None
        `out`, or a new array in C order: shape `target.shape`, dtype `array.dtype`. If None is returned, `out` may
        have been partly overwritten.
    """
    is_known = type(source) in (LocalSource, MemorySource)
    if not isinstance(target, BoxTarget) or not is_known or not _is_short(array, target, costs):
        return None
    has_versions = source.identity is not None  # False for a `MemoryStore`
    uses_cache = keeps_chunks and has_versions and may_be_kept(array, target.n_chunks) and takes_part(target)
    may_decode = _are_decoded_by_one_thread(array, target.n_chunks, costs)
    may_read = (may_decode or uses_cache) and _may_hold(out, array, target)
    stored = _object_of(array.spec, target, source) if may_read else None
    if stored is None:
        return None
    keys = _cache_keys(array, target, source, stored) if uses_cache else ()
    chunks = _cached_chunks(keys, source, stored)
    if chunks is None and (not may_decode or (uses_cache and not _remember_new(keys, array, target))):
        return None
    if out is None:
        out = host_memory.result_memory.empty(target.shape, array.dtype)
    nbytes = _call_loops(array, target, source, stored, chunks, out)
    if nbytes is None:
        return None
    if stored.data is not None and array.spec.index is not None:  # the index was decoded for this read, too
        nbytes += array.spec.index.nbytes
    chunk_nbytes = target.n_chunks * array.chunk_nbytes
    if chunks is not None:
        counters.add(n_reads=1, n_shards=1, read_nbytes=nbytes, n_cache_hits=len(chunks), cached_nbytes=chunk_nbytes)
        return out
    counters.add(n_reads=1, n_shards=1, read_nbytes=nbytes, decoded_nbytes=chunk_nbytes, n_cache_misses=len(keys))
    if keeps_chunks and has_versions and are_unfit(array, target.n_chunks):
        n_partial = PartialChunks(target, array.spec.grid).n_partial
        counters.add(n_cache_misses=n_partial, n_cache_unfit=n_partial)
    return out


def _may_hold(out: Array | None, array: HostArray, target: BoxTarget) -> bool:
    """Whether the loops can write the result straight into `out`, or `out` is None."""
    return out is None or (out.shape == target.shape and out.dtype == array.dtype and out.flags.carray)


def _is_short(array: HostArray, target: BoxTarget, costs: Costs) -> bool:
    """Whether the loops can read a box in one call, and a second thread would not help to copy the result."""
    if array.program is None or target.spans is None or not 0 < target.n_chunks <= _MOST_CHUNKS:
        return False
    return math.prod(target.shape) * array.dtype.itemsize <= costs.loop_copy_nbytes


def _are_decoded_by_one_thread(array: HostArray, n_chunks: int, costs: Costs) -> bool:
    """Whether one thread decodes so many chunks about as fast as several would, as `schedule` sees it."""
    longest_s = costs.serial_s if array.is_copied else 2 * costs.loop_thread_s
    return n_chunks == 1 or n_chunks * array.chunk_nbytes <= longest_s * array.rate


def _object_of(spec: ArraySpec, target: BoxTarget, source: LocalSource | MemorySource) -> _Object | None:
    """Return the object that holds all chunks of a box.

    Returns None if there are several objects, if the index of a shard in a file is not cached, or if an object in
    memory is missing or damaged.
    """
    shards = target.shards()
    shard = next(shards)
    if next(shards, None) is not None:
        return None
    key = spec.keys.key(tuple([coordinate for coordinate, _ in shard]))
    if isinstance(source, MemorySource):
        return _object_in_memory(spec, key, source)
    path = encoded_path(source.local_path(key))
    if path is None:
        return None
    if spec.index is None:
        return _Object(key=key, index=None, path=path)
    cached = index_cache.cache.get((source.identity, key, spec.index))
    return None if cached is None else _Object(key=key, index=cached.index, path=path, version=cached.version)


def _object_in_memory(spec: ArraySpec, key: str, source: MemorySource) -> _Object | None:
    """Return an object of a `MemoryStore`; None if it is missing, empty, or its index is damaged."""
    data = source.object_bytes(key)
    if not data:  # missing or empty
        return None
    if spec.index is None:
        return _Object(key=key, index=None, data=data)
    encoded = spec.index.encoded_index(data)
    try:
        index = decode_shard_index(encoded, spec.index, shard_nbytes=len(data), shard_name=key)
    except ShardIndexError:  # an ordinary read raises it, with the names of the array and the store
        return None
    return _Object(key=key, index=index, data=data)


def _cache_keys(array: HostArray, target: BoxTarget, source: LocalSource, stored: _Object) -> Sequence[ChunkKey]:
    """Return the keys of a box's chunks in `chunk_cache`, in C order; no keys if one of the chunks is not stored."""
    file_key = object_key(array, source.identity, stored.key)
    return [(file_key, offset) for offset in _offsets(array.spec, target, stored.index)]


def _cached_chunks(keys: Sequence[ChunkKey], source: LocalSource, stored: _Object) -> Sequence[CachedChunk] | None:
    """Return the cached chunks of `keys`; None unless all are cached, and from the version that the file has now."""
    chunks = chunk_cache.cache.entries.get_all(keys) if keys else ()
    version = source.settled_version(stored.key) if chunks and None not in chunks else None
    if version is None:
        return None
    if stored.index is not None and version != stored.version:  # the offsets in `keys` are from an outdated index
        return None
    current = [chunk for chunk in chunks if chunk is not None and chunk.version == version]
    return current if len(current) == len(keys) else None


def _remember_new(keys: Sequence[ChunkKey], array: HostArray, target: BoxTarget) -> bool:
    """Return whether all chunks of a box are stored, and an ordinary read would not keep any of them.

    An ordinary read keeps them at once, or if one of them was looked up before. If it would not, remember them, so that
    the next read may keep them.
    """
    return bool(keys) and not are_kept_at_once(array, target) and chunk_cache.cache.remember_new(keys)


def _offsets(spec: ArraySpec, target: BoxTarget, index: ShardIndex | None) -> Sequence[int]:
    """Return the offsets of a box's chunks in their object, in C order; none if one of the chunks is not stored."""
    assert target.spans is not None
    if index is None:
        return [0]
    entries = [0]  # positions of the chunks in the index of the shard, as far as the axes so far determine them
    for span, per_shard in zip(target.spans, spec.grid.chunks_per_shard, strict=True):
        numbers = [chunk % per_shard for chunk in chunks_of_span(span, range(span.n_pieces))]
        entries = [entry * per_shard + number for entry in entries for number in numbers]
    offset, nbytes = index.offset, index.nbytes
    if MISSING in [nbytes[entry] for entry in entries]:
        return []
    return [int(offset[entry]) for entry in entries]


def _call_loops(
    array: HostArray,
    target: BoxTarget,
    source: LocalSource | MemorySource,
    stored: _Object,
    chunks: Sequence[CachedChunk] | None,
    out: Array,
) -> int | None:
    """Fill `out` by one call of the loops, from the object, or from `chunks` if these are decoded already.

    Returns the number of bytes that were read; None if an ordinary read has to fill `out`.
    """
    settings = _box_settings(array)
    _scratch, scratch_address = borrow_buffer("scratch", settings.scratch_nbytes)
    struct = BoxStruct(job=settings.job_address, axes=target.spans_address, out=address(out), scratch=scratch_address)
    version: Any = ()
    if chunks is None and stored.version is not None:
        version = stored.version
    decoded = () if chunks is None else [chunk.address for chunk in chunks]
    _memory, addresses = int64_columns(version=version, decoded=decoded)
    struct.decoded = addresses["decoded"]
    if chunks is None:
        struct.most_nbytes = array.spec.max_encoded_nbytes
        if stored.index is not None:
            struct.offset, struct.nbytes = stored.index.addresses
    if stored.data is not None:
        struct.object = view_address(stored.data)
        struct.object_nbytes = len(stored.data)
    elif chunks is None:
        struct.path = stored.path
        struct.version = addresses["version"]
        _buffer, struct.room = borrow_buffer("staging", settings.buffer_nbytes)
        struct.room_nbytes = settings.buffer_nbytes
        struct.max_gap_nbytes = source.rule.max_gap_nbytes
    assert array.loops is not None
    is_placed = array.loops.read_box(ctypes.addressof(struct))
    return int(struct.n_read) if is_placed else None
