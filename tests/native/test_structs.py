"""The structs of Python and of C have the same fields, at the same places."""

import ctypes

import pytest
from helpers.loops import changed

from xarray_gpuzarr import GpuZarrError, NativeLayoutError
from xarray_gpuzarr.native import library, structs
from xarray_gpuzarr.native.structs import STRUCTS, FilesStruct

C_CHANGES = {
    "two fields swapped": (
        ("int64_t codec, chunk_nbytes, itemsize, ndim,", "int64_t chunk_nbytes, codec, itemsize, ndim,"),
        "job_t.codec is 8 bytes at 8 in C, 8 bytes at 0 in Python",
    ),
    "two pointers swapped": (
        ("const char *path, *partial;", "const char *partial, *path;"),
        "object_t.path is 8 bytes at 8 in C, 8 bytes at 0 in Python",
    ),
    "a shorter field": (
        ("    int64_t waits;  ", "    int32_t waits;  "),
        "files_t.waits is 4 bytes at 72 in C, 8 bytes at 72 in Python",
    ),
    "a field more, which no table names": (
        (
            "/* result: of the longest stored chunk */\n",
            "/* result: of the longest stored chunk */\n    int64_t more;\n",
        ),
        "all of lookup_t is 72 bytes at 0 in C, 64 bytes at 0 in Python",
    ),
    "a table without a field": (
        ("    FIELD(rows_t, whole),\n", ""),
        "rows_t.whole is missing in C, 8 bytes at 56 in Python",
    ),
}


@pytest.mark.parametrize(("change", "found"), C_CHANGES.values(), ids=C_CHANGES)
def test_a_library_of_other_structs_is_not_loaded(compiled, change, found):
    with pytest.raises(NativeLayoutError) as caught:
        changed((change,))

    assert isinstance(caught.value, GpuZarrError)
    assert isinstance(caught.value, ImportError)
    assert found in caught.value.found
    assert "structs.py" in caught.value.do


@pytest.mark.parametrize("name", STRUCTS)
def test_fields_swapped_in_python_fail_when_the_library_is_loaded(compiled, monkeypatch, name):
    first, second, *others = STRUCTS[name]._fields_
    swapped = type(name, (ctypes.Structure,), {"_fields_": (second, first, *others)})
    monkeypatch.setitem(structs.STRUCTS, name, swapped)
    library.find.cache_clear()
    try:
        with pytest.raises(NativeLayoutError, match="disagree about a struct"):
            library.loops()
    finally:
        monkeypatch.undo()
        library.find.cache_clear()
    assert library.loops() is not None


def test_every_struct_that_is_handed_over_is_compared():
    classes = [value for value in vars(structs).values() if isinstance(value, type)]
    declared = {value for value in classes if value.__name__.endswith("Struct")}

    assert FilesStruct in declared
    assert declared == set(STRUCTS.values())
