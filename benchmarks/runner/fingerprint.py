"""What results are compared by, and how long a call takes."""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.runner.results import Sample
from benchmarks.runner.session import WrongValuesError

_BLOCK = 2**18
"""Elements whose checksum is taken at once, so that no second array as long as the result is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a result is compared by."""

    dtype: str
    """In the machine's byte order."""
    shape: tuple[int, ...]
    checksum: int = 0
    """CRC-32 of the values in C order, all NaN alike; 0 for a scalar."""
    scalar: float = 0.0
    """The value of a scalar, else 0."""

    @classmethod
    def of(cls, values: np.ndarray[Any, Any]) -> Fingerprint:
        """Return what an array is compared by."""
        dtype = values.dtype.newbyteorder("=").str
        if values.ndim == 0 and values.dtype.kind in "biuf":
            return cls(dtype=dtype, shape=(), scalar=float(values))
        return cls(dtype=dtype, shape=values.shape, checksum=checksum(values))

    def agrees_with(self, other: Fingerprint) -> bool:
        """Say whether two results are the same; scalars, such as means, may differ by the order of summation."""
        same_form = (self.dtype, self.shape, self.checksum) == (other.dtype, other.shape, other.checksum)
        return same_form and bool(np.isclose(self.scalar, other.scalar, rtol=1e-9, atol=0, equal_nan=True))


class Reference:
    """What the first contestant of a case has given, and the others have to give."""

    def __init__(self) -> None:
        self._first: tuple[str, Fingerprint] | None = None

    def check(self, name: str, found: Fingerprint) -> None:
        """Raise `WrongValuesError` if somebody gave something else than the first one."""
        first, expected = self._first = self._first or (name, found)
        if not found.agrees_with(expected):
            raise WrongValuesError(f"other values than {first}: {found.dtype} {found.shape}")


def timed(run: Callable[[], Any]) -> tuple[Any, Sample]:
    """Return what a call gives, and what it took."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return result, Sample(wall_s=wall_s, cpu_s=cpu_s)


def checksum(values: np.ndarray[Any, Any]) -> int:
    """Return the CRC-32 of an array's values in C order and the machine's byte order, all NaN alike."""
    flat, native, number = values.reshape(-1), values.dtype.newbyteorder("="), 0
    for first in range(0, flat.size, _BLOCK):
        block = flat[first : first + _BLOCK].astype(native)
        if native.kind == "f":
            block[np.isnan(block)] = np.nan
        number = zlib.crc32(block.view(np.uint8), number)
    return number
