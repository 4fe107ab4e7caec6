"""The structs that are handed to the compiled loops, each with the fields of its namesake in C, in the same order.

What a field means is said where C declares it. The library says where its fields lie, and `check_layout` compares.
"""

from __future__ import annotations

import ctypes

from xarray_gpuzarr.errors import NativeLayoutError

_NUMBER = ctypes.c_int64
_ADDRESS = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_VALUES_NBYTES = 64
"""Room for the numbers of a step: `MOST_MASKED` of `MOST_ITEMSIZE` bytes."""


class StepStruct(ctypes.Structure):
    """``step_t``: one step, of many elements side by side."""

    _fields_ = (
        ("kind", _NUMBER),
        ("dtype", _NUMBER),
        ("to", _NUMBER),
        ("n_values", _NUMBER),
        ("values", ctypes.c_char * _VALUES_NBYTES),
    )

    def __init__(self, *, values: bytes, **numbers: int) -> None:
        super().__init__(**numbers)
        # ctypes would end text at its first zero byte.
        ctypes.memmove(ctypes.addressof(self) + StepStruct.values.offset, values, len(values))


class StepsStruct(ctypes.Structure):
    """``steps_t``: from stored elements to those of the output."""

    _fields_ = (
        ("steps", _ADDRESS),
        ("n_steps", _NUMBER),
        ("in_itemsize", _NUMBER),
        ("out_itemsize", _NUMBER),
        ("in_swap", _NUMBER),
        ("out_swap", _NUMBER),
    )


class StageStruct(ctypes.Structure):
    """``stage_t``: what is done to a whole chunk."""

    _fields_ = (
        ("kind", _NUMBER),
        ("nbytes", _NUMBER),
        ("elementsize", _NUMBER),
        ("dtype", _NUMBER),
        ("swap", _NUMBER),
        ("steps", _ADDRESS),
    )


class JobStruct(ctypes.Structure):
    """``job_t``: one array, and where it goes."""

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
    """``rows_t``: chunks, one row each, and the boxes or points that they give."""

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
    """``files_t``: where encoded chunks are stored."""

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
    """``lookup_t``: boxes of chunks to be looked up, one of each shard."""

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
    """``box_t``: a box of a few chunks of one file, and where it goes."""

    _fields_ = (
        ("job", _ADDRESS),
        ("axes", _ADDRESS),
        ("offset", _ADDRESS),
        ("nbytes", _ADDRESS),
        ("version", _ADDRESS),
        ("path", _TEXT),
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
    """``encoder_t``: how the chunks of one write are encoded, and where they are in their objects."""

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
    """``object_t``: an object that is written."""

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
"""The name of each struct in C, and its class."""


class _FieldStruct(ctypes.Structure):
    """``field_t``: where a field lies in its struct; without a name, the length of the struct."""

    _fields_ = (
        ("name", _TEXT),
        ("struct", _TEXT),
        ("offset", _NUMBER),
        ("nbytes", _NUMBER),
    )


_Layout = dict[tuple[str, str], tuple[int, int]]
"""Offset and bytes of each field, by the names of the struct and the field; those of a struct by an empty name."""


def check_layout(library: ctypes.CDLL) -> None:
    """Compare the structs with those that a library was compiled with.

    Raises `NativeLayoutError` if a field is missing on one side, or lies elsewhere, and `AttributeError` if the library
    does not say.
    """
    in_python, in_c = _layout_in_python(), _layout_in_c(library)
    if in_python == in_c:
        return
    found = []
    for struct, field in sorted(in_python.keys() | in_c.keys()):
        ours, theirs = in_python.get((struct, field)), in_c.get((struct, field))
        if ours != theirs:
            name = f"{struct}.{field}" if field else f"all of {struct}"
            found.append(f"{name} is {_described(theirs)} in C, {_described(ours)} in Python")
    raise NativeLayoutError(
        "the compiled loops and this package disagree about a struct",
        tried="to compare the fields of native/structs.py with those of native/layout.h",
        found="; ".join(found),
        do="give the struct the same fields in the same order in C, in layout.h and in structs.py",
    )


def _described(place: tuple[int, int] | None) -> str:
    if place is None:
        return "missing"
    offset, nbytes = place
    return f"{nbytes} bytes at {offset}"


def _layout_in_python() -> _Layout:
    layout: _Layout = {}
    for name, struct in STRUCTS.items():
        layout[name, ""] = 0, ctypes.sizeof(struct)
        for field in struct._fields_:
            place = getattr(struct, field[0])
            layout[name, field[0]] = place.offset, place.size
    return layout


def _layout_in_c(library: ctypes.CDLL) -> _Layout:
    list_fields = library.gpuzarr_fields
    list_fields.argtypes = (ctypes.POINTER(_NUMBER),)
    list_fields.restype = ctypes.POINTER(_FieldStruct)
    n = _NUMBER()
    fields = list_fields(ctypes.byref(n))
    layout: _Layout = {}
    for i in range(n.value):
        field = fields[i]
        layout[field.struct.decode(), (field.name or b"").decode()] = field.offset, field.nbytes
    return layout
