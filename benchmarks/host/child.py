"""What is done in the process of one reader: open a store, read it, and say how long that took.

Called through a process pool of one: codec pipelines and thread pools are global to a process.
"""

from __future__ import annotations

import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.host.readers import READERS
from benchmarks.host.task import Opened, Task
from benchmarks.results import Peak, Sample
from xarray_gpuzarr.machine.bench.child import checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a result is compared by."""

    dtype: str
    shape: tuple[int, ...]
    checksum: int
    """CRC-32 of the values, all NaN alike; 0 for a scalar."""
    scalar: float
    """The value of a scalar, else 0."""

    def agrees_with(self, other: Fingerprint) -> bool:
        """Say whether two results are the same; means may differ by the order of summation."""
        same_form = (self.dtype, self.shape, self.checksum) == (other.dtype, other.shape, other.checksum)
        return same_form and bool(np.isclose(self.scalar, other.scalar, rtol=1e-9, atol=0))


_opened: dict[str, tuple[Opened, int]] = {}
"""By reader: what it reads, and the bytes of the largest result of that."""


def open_task(reader: str, task: Task) -> Fingerprint:
    """Let a reader open a store and read it once; return what it read."""
    warnings.simplefilter("ignore")
    zarr.config.set(dict(READERS[reader].settings))
    return keep(reader, READERS[reader].open(task), _most_nbytes(task))


def keep(name: str, opened: Opened, nbytes: int) -> Fingerprint:
    """Read once what was opened, and keep it open for `sample`; return what was read.

    Parameters
    ----------
    name : str
    opened : Opened
    nbytes : int
        Memory that its results take.
    """
    _opened[name] = opened, nbytes
    result = opened.values()
    scalar = float(result) if result.ndim == 0 else 0.0
    number = 0 if result.ndim == 0 else checksum(result)
    return Fingerprint(dtype=result.dtype.str, shape=result.shape, checksum=number, scalar=scalar)


def sample(reader: str) -> Sample:
    """Read on the clock."""
    opened, nbytes = _opened[reader]
    _back_memory(nbytes)
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = opened.run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    del result
    return Sample(wall_s=wall_s, cpu_s=cpu_s)


def close(reader: str) -> None:
    """Give back what a reader holds."""
    del _opened[reader]
    gc.collect()


def first_peak(reader: str, task: Task) -> Peak:
    """Open a store and return what the first read of it allocates: buffers that are kept for later reads count."""
    warnings.simplefilter("ignore")
    zarr.config.set(dict(READERS[reader].settings))
    return allocated_nbytes(READERS[reader].open(task).run)


def allocated_nbytes(read: Callable[[], Any]) -> Peak:
    """Return the most memory that a read allocates at once."""
    import memray  # noqa: PLC0415 - only here, it is slow to import

    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "record"
        destination = memray.FileDestination(record)
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            result: Any = read()
        nbytes = result.nbytes if isinstance(result, np.ndarray) else 0
        return Peak(peak_nbytes=memray.FileReader(record).metadata.peak_memory, result_nbytes=nbytes)


def _most_nbytes(task: Task) -> int:
    """Return the bytes of the largest result that a task has."""
    workload = task.workload
    return workload.nbytes // workload.itemsize * 8 if workload.packed else workload.nbytes


def _back_memory(nbytes: int) -> None:
    """Touch as much free memory as the result will need.

    A virtual machine's host takes back what is free for a while, and giving it again costs up to fifteen times a page
    fault: whoever happens to run next would pay for that.
    """
    np.empty(nbytes, np.uint8).fill(0)
