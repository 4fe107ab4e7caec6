"""`WrittenObject`: an object that a write touches. `set_stored` describes several to the compiled loops."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from xarray_gpuzarr.native.library import int64_columns, view_address
from xarray_gpuzarr.native.structs import ObjectStruct
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.write.stored_object import StoredObject
from xarray_gpuzarr.write.written_axis import WrittenAxis

_INT64_NBYTES = 8
_NO_VERSION = (0,) * 5
"""Stands for the version of an object that is not a file; the loops do not look at it. It has as many numbers as a
version: `VERSION_NUMBERS` in `job.h`."""


class DamagedObjectError(Exception):
    """The loops cannot decode a stored chunk of which a part is written.

    Attributes
    ----------
    key : str
        Key of the object.
    chunk : tuple of int
        Coordinates of the chunk in the array's grid of chunks.
    """

    def __init__(self, key: str, chunk: tuple[int, ...]) -> None:
        super().__init__(key)
        self.key = key
        self.chunk = chunk


@record
class WrittenObject:
    """One object of a write."""

    key: str
    """Key in the store."""
    coord: tuple[int, ...]
    """Coordinates in the grid of shards, or of unsharded chunks."""
    positions: tuple[int, ...]
    """Along each axis, the object's position among those that the write touches."""
    needs_stored: bool
    """Whether the write needs what is stored. If not, elements of the object that are not written become the fill
    value."""

    def chunk_coord(self, entry: int, chunks_per_object: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates, in the array's grid of chunks, of the object's chunk with number `entry`."""
        in_object = np.unravel_index(entry, chunks_per_object) if chunks_per_object else ()
        return tuple([c * n + int(i) for c, n, i in zip(self.coord, chunks_per_object, in_object, strict=True)])


def written_objects(
    spec: ArraySpec, axes: Sequence[WrittenAxis], is_covered: Mapping[tuple[int, ...], bool] | None
) -> list[WrittenObject]:
    """Return the objects that a write touches, in C order.

    What is stored of an object is not needed if all its elements along every axis are written, or if `is_covered` is
    true for it; see `WriteCall`.
    """
    objects = []
    for positions in product(*[range(len(axis.coords)) for axis in axes]):
        coord = tuple([axis.coords[i] for axis, i in zip(axes, positions, strict=True)])
        is_complete = is_covered is not None and is_covered[coord]
        if not is_complete:
            is_complete = False not in [axis.are_complete[i] for axis, i in zip(axes, positions, strict=True)]
        key = spec.keys.key(coord)
        objects.append(WrittenObject(key=key, coord=coord, positions=positions, needs_stored=not is_complete))
    return objects


def set_stored(
    structs: ctypes.Array[ObjectStruct], objects: Sequence[WrittenObject], stored: Sequence[StoredObject]
) -> object:
    """Fill in the fields of structs that say where objects lie in a write, and what is stored of them.

    Parameters
    ----------
    structs : ctypes array of ObjectStruct
        The structs to fill in, one for each object.
    objects : sequence of WrittenObject
        One object or more.
    stored : sequence of StoredObject
        What is stored of each object.

    Returns
    -------
    object
        Host memory that the structs point to, besides that of `stored`. The caller keeps it alive.
    """
    memory, addresses = int64_columns(
        positions=[position for written in objects for position in written.positions],
        # Offset and length of the one chunk of an unsharded object.
        ranges=[number for stored_object in stored for number in (0, stored_object.nbytes or 0)],
        versions=[number for stored_object in stored for number in stored_object.version or _NO_VERSION],
    )

    position_address = addresses["positions"]
    range_address = addresses["ranges"]
    version_address = addresses["versions"]
    for written, struct, stored_object in zip(objects, structs, stored, strict=True):
        struct.at = position_address
        struct.needs_old = written.needs_stored
        if stored_object.nbytes is not None:
            if stored_object.index is None:
                struct.old_offset = range_address
                struct.old_nbytes = range_address + _INT64_NBYTES
            else:
                struct.old_offset, struct.old_nbytes = stored_object.index.addresses
            struct.old_version = version_address
            struct.old = None if stored_object.data is None else view_address(stored_object.data)
        position_address += len(written.positions) * _INT64_NBYTES
        range_address += 2 * _INT64_NBYTES
        version_address += len(_NO_VERSION) * _INT64_NBYTES
    return memory
