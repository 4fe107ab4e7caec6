"""Host memory for results and scratch, aligned to cache lines; and how much of it is free.

NumPy's arrays begin 16 bytes into one. Rows of chunks are often of 64 bytes or a multiple, and each would touch one
line more than it fills: volumes of short chunks are read 3 to 10 % sooner this way (November 2026).
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LINE_NBYTES = 64
LEAST_NBYTES = 64 * 1024
"""Smaller arrays are NumPy's own, which takes less time."""


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return uninitialised host memory at a multiple of 64 bytes: uint8, shape (nbytes,)."""
    memory = np.empty(nbytes + _LINE_NBYTES, np.uint8)
    first = -memory.__array_interface__["data"][0] % _LINE_NBYTES
    return memory[first : first + nbytes]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised C-ordered array; a large one at a multiple of 64 bytes."""
    nbytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes < LEAST_NBYTES:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, aligned(nbytes))


def available_nbytes() -> int | None:
    """Return the memory that can be had without swapping, pages of files included; None where no system tells it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
