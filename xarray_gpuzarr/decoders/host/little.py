"""Little reads of local files: one call of the compiled loops for a box of one shard, or of a chunk that is a file.

To plan such a read in Python takes as long as to carry it out. Here the loops cut the selection at the borders of
chunks and look these up in an index that is known. They read what is in memory, and do all of a box or nothing: what
they do not know, what is missing, damaged, changed or not in memory is read, and complained of, as any other.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from operator import floordiv
from typing import Any

import numpy.typing as npt

from xarray_gpuzarr.decoders.host.codecs import chunk_codec, decoded_rate
from xarray_gpuzarr.decoders.host.native_rows import address
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.fetch import LocalSource, ObjectSource, index_cache
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.native import Loops, NativeCodec
from xarray_gpuzarr.native.library import BoxStruct, JobStruct
from xarray_gpuzarr.plan.read_plan import BoxTarget, Target
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

_MOST_CHUNK_NBYTES = 4 * 1024 * 1024
"""Decoding a longer one takes ten times as long as planning."""
_ROOM_NBYTES = 256 * 1024
"""Of neighbours that are read at once; they stay in a core's cache."""
_BLOCK_NBYTES = 512
_PAUSE = 16
"""Reads of an array that are planned after one that was left: what is sparse, or not in memory, mostly stays so."""


class LittleReads:
    """What little reads of one array have in common.

    Parameters
    ----------
    spec : ArraySpec
    codec : NativeCodec
    """

    def __init__(self, spec: ArraySpec, codec: NativeCodec) -> None:
        grid = spec.grid
        self._kept = _int64(*grid.chunk_shape, *grid.chunks_per_shard, *spec.chunk_strides)
        self.chunk_shape = ctypes.addressof(self._kept)
        """Address; that of the chunks of a shard follows."""
        self.job = JobStruct(
            codec=codec.number,
            chunk_nbytes=spec.chunk_nbytes,
            itemsize=spec.numpy_dtype.itemsize,
            ndim=grid.ndim,
            in_strides=self.chunk_shape + 16 * grid.ndim,
            decode=codec.decode,
            make_context=codec.make_context,
            free_context=codec.free_context,
            decode_part=codec.decode_part,
            restart=codec.restart,
        )
        self.dtype = spec.numpy_dtype
        self.chunk_nbytes = spec.chunk_nbytes
        self.rate = decoded_rate(spec.codecs)
        """Bytes that a thread decodes in a second."""
        self.is_copied = codec.number == 0
        self.room_nbytes = max(_ROOM_NBYTES, -(-spec.most_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES)
        self.n_planned = 0
        """Reads that are to be planned before the next little one."""


@lru_cache(maxsize=128)
def _little_reads(spec: ArraySpec) -> LittleReads | None:
    """Return what little reads of an array have in common; None if it is nothing for the loops."""
    if spec.codecs.other or not spec.grid.ndim or not 0 < spec.chunk_nbytes <= _MOST_CHUNK_NBYTES:
        return None
    codec = chunk_codec(spec.codecs, spec.chunk_nbytes).native
    return None if codec is None else LittleReads(spec, codec)


@record
class LittleBox:
    """A box of one object."""

    common: LittleReads
    spec: ArraySpec
    target: BoxTarget
    """Of slices."""
    nbytes: int
    """Of the chunks that it touches, decoded."""
    path: bytes
    known: CachedIndex | None
    """The index of the shard; None of a chunk that is a file."""
    max_gap_nbytes: int
    """Unwanted bytes that are read between neighbours."""

    @property
    def seconds(self) -> float:
        """About how long one thread decodes it."""
        return self.nbytes / self.common.rate

    def read(self, loops: Loops, out: npt.NDArray[Any], n_threads: int) -> int | None:
        """Read, decode and place it.

        Parameters
        ----------
        loops : Loops
        out : ndarray, shape `target.shape`, stored dtype, any strides
        n_threads : int

        Returns
        -------
        int or None
            Bytes that were read; None if anything was left: then `out` holds anything.
        """
        common, grid, pieces = self.common, self.spec.grid, self.target.pieces
        axes = zip(pieces, grid.chunk_shape, grid.chunks_per_shard, strict=True)
        first = (int(p.chunk[0]) % per_shard * length + int(p.in_start[0]) for p, length, per_shard in axes)
        version: Any = () if self.known is None else self.known.version
        shape = self.target.shape
        # Any number may follow a single element.
        steps = (1 if n == 1 else p.step for n, p in zip(shape, pieces, strict=True))
        numbers = _int64(*first, *shape, *steps, *out.strides, *version)
        at, each = ctypes.addressof(numbers), 8 * grid.ndim
        scratch = buffer("scratch", common.chunk_nbytes * n_threads)
        room = buffer("staging", common.room_nbytes * n_threads)
        struct = BoxStruct(
            chunk_shape=common.chunk_shape,
            n_chunks=common.chunk_shape + each,
            first=at,
            count=at + each,
            step=at + 2 * each,
            out_strides=at + 3 * each,
            out=address(out),
            path=self.path,
            offset=0 if self.known is None else address(self.known.index.offset),
            nbytes=0 if self.known is None else address(self.known.index.nbytes),
            version=at + 4 * each if version else 0,
            scratch=address(scratch),
            room=address(room),
            room_nbytes=common.room_nbytes,
            max_gap_nbytes=self.max_gap_nbytes,
            n_threads=n_threads,
        )
        if not loops.read_box(ctypes.addressof(common.job), ctypes.addressof(struct)):
            common.n_planned = _PAUSE
            return None
        return int(struct.n_read)


def _int64(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def little_box(source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast) -> LittleBox | None:
    """Return a target as a box of one object that the loops may read; None if it is none.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    target : Target
    cast : Cast
    """
    if not isinstance(source, LocalSource) or not isinstance(target, BoxTarget):
        return None
    n_chunks = target.n_chunks
    common = _little_reads(spec) if cast.is_copy and cast.dtype == spec.dtype and n_chunks else None
    shard = None if common is None else _only_shard(spec, target)
    if common is None or shard is None:
        return None
    if common.n_planned > 0:
        common.n_planned -= 1
        return None
    key, known = spec.keys.key(shard), None
    if spec.index is not None:
        known = index_cache.cache.get((source.identity, key, spec.index))
        if known is None:
            return None
    path = os.fsencode(source.local_path(key))
    if b"\0" in path:
        return None
    return LittleBox(
        common=common,
        spec=spec,
        target=target,
        nbytes=n_chunks * common.chunk_nbytes,
        path=path,
        known=known,
        max_gap_nbytes=source.rule.max_gap_nbytes,
    )


def _only_shard(spec: ArraySpec, target: BoxTarget) -> tuple[int, ...] | None:
    """Return the coordinate of the only shard that a target touches; None if it touches others, or is no slices."""
    if any(pieces.index is not None for pieces in target.pieces):
        return None
    first, last = (
        tuple(map(floordiv, (int(pieces.chunk[end]) for pieces in target.pieces), spec.grid.chunks_per_shard))
        for end in (0, -1)
    )
    return first if first == last else None
