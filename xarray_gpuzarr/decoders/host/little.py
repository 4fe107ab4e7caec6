"""Little reads of local files: one call of the compiled loops for boxes of a few shards, or of chunks that are files.

To plan such a read in Python takes as long as to carry it out. Here the loops cut the selection at the borders of
chunks and look these up in an index that is known. They read what is in memory, and do all of a read or nothing: what
they do not know, what is missing, damaged, changed or not in memory is read, and complained of, as any other.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.codecs import decoded_rate
from xarray_gpuzarr.decoders.host.native_program import NativeProgram, native_program
from xarray_gpuzarr.decoders.host.native_rows import address, job_struct
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.fetch import LocalSource, ObjectSource, index_cache
from xarray_gpuzarr.fetch.index_cache import CachedIndex
from xarray_gpuzarr.native import Loops
from xarray_gpuzarr.native.library import ObjectsStruct, ObjectStruct
from xarray_gpuzarr.plan.object_box import ObjectBox, object_boxes
from xarray_gpuzarr.plan.read_plan import BoxTarget
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

_MOST_CHUNK_NBYTES = 4 * 1024 * 1024
"""Decoding a longer one takes ten times as long as planning."""
_ROOM_NBYTES = 256 * 1024
"""Of neighbours that are read at once; they stay in a core's cache."""
_BLOCK_NBYTES = 512
_MOST_OBJECTS = 8
"""Of one read. Each takes Python 10 us; 27 raw chunks of 64 KiB took 740 us so, and 570 planned (November 2026)."""
_PAUSE = 16
"""Reads of an array that are planned after one that was left: what is sparse, or not in memory, mostly stays so."""


class LittleReads:
    """What little reads of one array have in common.

    Parameters
    ----------
    spec : ArraySpec
    program : NativeProgram
    cast : Cast
    """

    def __init__(self, spec: ArraySpec, program: NativeProgram, cast: Cast) -> None:
        grid = spec.grid
        self._kept = _int64(*grid.chunk_shape, *grid.chunks_per_shard, *program.strides(spec)), program
        self.chunk_shape = ctypes.addressof(self._kept[0])
        """Address; that of the chunks of a shard follows."""
        self.job = job_struct(program, ndim=grid.ndim, in_strides=self.chunk_shape + 16 * grid.ndim)
        self.dtype = np.dtype(cast.dtype)
        self.chunk_nbytes = spec.chunk_nbytes
        self.scratch_nbytes = program.scratch_nbytes
        """Of each thread."""
        self.rate = decoded_rate(spec.codecs)
        """Bytes that a thread decodes in a second."""
        self.is_copied = program.is_copied
        self.room_nbytes = max(_ROOM_NBYTES, -(-spec.most_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES)
        self.n_planned = 0
        """Reads that are to be planned before the next little one."""

    def pause(self) -> None:
        """Have the next reads planned, since one was left."""
        self.n_planned = _PAUSE

    def is_paused(self) -> bool:
        """Say whether a read is to be planned, and count it."""
        if self.n_planned > 0:
            self.n_planned -= 1
            return True
        return False


@lru_cache(maxsize=128)
def _little_reads(spec: ArraySpec, cast: Cast) -> LittleReads | None:
    """Return what little reads of an array have in common; None if it is nothing for the loops."""
    if not spec.grid.ndim or spec.chunk_nbytes > _MOST_CHUNK_NBYTES:
        return None
    program = native_program(spec.codecs, spec.chunk_nbytes, spec.numpy_dtype, cast)
    return None if program is None else LittleReads(spec, program, cast)


def common_of(spec: ArraySpec, target: BoxTarget | StackTarget, cast: Cast) -> LittleReads | None:
    """Return what little reads of an array have in common; None if a target is nothing for the loops."""
    if not target.n_chunks or any(pieces.index is not None for pieces in target.pieces):
        return None
    return _little_reads(spec, cast)


@record
class _Object:
    """A shard, or a chunk that is a file."""

    path: bytes
    known: CachedIndex | None
    """The index of a shard."""
    box: ObjectBox
    """What is wanted of it."""
    at: tuple[int, ...]
    """Where the first element of that goes in the output."""


@record
class LittleRead:
    """A box that lies in a few objects."""

    common: LittleReads
    nbytes: int
    """Of the chunks that it touches, decoded."""
    objects: list[_Object]
    max_gap_nbytes: int
    """Unwanted bytes that are read between neighbours."""

    @property
    def seconds(self) -> float:
        """About how long one thread decodes it."""
        return self.nbytes / self.common.rate

    def carry_out(self, loops: Loops, out: npt.NDArray[Any], n_threads: int) -> int | None:
        """Read, decode and place it.

        Parameters
        ----------
        loops : Loops
        out : ndarray, dtype of the cast, any strides
            Of the shape of what is wanted.
        n_threads : int

        Returns
        -------
        int or None
            Bytes that were read; None if anything was left: then `out` holds anything.
        """
        common, n_objects = self.common, len(self.objects)
        scratch = buffer("scratch", common.scratch_nbytes * n_threads)
        room = buffer("staging", common.room_nbytes * n_threads)
        strides, slices = _int64(*out.strides), [*map(_slices, self.objects)]
        structs = (ObjectStruct * n_objects)(*map(_struct, self.objects, slices, _starts(self.objects, out)))
        struct = ObjectsStruct(
            chunk_shape=common.chunk_shape,
            n_chunks=common.chunk_shape + 8 * out.ndim,
            out_strides=ctypes.addressof(strides),
            objects=ctypes.addressof(structs),
            scratch=address(scratch),
            room=address(room),
            n_objects=n_objects,
            room_nbytes=common.room_nbytes,
            max_gap_nbytes=self.max_gap_nbytes,
            n_threads=n_threads,
        )
        if not loops.read_objects(ctypes.addressof(common.job), ctypes.addressof(struct)):
            common.pause()
            return None
        return int(struct.n_read)


def _slices(one: _Object) -> ctypes.Array[ctypes.c_int64]:
    """Return what is wanted of an object: first elements, counts and steps along its axes; a shard's version."""
    version: Any = () if one.known is None else one.known.version
    return _int64(*one.box.first, *one.box.count, *one.box.step, *version)


def _starts(objects: Sequence[_Object], out: npt.NDArray[Any]) -> Iterator[int]:
    """Return the addresses of the first elements of objects."""
    start, strides = address(out), out.strides
    return (start + sum(map(mul, one.at, strides)) for one in objects)


def _struct(one: _Object, slices: ctypes.Array[ctypes.c_int64], out: int) -> ObjectStruct:
    index = None if one.known is None else one.known.index
    return ObjectStruct(
        path=one.path,
        offset=None if index is None else address(index.offset),
        nbytes=None if index is None else address(index.nbytes),
        slices=ctypes.addressof(slices),
        out=out,
    )


def _int64(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def little_read(source: ObjectSource, spec: ArraySpec, target: BoxTarget, cast: Cast) -> LittleRead | None:
    """Return a target as boxes of objects that the loops may read; None if it is none.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    target : BoxTarget
    cast : Cast
    """
    common = common_of(spec, target, cast)
    if common is None or not isinstance(source, LocalSource):
        return None
    n_objects = 1
    for pieces, n in zip(target.pieces, spec.grid.chunks_per_shard, strict=True):
        if len(pieces.chunk) > 1:
            n_objects *= int(pieces.chunk[-1]) // n - int(pieces.chunk[0]) // n + 1
    if n_objects > _MOST_OBJECTS:
        return None
    if common.is_paused():
        return None
    objects = []
    for box, at in object_boxes(target, spec.grid):
        one = _object(source, spec, box, at)
        if one is None:
            return None
        objects.append(one)
    return LittleRead(
        common=common,
        nbytes=target.n_chunks * common.chunk_nbytes,
        objects=objects,
        max_gap_nbytes=source.rule.max_gap_nbytes,
    )


def little_box(source: ObjectSource, spec: ArraySpec, box: ObjectBox, cast: Cast) -> LittleRead | None:
    """Return a box of one object as one that the loops may read; None if it is none.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    box : ObjectBox
    cast : Cast
    """
    common = _little_reads(spec, cast)
    if common is None or not isinstance(source, LocalSource) or common.is_paused():
        return None
    one = _object(source, spec, box, (0,) * len(box.coord))
    if one is None:
        return None
    nbytes = box.most_chunks(spec.grid.chunk_shape) * common.chunk_nbytes
    return LittleRead(common=common, nbytes=nbytes, objects=[one], max_gap_nbytes=source.rule.max_gap_nbytes)


def _object(source: LocalSource, spec: ArraySpec, box: ObjectBox, at: tuple[int, ...]) -> _Object | None:
    """Return an object; None if the loops may not read it."""
    key = spec.keys.key(box.coord)
    path = os.fsencode(source.local_path(key))
    known = None if spec.index is None else index_cache.cache.get((source.identity, key, spec.index))
    if b"\0" in path or (known is None and spec.index is not None):
        return None
    return _Object(path=path, known=known, box=box, at=at)
