"""The library of the compiled loops is found, or it is said why not, and reads do without it."""

import ctypes
import re

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import rows_taken

from xarray_gpuzarr import read_array
from xarray_gpuzarr.native import library
from xarray_gpuzarr.native.library import int64_columns, loops, why_absent
from xarray_gpuzarr.native.naming import SOURCES

DATA = counting((40, 30))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a copy of the source and no library; what was found before is forgotten."""
    for name in SOURCES:
        (tmp_path / name).write_bytes(library.SOURCE.with_name(name).read_bytes())
    monkeypatch.setattr(library, "SOURCE", tmp_path / "loops.c")
    monkeypatch.delenv("XARRAY_GPUZARR_NATIVE", raising=False)
    library.find.cache_clear()
    yield tmp_path
    library.find.cache_clear()


def test_the_library_beside_its_source_is_loaded(compiled, memory):
    with rows_taken() as taken:
        assert_same_bits(read_array(write(memory, DATA, chunks=(4, 7)), device="host"), DATA)

    assert why_absent() is None
    assert loops() is compiled
    assert taken.n_rows == 50


def test_the_sources_are_all_that_is_compiled_in_its_order():
    included = re.findall(r'^#include "(.*)"$', library.SOURCE.read_text(), re.MULTILINE)

    assert list(SOURCES) == ["loops.c", *included]
    assert sorted(included) == sorted(path.name for path in library.SOURCE.parent.glob("*.h"))


def holding(content):
    return lambda folder: (folder / library.file_name(folder)).write_bytes(content)


def beside_another(name):
    """Return what changes a source once its library is there."""
    return lambda folder: (holding(b"never loaded")(folder), (folder / name).write_bytes(b"int another;"))


ABSENT = {
    "none was compiled": (lambda _: None, "not compiled"),
    **{f"of another {name}": (beside_another(name), "not compiled") for name in SOURCES},
    "empty": (holding(b""), "OSError: "),
    "cut": (holding(b"\x7fELF and nonsense"), "OSError: "),
    "nonsense": (holding(b"nonsense" * 1000), "OSError: "),
    "without the functions": (
        lambda folder: (folder / library.file_name(folder)).symlink_to(np._core._multiarray_umath.__file__),
        "AttributeError: ",
    ),
    "no source": (lambda folder: (folder / "loops.c").unlink(), "FileNotFoundError: "),
}


@pytest.mark.parametrize(("change", "why"), ABSENT.values(), ids=ABSENT)
def test_reads_do_without_a_library_that_cannot_be_used(folder, local, change, why):
    change(folder)

    assert loops() is None
    assert why in why_absent()
    with rows_taken() as taken:
        assert_same_bits(read_array(write(local, DATA, chunks=(4, 7)), device="host"), DATA)
    assert not taken.given


def test_numbers_from_2_to_the_63_on_wrap_around():
    """Numbers of devices and inodes have 64 bits without a sign, and the loops compare them as they lie."""
    memory, at = int64_columns(some=[1, -2, 2**63, 2**64 - 1])
    assert list((ctypes.c_int64 * len(memory)).from_address(at["some"])) == [1, -2, -(2**63), -1]
