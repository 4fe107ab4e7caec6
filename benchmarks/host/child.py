"""What is done in the process of one reader: open a store, read it, and say how long that took.

Called through a process pool of one: codec pipelines and thread pools are global to a process.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.arrays.workloads import Regime
from benchmarks.host.readers import READERS
from benchmarks.host.task import Opened, Task
from benchmarks.runner.fingerprint import Fingerprint, timed
from benchmarks.runner.results import Peak, Sample
from benchmarks.shared import back_memory
from xarray_gpuzarr import configure

_KEPT_NBYTES = 2**30
"""Results that a process keeps in the regime of that name, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What a process has open."""

    opened: Opened
    nbytes: int
    """Memory that its results take."""
    regime: Regime | None
    results: deque[Any]
    """The last ones, in the regime "kept"."""


_readings: dict[str, _Reading] = {}
"""By reader."""


def open_task(reader: str, task: Task) -> Fingerprint:
    """Let a reader open a store and read it once; return what it read."""
    return keep(reader, _open(reader, task), _most_nbytes(task), task.regime)


def _open(reader: str, task: Task) -> Opened:
    warnings.simplefilter("ignore")
    zarr.config.set(dict(READERS[reader].settings))
    configure(cache_nbytes=0)  # each read is to start from the stored bytes; `small` has others
    return READERS[reader].open(task)


def keep(name: str, opened: Opened, nbytes: int, regime: Regime | None = None) -> Fingerprint:
    """Read once what was opened, and keep it open for `sample`; return what was read.

    Parameters
    ----------
    name : str
    opened : Opened
    nbytes : int
        Memory that its results take.
    regime : "first", "steady", "kept" or None
        See `sample`.
    """
    result = opened.values()
    n_kept = max(1, _KEPT_NBYTES // max(1, result.nbytes)) if regime == "kept" else 0
    _readings[name] = _Reading(opened=opened, nbytes=nbytes, regime=regime, results=deque(maxlen=n_kept))
    return Fingerprint.of(result)


def sample(reader: str) -> Sample:
    """Read on the clock, as one more read of this process.

    Notes
    -----
    In the regime "steady" a read that is not timed comes first, in place of touching memory. So a reader whose
    allocator keeps what was dropped has the use of it, one that asks the system anew finds what it has just given back,
    and nobody pays for memory that the machine does not have yet.
    """
    reading = _readings[reader]
    if reading.regime == "steady":
        reading.opened.run()
    else:
        back_memory(reading.nbytes)
    result, took = timed(reading.opened.run)
    reading.results.append(result)
    return took


def first_sample(reader: str, task: Task) -> Sample:
    """Open a store, and read on the clock for the first time; for a new process."""
    opened = _open(reader, task)
    back_memory(_most_nbytes(task))
    return timed(opened.run)[1]


def close(reader: str) -> None:
    """Give back what a reader holds."""
    del _readings[reader]
    gc.collect()


def first_peak(reader: str, task: Task) -> Peak:
    """Open a store and return what the first read of it allocates: buffers that are kept for later reads count."""
    return allocated_nbytes(_open(reader, task).run)


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
    """Return the bytes of the largest result that a task has; decoded values may be of eight bytes."""
    workload = task.workload
    is_stored = not workload.packed or task.regime is not None
    return workload.nbytes if is_stored else workload.nbytes // workload.itemsize * 8
