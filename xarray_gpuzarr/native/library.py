"""The library compiled from `loops.c`, and addresses of host memory for its calls.

The library is built with the wheel, and with an editable install. `loops` returns it, or None where it was not built.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.native.layout import check_layout
from xarray_gpuzarr.native.naming import file_name

_ENV = "XARRAY_GPUZARR_NATIVE"
_REINSTALL = "install it again where there is a C compiler (cc, or what CC names)"
SOURCE = Path(__file__).with_name("loops.c")
"""Main source of the library. The library and the headers lie in its folder."""
_INT64_NBYTES = 8


class Loops:
    """Functions of the compiled library. Calls release the GIL.

    Raises
    ------
    NativeLayoutError
        If the structs of the library differ from those in `native.structs`.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        check_layout(library)
        address, number = ctypes.c_void_p, ctypes.c_int64
        rows = (address, number, number, address, number)  # rows, first row, end row, scratch, number of threads
        self.place_rows = library.gpuzarr_place_rows
        self.place_rows.argtypes, self.place_rows.restype = (address, *rows), number
        self.read_rows = library.gpuzarr_read_rows
        self.read_rows.argtypes, self.read_rows.restype = (address, address, *rows), number
        self.cut_axes = library.gpuzarr_cut_axes
        self.cut_axes.argtypes, self.cut_axes.restype = (address, number, number, address), None
        self.look_up = library.gpuzarr_look_up
        self.look_up.argtypes, self.look_up.restype = (address,), number
        self.read_box = library.gpuzarr_read_box
        self.read_box.argtypes, self.read_box.restype = (address,), number
        self.begin_write = library.gpuzarr_begin_write
        self.begin_write.argtypes = (address, address, number, number, number, address)
        self.begin_write.restype = address
        self.write = library.gpuzarr_write
        self.write.argtypes, self.write.restype = (address, number), None
        self.help_write = library.gpuzarr_help_write
        self.help_write.argtypes, self.help_write.restype = (address,), None
        self.end_write = library.gpuzarr_end_write
        self.end_write.argtypes, self.end_write.restype = (address,), number
        self.take_index = library.gpuzarr_take_index
        self.take_index.argtypes, self.take_index.restype = (address, *(number,) * 4, address), number
        self.crc32c = library.gpuzarr_crc32c
        self.crc32c.argtypes, self.crc32c.restype = (address, number), ctypes.c_uint32


@cache
def find() -> Loops | str:
    """Return the loops, or a sentence about why there are none and what to do. Raises the errors of `loops`."""
    setting = os.environ.get(_ENV, "1")
    if setting not in {"0", "1"}:
        raise OptionError(
            "unusable setting of the compiled loops",
            tried=f"{_ENV}={setting!r}",
            found="neither 0 nor 1",
            do=f"unset {_ENV} to use them where they are installed, or give it 0 to do without",
        )
    if setting == "0":
        return f"{_ENV}=0; unset it to use them"
    try:
        path = SOURCE.with_name(file_name(SOURCE.parent))
        if not path.exists():
            return f"they were not compiled when this package was installed; {_REINSTALL}"
        return Loops(path)
    except (OSError, AttributeError) as err:  # the library cannot be loaded, or lacks a function
        return f"{type(err).__name__}: {err}; {_REINSTALL}"


def loops() -> Loops | None:
    """Return the compiled loops; None if they were not compiled, or are switched off.

    Raises
    ------
    OptionError
        If ``XARRAY_GPUZARR_NATIVE`` is neither 0 nor 1.
    NativeLayoutError
        If the structs of the library differ from those in `native.structs`.
    """
    compiled = find()
    return compiled if isinstance(compiled, Loops) else None


def why_absent() -> str | None:
    """Return why there are no compiled loops, and what to do; None if there are. Raises the errors of `loops`."""
    compiled = find()
    return compiled if isinstance(compiled, str) else None


def crc32c(data: memoryview | bytes) -> int:
    """Return the CRC-32C of bytes in host memory."""
    compiled = loops()
    if compiled is None:
        return int(google_crc32c.value(bytes(data)))
    memory = np.frombuffer(data, np.uint8)
    return int(compiled.crc32c(address(memory), len(memory)))


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's first element in host memory. The caller keeps the array alive."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # takes a quarter of the time of the line below
    except (BufferError, TypeError, ValueError):  # the array is read-only, not contiguous, or empty
        return int(array.__array_interface__["data"][0])


def int64_columns(**columns: Sequence[int]) -> tuple[array[int], dict[str, int]]:
    """Copy columns of numbers to host memory, as int64, one after another.

    Parameters
    ----------
    **columns : sequence of int
        Numbers of each column. Those from 2**63 on wrap around.

    Returns
    -------
    array.array
        The memory of all columns; the caller keeps it alive.
    dict of str to int
        Address of each column; 0 for an empty one.
    """
    numbers = [*chain.from_iterable(columns.values())]
    try:
        memory = array("q", numbers)
    except OverflowError:  # such as the number of an inode: the loops compare its bits, so it may wrap around
        memory = array("q", [(number + 2**63) % 2**64 - 2**63 for number in numbers])
    next_address = memory.buffer_info()[0]
    addresses: dict[str, int] = {}
    for name, column in columns.items():
        addresses[name] = next_address if column else 0
        next_address += _INT64_NBYTES * len(column)
    return memory, addresses


def view_address(memory: memoryview) -> int:
    """Return the address of bytes in host memory; 0 for an empty view. The caller keeps the memory alive."""
    return address(np.frombuffer(memory, np.uint8)) if memory else 0
