"""Short reads: a box of a few chunks of one local file, read by a single call of the compiled loops.

In an ordinary read, the work of Python (a snapshot of the shards, a table of the chunks) takes longer than decoding a
chunk of 64 KB. A short read passes the box, the cached index of the shard and the output to one call, which looks up,
reads, decodes and places the chunks on the calling thread.

A short read succeeds only if all chunks are stored and the file has the version that the index was read from. Chunks of
which a part is requested may come from `chunk_cache`. In all other cases, and if chunks are to be kept in the cache,
`read_short` returns None, and an ordinary read starts from the beginning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xarray_gpuzarr.decoders.host import chunk_cache
from xarray_gpuzarr.decoders.host.chunk_cache import CachedChunk, ChunkKey, are_kept_at_once, may_be_kept, object_key
from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.decoders.host.loop_call import READ_BUFFER_NBYTES, encoded_path, whole_blocks
from xarray_gpuzarr.decoders.host.loop_output import cached_job_struct
from xarray_gpuzarr.decoders.host.schedule import Costs
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.native.library import address, int64_columns
from xarray_gpuzarr.native.structs import BoxStruct
from xarray_gpuzarr.plan.axis_pieces import chunks_of_span
from xarray_gpuzarr.plan.partial_chunks import takes_part
from xarray_gpuzarr.plan.targets import BoxTarget, Target
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.host_memory import borrow_buffer
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.shard_index import MISSING

_MOST_CHUNKS = 16
"""Most chunks in a short read; `MOST_BOX_CHUNKS` in `read_box.h`."""
_MOST_CHUNK_NBYTES = 1024 * 1024
"""Length in bytes of the longest single chunk that a short read takes. Decoding a longer one takes so long that nothing
is gained."""


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
class _File:
    """The file that holds all chunks of a box."""

    key: str
    path: bytes
    index: CachedIndex | None
    """Index of the shard, with the version that the file must have; None for an unsharded chunk."""


def read_short(
    array: HostArray, target: Target, source: Any, out: Array | None, *, costs: Costs, keeps_chunks: bool
) -> Array | None:
    """Read a box of a few chunks of one local file, or return None if an ordinary read has to.

    Parameters
    ----------
    array : HostArray
        The array and the cast of its elements.
    target : Target
        Requested elements, cut at the borders of chunks.
    source : ObjectSource
        Where the array is stored.
    out : numpy.ndarray or None
        Where the result goes; None for a new array.
    costs : Costs
        Determines which reads are so short that further threads do not help.
    keeps_chunks : bool
        Whether chunks of which a part is requested are kept in `chunk_cache`.

    Returns
    -------
    numpy.ndarray or None
        `out`, or a new array in C order: shape `target.shape`, dtype `array.dtype`. If None is returned, `out` may
        have been partly overwritten.
    """
    if not isinstance(target, BoxTarget) or type(source) is not LocalSource or not _is_short(array, target, costs):
        return None
    file = _file_of(array.spec, target, source) if _may_hold(out, array, target) else None
    if file is None:
        return None
    uses_cache = keeps_chunks and may_be_kept(array, target.n_chunks) and takes_part(target)
    keys = _cache_keys(array, target, source, file) if uses_cache else ()
    chunks = _kept_chunks(keys, source, file)
    if uses_cache and chunks is None:
        if not keys or are_kept_at_once(array, target) or not chunk_cache.cache.see_first(keys):
            return None
        counters.add(n_cache_misses=len(keys))
    if out is None:
        out = host_memory.result_memory.empty(target.shape, array.dtype)
    nbytes = _call_loops(array, target, source, file, chunks, out)
    if nbytes is None:
        return None
    decoded_nbytes = target.n_chunks * array.chunk_nbytes
    counters.add(n_reads=1, n_shards=1, read_nbytes=nbytes, decoded_nbytes=decoded_nbytes)
    if chunks is not None:
        counters.add(n_cache_hits=len(chunks), cached_nbytes=decoded_nbytes)
    return out


def _may_hold(out: Array | None, array: HostArray, target: BoxTarget) -> bool:
    """Whether the loops can write the result straight into `out`, or `out` is None."""
    return out is None or (out.shape == target.shape and out.dtype == array.dtype and out.flags.carray)


def _is_short(array: HostArray, target: BoxTarget, costs: Costs) -> bool:
    """Whether one thread reads the box as fast as several threads would, and the compiled loops know the codecs."""
    n_chunks = target.n_chunks
    if array.program is None or target.spans is None or not 0 < n_chunks <= _MOST_CHUNKS:
        return False
    if n_chunks == 1:
        return array.chunk_nbytes <= _MOST_CHUNK_NBYTES
    return n_chunks * array.chunk_nbytes <= 2 * costs.loop_thread_s * array.rate


def _file_of(spec: ArraySpec, target: BoxTarget, source: LocalSource) -> _File | None:
    """Return the file that holds all chunks of a box; None if there are several, or the shard's index is not cached."""
    shards = target.shards()
    shard = next(shards)
    if next(shards, None) is not None:
        return None
    key = spec.keys.key(tuple([coordinate for coordinate, _ in shard]))
    path = encoded_path(source.local_path(key))
    index = None if spec.index is None else index_cache.cache.get((source.identity, key, spec.index))
    if path is None or (index is None and spec.index is not None):
        return None
    return _File(key=key, path=path, index=index)


def _cache_keys(array: HostArray, target: BoxTarget, source: LocalSource, file: _File) -> Sequence[ChunkKey]:
    """Return the keys of a box's chunks in `chunk_cache`, in C order; no keys if one of the chunks is not stored."""
    file_key = object_key(array, source.identity, file.key)
    return [(file_key, offset) for offset in _offsets(array.spec, target, file.index)]


def _kept_chunks(keys: Sequence[ChunkKey], source: LocalSource, file: _File) -> Sequence[CachedChunk] | None:
    """Return the cached chunks of `keys`; None unless all are cached, and from the version that the file has now."""
    chunks = chunk_cache.cache.entries.get_all(keys) if keys else ()
    version = source.settled_version(file.key) if chunks and None not in chunks else None
    if version is None or (file.index is not None and version != file.index.version):
        return None
    current = [chunk for chunk in chunks if chunk is not None and chunk.version == version]
    return current if len(current) == len(keys) else None


def _offsets(spec: ArraySpec, target: BoxTarget, index: CachedIndex | None) -> Sequence[int]:
    """Return the offsets of a box's chunks in the file, in C order; no offsets if one of the chunks is not stored."""
    assert target.spans is not None
    if index is None:
        return [0]
    entries = [0]  # positions in the index of the shard
    for span, per_shard in zip(target.spans, spec.grid.chunks_per_shard, strict=True):
        numbers = [chunk % per_shard for chunk in chunks_of_span(span, range(span.n_pieces))]
        entries = [entry * per_shard + number for entry in entries for number in numbers]
    offset, nbytes = index.index.offset, index.index.nbytes
    if MISSING in [nbytes[entry] for entry in entries]:
        return []
    return [int(offset[entry]) for entry in entries]


def _call_loops(
    array: HostArray,
    target: BoxTarget,
    source: LocalSource,
    file: _File,
    chunks: Sequence[CachedChunk] | None,
    out: Array,
) -> int | None:
    """Fill `out` by one call of the loops, from the file, or from `chunks` if these are decoded already.

    Returns the number of bytes that were read; None if an ordinary read has to fill `out`.
    """
    settings = _box_settings(array)
    _scratch, scratch_address = borrow_buffer("scratch", settings.scratch_nbytes)
    struct = BoxStruct(
        job=settings.job_address, axes=target.spans_address, path=file.path, out=address(out), scratch=scratch_address
    )
    version = () if file.index is None or chunks is not None else file.index.version
    decoded = () if chunks is None else [chunk.address for chunk in chunks]
    _memory, addresses = int64_columns(version=version, decoded=decoded)
    struct.decoded = addresses["decoded"]
    if chunks is None:
        _buffer, struct.room = borrow_buffer("staging", settings.buffer_nbytes)
        struct.room_nbytes = settings.buffer_nbytes
        struct.most_nbytes = array.spec.max_encoded_nbytes
        struct.max_gap_nbytes = source.rule.max_gap_nbytes
        struct.version = addresses["version"]
        if file.index is not None:
            struct.offset, struct.nbytes = file.index.index.addresses
    assert array.loops is not None
    is_placed = array.loops.read_box(ctypes.addressof(struct))
    return int(struct.n_read) if is_placed else None
