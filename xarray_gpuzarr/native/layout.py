"""Compare the structs of `structs` with those that the library was compiled with, which `layout.h` lists."""

from __future__ import annotations

import ctypes

from xarray_gpuzarr.errors import NativeLayoutError
from xarray_gpuzarr.native.structs import STRUCTS


class _FieldStruct(ctypes.Structure):
    """``field_t``: offset and size of a field; without a name, the size of the struct."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("struct", ctypes.c_char_p),
        ("offset", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
    )


_Layout = dict[tuple[str, str], tuple[int, int]]
"""Offset and size in bytes of each field, by the names of struct and field. The name '' stands for the whole struct."""


def check_layout(library: ctypes.CDLL) -> None:
    """Compare `STRUCTS` with the structs that a library was compiled with.

    Raises
    ------
    NativeLayoutError
        If a field is missing on one side, or has another offset or size.
    AttributeError
        If the library does not export its fields.
    """
    in_python, in_c = _layout_in_python(), _layout_in_c(library)
    if in_python == in_c:
        return
    differences = []
    for struct, field in sorted(in_python.keys() | in_c.keys()):
        ours, theirs = in_python.get((struct, field)), in_c.get((struct, field))
        if ours != theirs:
            name = f"{struct}.{field}" if field else f"all of {struct}"
            differences.append(f"{name} is {_describe(theirs)} in C, {_describe(ours)} in Python")
    raise NativeLayoutError(
        "the compiled loops and this package disagree about a struct",
        tried="to compare the fields of native/structs.py with those of native/layout.h",
        found="; ".join(differences),
        do="give the struct the same fields in the same order in C, in layout.h and in structs.py",
    )


def _describe(extent: tuple[int, int] | None) -> str:
    if extent is None:
        return "missing"
    offset, nbytes = extent
    return f"{nbytes} bytes at {offset}"


def _layout_in_python() -> _Layout:
    layout: _Layout = {}
    for name, struct in STRUCTS.items():
        layout[name, ""] = 0, ctypes.sizeof(struct)
        for field_name, *_ in struct._fields_:
            field = getattr(struct, field_name)
            layout[name, field_name] = field.offset, field.size
    return layout


def _layout_in_c(library: ctypes.CDLL) -> _Layout:
    list_fields = library.gpuzarr_fields
    list_fields.argtypes = (ctypes.POINTER(ctypes.c_int64),)
    list_fields.restype = ctypes.POINTER(_FieldStruct)
    n_fields = ctypes.c_int64()
    fields = list_fields(ctypes.byref(n_fields))
    layout: _Layout = {}
    for field in fields[: n_fields.value]:
        struct, name = field.struct.decode(), (field.name or b"").decode()
        layout[struct, name] = field.offset, field.nbytes
    return layout
