"""Files that are in the page cache, many read by one call of the compiled loops; without these, none.

What they leave, because it is not in memory or unusual in any other way, is for the caller to read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from xarray_gpuzarr.native import address_of, loops
from xarray_gpuzarr.plan.byte_range import ByteRange

ABSENT, LEFT = -1, -2
"""Instead of a length: the file does not exist; it was left."""


def read_files(paths: Sequence[str], room: memoryview, each: int) -> list[int]:
    """Read whole files of at most `each` bytes.

    Parameters
    ----------
    paths : sequence of str
    room : memoryview of uint8, shape (len(paths) * each,), host memory
        Gets file ``i`` from byte ``i * each`` on.
    each : int
        Whole blocks of a file system.

    Returns
    -------
    list of int
        The length of each file, or `ABSENT`, or `LEFT`.
    """
    compiled = loops()
    if compiled is None:
        return [LEFT] * len(paths)
    nbytes = np.full(len(paths), LEFT, np.int64)
    names = b"".join([os.fsencode(path) + b"\0" for path in paths])
    if names.count(b"\0") == len(paths):
        at, first = 0, address_of(room)
        while (at := compiled.read_files(names, at, len(paths), first, each, nbytes.ctypes.data)) < len(paths):
            at += 1
    found: list[int] = nbytes.tolist()
    return found


def read_ranges(fd: int, wanted: Sequence[ByteRange], room: memoryview, first: int) -> int:
    """Read ranges of an open file, side by side into `room`, from that of number `first` on.

    Parameters
    ----------
    fd : int
    wanted : sequence of ByteRange
        Each with a length.
    room : memoryview of uint8, shape (bytes of all ranges,), host memory
    first : int

    Returns
    -------
    int
        The first range that was left, or how many there are.
    """
    compiled = loops()
    if compiled is None or first == len(wanted):
        return first
    ranges = np.array(wanted, np.int64)
    left: int = compiled.read_ranges(fd, first, len(wanted), ranges.ctypes.data, address_of(room))
    return left
