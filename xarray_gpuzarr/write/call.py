"""`WriteCall`: gather and encode the chunks of an array with the compiled loops, and write the objects.

An object is a shard, or an unsharded chunk. Objects of local stores are files: the loops write a new file beside the
old one, and rename it when it is complete. Objects of other stores are assembled in memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.native.library import address, int64_columns
from xarray_gpuzarr.native.structs import EncoderStruct, ObjectStruct
from xarray_gpuzarr.plan.targets import BoxTarget
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.write.encoder import Encoder
from xarray_gpuzarr.write.refusals import (
    encoding_memory_error,
    file_error,
    naming_object,
    object_name,
    unwritten_error,
)
from xarray_gpuzarr.write.stored_object import NOTHING, StoredObject, object_in_file, object_in_memory
from xarray_gpuzarr.write.written_axis import written_axes
from xarray_gpuzarr.write.written_object import DamagedObjectError, WrittenObject, set_stored, written_objects

_UNIT_NBYTES = 256 * 1024
"""Decoded bytes of a unit: the chunks that a thread encodes, in its core's cache, before it writes them."""
_MAX_UNIT_CHUNKS = 64
"""Largest number of chunks in a unit; `MOST_CHUNKS` of `write_state.h`."""
_UNITS_PER_THREAD = 8
"""Smallest number of units for each thread, as far as there are chunks, so that all threads end at about one time."""

# States of an object after a write, as in `write_state.h`.
_WRITTEN = 1
_REFUSED = 2
_DAMAGED = 3
_REPLACED = 4
_NOT_ENCODED = 5


class WriteCall:
    """A write to some elements of an array, as the compiled loops carry it out.

    Parameters
    ----------
    encoder : Encoder
        How the array's chunks are encoded.
    target : BoxTarget
        The elements that are written.
    value : numpy.ndarray
        Their values: shape of `target`, the array's dtype in native byte order, any strides, in host memory.
    keeps_empty : bool
        Whether chunks that hold only the fill value are stored.
    is_covered : mapping of tuple of int to bool, optional
        For arrays without shards: by the coordinates of each chunk, whether all its elements that lie in the array are
        written. Without it, an object that reaches beyond the end of the array counts as written in part, and is read.
    """

    def __init__(
        self,
        encoder: Encoder,
        target: BoxTarget,
        value: npt.NDArray[Any],
        *,
        keeps_empty: bool,
        is_covered: Mapping[tuple[int, ...], bool] | None = None,
    ) -> None:
        self.encoder = encoder
        self.spec = encoder.array.spec
        self._target = target
        self._value = value
        self._output = LoopOutput(encoder.array, target, value)
        axes = written_axes(target, self.spec.grid)
        piece_addresses, addresses = int64_columns(piece=[axis.piece_address for axis in axes])
        self._referenced = axes, piece_addresses
        """Objects that own memory to which `_struct` points."""
        self._struct = EncoderStruct.from_buffer_copy(encoder.struct)
        self._struct.job = self._output.address  # the loops go over the values as over the output of a read
        self._struct.piece = addresses["piece"]
        self._struct.keeps_empty = keeps_empty
        self.max_threads = thread_budget()
        """Number of threads of this process that may encode at once."""
        self._n_per_object = len(encoder.order)
        """Number of chunks of an object."""
        self.object_nbytes = self._n_per_object * self.spec.chunk_nbytes
        """Decoded bytes of an object."""
        self.objects = written_objects(self.spec, axes, is_covered)
        """The objects that the write touches, in C order."""

    def to_files(self, objects: Sequence[WrittenObject], source: LocalSource) -> None:
        """Write objects as files of a store. Objects that could not be written are as they were before.

        Raises
        ------
        ObjectChangedError
            If another process replaces an object at the same time.
        DamagedObjectError
            If a chunk that is written in part cannot be decoded.
        StoreWriteError
            If a file cannot be read or written, or a chunk not encoded.
        ShardIndexError
            If the index of a shard that is written in part is damaged.
        HostMemoryError
            If there is not enough memory.
        """
        stored_objects = [self._stored_part(obj, source) if obj.needs_stored else NOTHING for obj in objects]
        structs = (ObjectStruct * len(objects))()
        suffix = f".{uuid4().hex}.partial"
        for written, struct in zip(objects, structs, strict=True):
            path = source.local_path(written.key)
            struct.path = os.fsencode(path)
            struct.partial = os.fsencode(path + suffix)
        self._encode(objects, structs, stored_objects, source)

    def _stored_part(self, written: WrittenObject, source: LocalSource) -> StoredObject:
        """Return what is stored in the file of an object of which a part is written."""
        with naming_object(self.spec, written.key, source.name, "to read the part that stays"):
            stored = object_in_file(source, self.spec, written.key)
        self._check_length(written, stored)
        return stored

    def to_memory(
        self, objects: Sequence[WrittenObject], stored: Sequence[memoryview | None], *, may_share: bool = False
    ) -> list[npt.NDArray[np.uint8] | None]:
        """Assemble objects in host memory.

        Parameters
        ----------
        objects : sequence of WrittenObject
            Some of `self.objects`.
        stored : sequence of memoryview of uint8, or None
            All bytes of each object as it is stored; None if it is not stored, or not needed.
        may_share : bool
            Whether the result may share memory with the values that are written. Raw chunks that are contiguous there
            are then not copied.

        Returns
        -------
        list of numpy.ndarray of uint8, or None
            The bytes of each object; None for an object that holds only the fill value, and should not be stored.

        Raises
        ------
        DamagedObjectError, ShardIndexError, StoreWriteError, HostMemoryError
            As for `to_files`.
        """
        stored_objects = [object_in_memory(self.spec, obj.key, data) for obj, data in zip(objects, stored, strict=True)]
        for written, stored_object in zip(objects, stored_objects, strict=True):
            self._check_length(written, stored_object)
        structs = (ObjectStruct * len(objects))()
        buffers = []
        for written, struct, stored_object in zip(objects, structs, stored_objects, strict=True):
            buffer = self._contiguous_chunk(written) if may_share else None
            if buffer is None:
                buffer = self._new_buffer(stored_object)
            buffers.append(buffer)
            struct.memory = address(buffer)
            struct.memory_nbytes = len(buffer)
        self._encode(objects, structs, stored_objects, None)

        encoded: list[npt.NDArray[np.uint8] | None] = []
        for buffer, struct in zip(buffers, structs, strict=True):
            if buffer.base is None:  # a new buffer; the memory that was not used is given back
                buffer.resize(struct.nbytes, refcheck=False)  # the references in `buffers` and `buffer` are no views
            encoded.append(buffer if struct.nbytes else None)  # no bytes: the object holds only the fill value
        return encoded

    def _contiguous_chunk(self, written: WrittenObject) -> npt.NDArray[np.uint8] | None:
        """Return a raw, unsharded chunk as a view of the values; None if it is encoded, or not contiguous there."""
        array = self.encoder.array
        if self.spec.index is not None or not array.is_raw or self._struct.swap:
            return None
        box: list[Any] = []
        for pieces, position, length in zip(self._target.pieces, written.positions, array.chunk_shape, strict=True):
            if pieces.index is not None or pieces.step != 1 or pieces.count[position] != length:
                return None
            first = int(pieces.out_start[position])
            box.append(slice(first, first + length))
        chunk = self._value[(*box, ...)]
        is_stored_transposed = chunk.strides != array.placed_strides
        if not chunk.flags.c_contiguous or is_stored_transposed:
            return None
        return chunk.reshape(-1).view(np.uint8)

    def _new_buffer(self, stored: StoredObject) -> npt.NDArray[np.uint8]:
        """Return memory that suffices for an object, given what is stored of it so far."""
        nbytes = self._n_per_object * self._struct.most_nbytes + self._struct.index_nbytes
        if stored.index is not None:  # chunks that are not written are copied, and may be longer than any new one
            nbytes += stored.nbytes or 0
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as err:
            raise encoding_memory_error(self.spec, self._n_per_object, str(err)) from err

    def _encode(
        self,
        objects: Sequence[WrittenObject],
        structs: ctypes.Array[ObjectStruct],
        stored: Sequence[StoredObject],
        source: LocalSource | None,
    ) -> None:
        """Encode objects and write each to the file, or the memory, that its struct names."""
        _referenced = set_stored(structs, objects, stored)  # must live until the loops have ended
        unit_length = self._unit_length(len(objects))
        self._struct.step = unit_length
        units_per_object = -(-self._n_per_object // unit_length)
        n_units = len(objects) * units_per_object
        n_left = self._run(structs, min(n_units, self.max_threads))
        if n_left:
            self._raise_failure(objects, structs, source)

    def _unit_length(self, n_objects: int) -> int:
        """Return the number of chunks that a thread encodes before it writes them, at least 1."""
        n_chunks = n_objects * self._n_per_object
        n_in_cache = _UNIT_NBYTES // max(1, self.spec.chunk_nbytes)
        n_for_all_threads = n_chunks // (self.max_threads * _UNITS_PER_THREAD)
        return max(1, min(_MAX_UNIT_CHUNKS, n_in_cache, n_for_all_threads))

    def _run(self, structs: ctypes.Array[ObjectStruct], n_threads: int) -> int:
        """Run the loops on up to `n_threads` threads; return the number of objects that were not written."""
        compiled = self.encoder.array.loops
        assert compiled is not None
        # Set by `crew` to the number of threads that the loops may start, and decreased as these threads end.
        n_own_threads = ctypes.c_int64(0)
        writing = compiled.begin_write(
            ctypes.addressof(self._struct),
            ctypes.addressof(structs),
            len(structs),
            n_threads,
            self.max_threads,
            ctypes.addressof(n_own_threads),
        )
        if not writing:
            raise encoding_memory_error(self.spec, self._n_per_object, "no memory is left")
        caller = get_ident()

        def write(_may_go_on: Callable[[], bool]) -> None:  # not asked: the loops end threads beyond the budget
            if get_ident() == caller:  # it also starts the loops' own threads
                compiled.write(writing, n_own_threads.value)
            else:
                compiled.help_write(writing)

        try:
            crew.run(write, n_threads, self.max_threads, n_own_threads)
        finally:
            n_left: int = compiled.end_write(writing)
        return n_left

    def _check_length(self, written: WrittenObject, stored: StoredObject) -> None:
        """Raise `DamagedObjectError` if a stored chunk is too long, before memory for it is allocated."""
        longest_chunk = 0  # its number in the object
        nbytes = stored.nbytes or 0
        if stored.index is not None:
            longest_chunk = int(stored.index.nbytes.argmax())
            nbytes = int(stored.index.nbytes[longest_chunk])
        if nbytes > self.spec.max_encoded_nbytes:
            coord = written.chunk_coord(longest_chunk, self.spec.grid.chunks_per_shard)
            raise DamagedObjectError(written.key, coord)

    def _raise_failure(
        self, objects: Sequence[WrittenObject], structs: ctypes.Array[ObjectStruct], source: LocalSource | None
    ) -> None:
        """Raise the error of an object that was not written.

        It is `ObjectChangedError`, after which the write is repeated, only if there is no other error.
        """
        written, struct = objects[0], structs[0]  # if no struct has the state of a failure
        failures = [(w, s) for w, s in zip(objects, structs, strict=True) if s.state > _WRITTEN]
        if failures:  # False is less than True, so a replaced object is chosen only if all failures are such
            written, struct = min(failures, key=lambda failure: failure[1].state == _REPLACED)
        if struct.state == _REPLACED:
            raise changed_error(written.key, None, None)
        if struct.state == _DAMAGED:
            raise DamagedObjectError(written.key, written.chunk_coord(struct.entry, self.spec.grid.chunks_per_shard))
        if struct.state not in (_REFUSED, _NOT_ENCODED):  # `NO_MEMORY` of `write_state.h`, or no state that says why
            raise encoding_memory_error(self.spec, self._n_per_object, "no memory is left")

        cause = None
        if struct.state == _REFUSED and source is not None:
            cause = file_error(struct.code, source.local_path(written.key))
        n_written = sum([s.state == _WRITTEN for s in structs])
        plural = "s" if len(objects) > 1 else ""
        tried = f"{len(objects)} {object_name(self.spec)}{plural}, of which {n_written} have been written"
        if struct.entry >= 0:
            tried += f", at chunk {written.chunk_coord(struct.entry, self.spec.grid.chunks_per_shard)}"
        error = unwritten_error(self.spec, written.key, tried, cause)
        raise error if source is None else error.within(source.name) from cause
