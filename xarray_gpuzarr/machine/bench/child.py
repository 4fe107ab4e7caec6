"""What ``gpuzarr bench`` runs in the process of one reader: open, read once and compare, read again on the clock.

`first_read` and `sample` are called through a process pool of one, so module state is the reader's.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.machine.bench.readers import READERS, Box, Location

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""proc(5): sets the peak of resident memory to what is resident now."""
_BLOCK = 2**18
"""Elements whose checksum is taken at once, so that no second array as long as the result is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRead:
    """What the first read of a fresh process gave and took."""

    dtype: str
    """In the machine's byte order."""
    shape: tuple[int, ...]
    checksum: int
    """CRC-32 of the values in C order, all NaN alike."""
    nbytes: int
    """Of the result."""
    extra_nbytes: int | None
    """Most host memory that was resident beyond a host result; None where the system does not say."""

    def agrees_with(self, other: FirstRead) -> bool:
        """Say whether two readers gave the same values."""
        return (self.dtype, self.shape, self.checksum) == (other.dtype, other.shape, other.checksum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed read."""

    wall_s: float
    cpu_s: float
    """Of all threads of the process."""


_reading: Callable[[], Any] | None = None


def first_read(name: str, location: Location, box: Box) -> FirstRead:
    """Open an array and read a box of it; keep it open for `sample`.

    Parameters
    ----------
    name : str
        Key of `READERS`.
    location : Location
    box : tuple of slice
    """
    global _reading  # noqa: PLW0603  # one process, one reader
    warnings.simplefilter("ignore")  # every process would say the same
    reader = READERS[name]
    zarr.config.set(dict(reader.settings))
    read_box = reader.open(location)
    _reading = lambda: _finished(read_box(box))  # noqa: E731
    resident = _reset_peak()
    result = _reading()
    peak = None if resident is None else _in_status("VmHWM")
    on_device = reader.device == "cuda"
    values = np.asarray(result.get() if on_device else result)
    known = None if resident is None or peak is None else peak - resident - (0 if on_device else values.nbytes)
    return FirstRead(
        dtype=values.dtype.newbyteorder("=").str,
        shape=values.shape,
        checksum=checksum(values),
        nbytes=values.nbytes,
        extra_nbytes=None if known is None else max(0, known),
    )


def sample() -> Sample:
    """Read once more, on the clock."""
    assert _reading is not None
    cpu, wall = time.process_time(), time.perf_counter()
    result = _reading()
    took = Sample(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
    del result
    return took


def checksum(values: np.ndarray[Any, Any]) -> int:
    """Return the CRC-32 of an array's values in C order and the machine's byte order, all NaN alike."""
    flat, native, number = values.reshape(-1), values.dtype.newbyteorder("="), 0
    for first in range(0, flat.size, _BLOCK):
        block = flat[first : first + _BLOCK].astype(native)
        if native.kind == "f":
            block[np.isnan(block)] = np.nan
        number = zlib.crc32(block.view(np.uint8), number)
    return number


def _finished(result: Any) -> Any:
    """Wait until a device array is complete."""
    device: Any = getattr(result, "device", None)
    if hasattr(device, "synchronize"):
        device.synchronize()
    return result


def _reset_peak() -> int | None:
    """Let the peak of resident memory start anew; return what is resident, bytes, or None if that cannot be done."""
    try:
        _RESET.write_text(_RESET_PEAK)
    except OSError:
        return None
    return _in_status("VmRSS")


def _in_status(field: str) -> int:
    """Return a field of this process's status, bytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
