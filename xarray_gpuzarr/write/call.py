"""`WriteCall`: gather and encode the chunks of an array by the compiled loops, and write the objects.

An object is a shard, or an unsharded chunk. A file is replaced only by a complete one. Objects of other stores are
assembled in memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from itertools import product
from threading import get_ident
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.errors import HostMemoryError, StoreWriteError
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import changed
from xarray_gpuzarr.native.library import address, address_of, int64_columns, loops
from xarray_gpuzarr.native.structs import EncoderStruct, ObjectStruct
from xarray_gpuzarr.plan.targets import BoxTarget
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.write.encoder import Encoder
from xarray_gpuzarr.write.refusals import file_error, naming_object, object_name
from xarray_gpuzarr.write.stored_object import NOTHING, StoredObject, stored_bytes, stored_file
from xarray_gpuzarr.write.written_axis import written_axes

_UNIT_NBYTES = 256 * 1024
"""Length in bytes of the chunks that a thread encodes one after another and hands over together."""
_MOST_CHUNKS = 64
"""Most chunks that a thread hands over together; `MOST_CHUNKS` of `encode.h`."""
_UNITS_A_THREAD = 8
_WRITTEN, _REFUSED, _DAMAGED, _CHANGED, _NOT_ENCODED, _NO_MEMORY = range(1, 7)
"""What became of an object."""
_INT64_NBYTES = 8


class DamagedObjectError(Exception):
    """The loops cannot decode what is stored; `key` and `chunk`, its coordinate in the array, say where."""

    def __init__(self, key: str, chunk: tuple[int, ...]) -> None:
        super().__init__(key)
        self.key, self.chunk = key, chunk


@record
class WrittenObject:
    """One object of a write."""

    key: str
    coord: tuple[int, ...]
    """Coordinates of the shard."""
    at: tuple[int, ...]
    """Its number along each axis, of those that the write changes."""
    needs_old: bool
    """Whether what is stored is needed; else what the write leaves out becomes the fill value."""


class WriteCall:
    """A write to the elements `target` of an array, as the compiled loops take it.

    `value` has the shape of `target`, the array's dtype in native byte order, and any strides. `keeps_empty` says
    whether chunks of nothing but the fill value are stored, and `whole` whether each chunk that is an object is written
    as a whole, by its coordinate.
    """

    def __init__(
        self,
        encoder: Encoder,
        target: BoxTarget,
        value: npt.NDArray[Any],
        *,
        keeps_empty: bool,
        whole: Mapping[tuple[int, ...], bool] | None = None,
    ) -> None:
        self.encoder, self.spec = encoder, encoder.array.spec
        self._target, self._value = target, value
        self._output = LoopOutput(encoder.array, target, value)
        self._struct = struct = EncoderStruct.from_buffer_copy(encoder.struct)
        axes = written_axes(target, self.spec.grid)
        piece_numbers, at = int64_columns(piece=[axis.piece_address for axis in axes])
        self._referenced = axes, piece_numbers
        struct.job, struct.piece, struct.keeps_empty = self._output.address, at["piece"], keeps_empty
        self.n_threads = thread_budget()
        """Number of threads that may encode at once."""
        self.object_nbytes = len(encoder.order) * self.spec.chunk_nbytes
        """Decoded bytes of an object."""
        self.objects = []
        for numbers in product(*[range(len(axis.coords)) for axis in axes]):
            coord = tuple([axis.coords[i] for axis, i in zip(axes, numbers, strict=True)])
            is_whole = whole is not None and whole[coord]  # as one at the end of an array may be
            is_complete = is_whole or False not in [axis.are_complete[i] for axis, i in zip(axes, numbers, strict=True)]
            self.objects.append(
                WrittenObject(key=self.spec.keys.key(coord), coord=coord, at=numbers, needs_old=not is_complete)
            )

    def to_files(self, objects: Sequence[WrittenObject], source: LocalSource) -> None:
        """Write objects as files of a store; those that could not be written are as they were before.

        Raises `ObjectChangedError` if one is replaced meanwhile, `DamagedObjectError`, `StoreWriteError`, or what
        `stored_file` raises.
        """
        old = [self._stored_part(each, source) if each.needs_old else NOTHING for each in objects]
        self._check_lengths(objects, old)
        structs, suffix = (ObjectStruct * len(objects))(), f".{uuid4().hex}.partial"
        for struct, each in zip(structs, objects, strict=True):
            path = source.local_path(each.key)
            struct.path, struct.partial = os.fsencode(path), os.fsencode(path + suffix)
        self._run(objects, structs, old, source)

    def _stored_part(self, each: WrittenObject, source: LocalSource) -> StoredObject:
        """Return what is stored in a file of which a part is written."""
        with naming_object(self.spec, each.key, source.name, "to read the part that stays"):
            return stored_file(source, self.spec, each.key)

    def to_memory(
        self, objects: Sequence[WrittenObject], data: Sequence[memoryview | None], *, may_share: bool = False
    ) -> list[npt.NDArray[np.uint8] | None]:
        """Assemble objects in host memory, given what is stored of each as uint8, or None for nothing.

        Returns uint8, and None for an object that is not to be there. If `may_share`, raw chunks may be parts of the
        array that is written. Raises `HostMemoryError`, `DamagedObjectError` or `ShardIndexError`.
        """
        structs = (ObjectStruct * len(objects))()
        old = [stored_bytes(self.spec, each.key, found) for each, found in zip(objects, data, strict=True)]
        self._check_lengths(objects, old)
        rooms = []
        for each, struct, stored in zip(objects, structs, old, strict=True):
            room = self._callers_chunk(each) if may_share else None
            length = len(self.encoder.order) * self._struct.most_nbytes + self._struct.index_nbytes
            if stored.index is not None:
                length += stored.nbytes or 0  # of chunks that are carried over
            try:
                room = np.empty(length, np.uint8) if room is None else room
            except MemoryError as err:
                raise self._no_memory(str(err)) from err
            rooms.append(room)
            struct.memory, struct.memory_nbytes = address(room), len(room)
        self._run(objects, structs, old)
        for room, struct in zip(rooms, structs, strict=True):
            if room.base is None:
                room.resize(struct.nbytes, refcheck=False)  # which gives back what was not used
        return [room if struct.nbytes else None for room, struct in zip(rooms, structs, strict=True)]

    def _callers_chunk(self, each: WrittenObject) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of an object that is a chunk of the caller's array, as it lies there; None if it is not."""
        array = self.encoder.array
        if self.spec.index is not None or not array.is_raw or self._struct.swap:
            return None
        box: list[Any] = []
        for along, at, length in zip(self._target.pieces, each.at, array.chunk_shape, strict=True):
            first = int(along.out_start[at])
            if along.index is not None or along.step != 1 or along.count[at] != length:
                return None
            box.append(slice(first, first + length))
        chunk = self._value[(*box, ...)]
        is_in_order = chunk.flags.c_contiguous and chunk.strides == array.placed_strides
        return chunk.reshape(-1).view(np.uint8) if is_in_order else None

    def _run(
        self,
        objects: Sequence[WrittenObject],
        structs: ctypes.Array[ObjectStruct],
        old: Sequence[StoredObject],
        source: LocalSource | None = None,
    ) -> None:
        compiled, budget = loops(), self.n_threads
        assert compiled is not None
        # Of each: its numbers along the axes, the range of an unsharded chunk in its object, and the version of a file.
        rows = [(*each.at, 0, stored.nbytes or 0, *stored.version) for each, stored in zip(objects, old, strict=True)]
        _numbers, at = int64_columns(**dict(zip([each.key for each in objects], rows, strict=True)))
        for struct, each, stored in zip(structs, objects, old, strict=True):
            struct.at, struct.needs_old = at[each.key], each.needs_old
            if stored.nbytes is not None:
                place = at[each.key] + _INT64_NBYTES * len(each.at)
                whole = place, place + _INT64_NBYTES
                struct.old_offset, struct.old_nbytes = stored.index.addresses if stored.index else whole
                struct.old_version = place + 2 * _INT64_NBYTES
                struct.old = None if stored.data is None else address_of(stored.data)
        n_chunks = len(objects) * len(self.encoder.order)
        step = min(_MOST_CHUNKS, _UNIT_NBYTES // max(1, self.spec.chunk_nbytes), n_chunks // (budget * _UNITS_A_THREAD))
        self._struct.step = step = max(1, step)
        n_threads = min(len(objects) * -(len(self.encoder.order) // -step), budget)
        me, helpers = get_ident(), ctypes.c_int64(0)
        at_helpers = ctypes.addressof(helpers)
        writing = compiled.begin_write(
            ctypes.addressof(self._struct), ctypes.addressof(structs), len(objects), n_threads, budget, at_helpers
        )
        if not writing:
            raise self._no_memory("no memory is left")
        try:
            crew.run(
                lambda _: compiled.write(writing, helpers.value) if get_ident() == me else compiled.help_write(writing),
                n_threads,
                budget,
                helpers,
            )
        finally:
            n_left = compiled.end_write(writing)
        if n_left:
            self._raise(objects, structs, source)

    def _check_lengths(self, objects: Sequence[WrittenObject], old: Sequence[StoredObject]) -> None:
        """Raise `DamagedObjectError` if a chunk is longer than it may be, before memory is taken for it."""
        for each, stored in zip(objects, old, strict=True):
            entry = 0 if stored.index is None else int(stored.index.nbytes.argmax())
            longest = (stored.nbytes or 0) if stored.index is None else int(stored.index.nbytes[entry])
            if longest > self.spec.most_nbytes:
                raise DamagedObjectError(each.key, self._chunk(each, entry))

    def _raise(
        self, objects: Sequence[WrittenObject], structs: ctypes.Array[ObjectStruct], source: LocalSource | None
    ) -> None:
        """Raise the error of an object that was not written."""
        failed = [(each, struct) for each, struct in zip(objects, structs, strict=True) if struct.state > _WRITTEN]
        each, struct = min(failed, key=lambda one: one[1].state == _CHANGED) if failed else (objects[0], structs[0])
        n_written = sum(struct.state == _WRITTEN for struct in structs)
        if struct.state == _CHANGED:
            raise changed(each.key, None, None)
        if struct.state == _DAMAGED:
            raise DamagedObjectError(each.key, self._chunk(each, struct.entry))
        if struct.state not in (_REFUSED, _NOT_ENCODED):
            raise self._no_memory("no memory is left")
        cause = None
        if struct.state == _REFUSED and source is not None:
            cause = file_error(struct.code, source.local_path(each.key))
        name = object_name(self.spec)
        where = "" if struct.entry < 0 else f", at chunk {self._chunk(each, struct.entry)}"
        error = StoreWriteError(
            f"cannot write {name} '{each.key}' of array '{self.spec.path}'",
            tried=f"{len(objects)} {name}{'s'[: len(objects) > 1]}, of which {n_written} have been written{where}",
            found="the codec cannot encode the chunk" if cause is None else str(cause),
            do=f"mend what was found and write again; the {name} is as it was before, and none is in part",
        )
        raise error if source is None else error.within(source.name) from cause

    def _no_memory(self, reason: str) -> HostMemoryError:
        return HostMemoryError(
            f"not enough host memory to write array '{self.spec.path}'",
            tried=f"to encode chunks of {self.spec.chunk_nbytes} bytes, {len(self.encoder.order)} in an object",
            found=reason,
            do="write in fewer threads at once, or choose smaller chunks and shards",
        )

    def changed(self, objects: Sequence[WrittenObject]) -> StoreWriteError:
        """Return the error for objects that another process keeps replacing."""
        return StoreWriteError(
            f"cannot write parts of array '{self.spec.path}'",
            tried=f"'{objects[0].key}' and {len(objects) - 1} more, several times",
            found="another process replaces them meanwhile",
            do="let one process at a time write to a shard, and give each task whole shards",
        )

    def _chunk(self, each: WrittenObject, entry: int) -> tuple[int, ...]:
        """Return the coordinate of a chunk of an object in the grid of chunks."""
        per_object = self.spec.grid.chunks_per_shard
        inside = np.unravel_index(entry, per_object) if per_object else ()
        return tuple([c * n + int(i) for c, n, i in zip(each.coord, per_object, inside, strict=True)])
