"""What is done in the process of one reader: open, read once and compare, read again on the clock.

Called through a `ReaderProcesses`, so module state is the process's.
"""

from __future__ import annotations

import gc
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
from xarray_gpuzarr.machine.bench.results import Peak, Sample
from xarray_gpuzarr.machine.bench.session import WrongValuesError

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""proc(5): sets the peak of resident memory to what is resident now."""
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


_readings: dict[str, Callable[[], Any]] = {}
"""What reads once, by reader."""


def first_read(name: str, location: Location, box: Box) -> tuple[Fingerprint, Peak | None]:
    """Open an array and read a box of it; keep it open for `sample`.

    Parameters
    ----------
    name : str
        Key of `READERS`.
    location : Location
    box : tuple of slice

    Returns
    -------
    Fingerprint, and the most host memory that was resident beyond that before; None where the system does not say
    """
    warnings.simplefilter("ignore")  # every process would say the same
    reader = READERS[name]
    zarr.config.set(dict(reader.settings))
    read_box = reader.open(location)
    read = _readings[name] = lambda: _finished(read_box(box))
    resident = _reset_peak()
    result = read()
    peak = None if resident is None else _in_status("VmHWM") - resident
    on_device = reader.device == "cuda"
    values = np.asarray(result.get() if on_device else result)
    n = 0 if on_device else values.nbytes
    return Fingerprint.of(values), None if peak is None else Peak(peak_nbytes=max(n, peak), result_nbytes=n)


def sample(name: str) -> Sample:
    """Read once more, on the clock."""
    return timed(_readings[name])[1]


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
