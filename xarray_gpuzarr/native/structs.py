"""The structs that the compiled loops take.

Each class has the fields of a struct in C, with the same names and in the same order; the declarations in C explain the
fields. When the library is loaded, `layout.check_layout` compares offsets and sizes with those that the library was
compiled with.
"""

from __future__ import annotations

import ctypes

_NUMBER = ctypes.c_int64
_ADDRESS = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_VALUES_NBYTES = 64
"""Bytes for the numbers of a step: `MOST_MASKED` numbers of `MOST_ITEMSIZE` bytes in `steps.h`."""


class StepStruct(ctypes.Structure):
    """``step_t``: one operation on elements."""

    _fields_ = (
        ("kind", _NUMBER),
        ("dtype", _NUMBER),
        ("to", _NUMBER),
        ("n_values", _NUMBER),
        ("values", ctypes.c_char * _VALUES_NBYTES),
    )

    def __init__(self, *, values: bytes, **numbers: int) -> None:
        super().__init__(**numbers)
        # If the field were assigned, ctypes would cut the values at their first zero byte.
        ctypes.memmove(ctypes.addressof(self) + StepStruct.values.offset, values, len(values))


class StepsStruct(ctypes.Structure):
    """``steps_t``: the operations that convert stored elements to those of the output."""

    _fields_ = (
        ("steps", _ADDRESS),
        ("n_steps", _NUMBER),
        ("in_itemsize", _NUMBER),
        ("out_itemsize", _NUMBER),
        ("in_swap", _NUMBER),
        ("out_swap", _NUMBER),
    )


class StageStruct(ctypes.Structure):
    """``stage_t``: an operation on a whole chunk."""

    _fields_ = (
        ("kind", _NUMBER),
        ("nbytes", _NUMBER),
        ("elementsize", _NUMBER),
        ("dtype", _NUMBER),
        ("swap", _NUMBER),
        ("steps", _ADDRESS),
    )


class JobStruct(ctypes.Structure):
    """``job_t``: an array, its codecs, and the output of a read."""

    _fields_ = (
        ("codec", _NUMBER),
        ("chunk_nbytes", _NUMBER),
        ("itemsize", _NUMBER),
        ("ndim", _NUMBER),
        ("n_pieces", _NUMBER),
        ("packed_nbytes", _NUMBER),
        ("n_stages", _NUMBER),
        ("n_checksums", _NUMBER),
        ("out_itemsize", _NUMBER),
        ("area_nbytes", _NUMBER),
        ("pieces", _ADDRESS),
        ("first_piece", _ADDRESS),
        ("chunk_shape", _ADDRESS),
        ("in_strides", _ADDRESS),
        ("every", _ADDRESS),
        ("out_strides", _ADDRESS),
        ("out", _ADDRESS),
        ("decode", _ADDRESS),
        ("make_context", _ADDRESS),
        ("free_context", _ADDRESS),
        ("decode_part", _ADDRESS),
        ("restart", _ADDRESS),
        ("unshuffle", _ADDRESS),
        ("inflate", _ADDRESS),
        ("stages", _ADDRESS),
        ("steps", _ADDRESS),
        ("index", _ADDRESS),
        ("fill", _TEXT),
    )


class RowsStruct(ctypes.Structure):
    """``rows_t``: chunks, one row each, and the boxes or points of the output that they fill."""

    _fields_ = (
        ("src", _ADDRESS),
        ("nbytes", _ADDRESS),
        ("first_box", _ADDRESS),
        ("boxes", _ADDRESS),
        ("left", _ADDRESS),
        ("in_at", _ADDRESS),
        ("out_at", _ADDRESS),
        ("whole", _ADDRESS),
    )


class FilesStruct(ctypes.Structure):
    """``files_t``: the files that hold the encoded chunks."""

    _fields_ = (
        ("paths", _TEXT),
        ("path_at", _ADDRESS),
        ("version", _ADDRESS),
        ("file", _ADDRESS),
        ("offset", _ADDRESS),
        ("room", _ADDRESS),
        ("room_nbytes", _NUMBER),
        ("max_gap_nbytes", _NUMBER),
        ("most_nbytes", _NUMBER),
        ("waits", _NUMBER),
        ("n_read", _NUMBER),
        ("is_cold", _NUMBER),
    )


class LookupStruct(ctypes.Structure):
    """``lookup_t``: chunks to look up in the indexes of shards, one box of chunks for each shard."""

    _fields_ = (
        ("ndim", _NUMBER),
        ("n_shards", _NUMBER),
        ("n_rows", _NUMBER),
        ("axes", _ADDRESS),
        ("ranges", _ADDRESS),
        ("index", _ADDRESS),
        ("table", _ADDRESS),
        ("most_nbytes", _NUMBER),
    )


class BoxStruct(ctypes.Structure):
    """``box_t``: a box of a few chunks of one object, and its output."""

    _fields_ = (
        ("job", _ADDRESS),
        ("axes", _ADDRESS),
        ("offset", _ADDRESS),
        ("nbytes", _ADDRESS),
        ("version", _ADDRESS),
        ("path", _TEXT),
        ("object", _ADDRESS),
        ("object_nbytes", _NUMBER),
        ("decoded", _ADDRESS),
        ("out", _ADDRESS),
        ("scratch", _ADDRESS),
        ("room", _ADDRESS),
        ("room_nbytes", _NUMBER),
        ("max_gap_nbytes", _NUMBER),
        ("most_nbytes", _NUMBER),
        ("n_read", _NUMBER),
    )


class EncoderStruct(ctypes.Structure):
    """``encoder_t``: the codecs of one write, and the order of chunks in an object."""

    _fields_ = (
        ("job", _ADDRESS),
        ("swap", _ADDRESS),
        ("level", _NUMBER),
        ("checksum", _NUMBER),
        ("shuffle", _NUMBER),
        ("typesize", _NUMBER),
        ("blocksize", _NUMBER),
        ("cname", _TEXT),
        ("encode", _ADDRESS),
        ("make_context", _ADDRESS),
        ("free_context", _ADDRESS),
        ("set_parameter", _ADDRESS),
        ("most_nbytes", _NUMBER),
        ("keeps_empty", _NUMBER),
        ("n_numbers", _NUMBER),
        ("swapped", _NUMBER),
        ("n_entries", _NUMBER),
        ("step", _NUMBER),
        ("order", _ADDRESS),
        ("per_object", _ADDRESS),
        ("piece", _ADDRESS),
        ("index_nbytes", _NUMBER),
        ("index_is_first", _NUMBER),
        ("index_has_checksum", _NUMBER),
    )


class ObjectStruct(ctypes.Structure):
    """``object_t``: an object to write, and the result of writing it."""

    _fields_ = (
        ("path", _TEXT),
        ("partial", _TEXT),
        ("at", _ADDRESS),
        ("memory", _ADDRESS),
        ("memory_nbytes", _NUMBER),
        ("needs_old", _NUMBER),
        ("old", _ADDRESS),
        ("old_version", _ADDRESS),
        ("old_offset", _ADDRESS),
        ("old_nbytes", _ADDRESS),
        ("state", _NUMBER),
        ("nbytes", _NUMBER),
        ("code", _NUMBER),
        ("entry", _NUMBER),
    )


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "step_t": StepStruct,
    "steps_t": StepsStruct,
    "stage_t": StageStruct,
    "job_t": JobStruct,
    "rows_t": RowsStruct,
    "files_t": FilesStruct,
    "lookup_t": LookupStruct,
    "box_t": BoxStruct,
    "encoder_t": EncoderStruct,
    "object_t": ObjectStruct,
}
"""Class of each struct that is passed to the library, by its name in C."""
