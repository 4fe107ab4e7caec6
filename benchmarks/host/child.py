"""One process per reader: opens stores and reads them when told to, and says how long that took.

`Child` is the parent's end. Processes are spawned, not forked: codec pipelines and thread pools are global to one.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr

from benchmarks.host.readers import READERS
from benchmarks.host.task import Opened, Task
from benchmarks.results import Peak, Sample
from xarray_gpuzarr.bench.child import checksum
from xarray_gpuzarr.bench.readers import ReaderAbsentError

_ANSWER_SECONDS = 600

Command = Task | Literal["fingerprint", "sample", "peak", "close"]
"""Requests: open a store, or what to do with the open one; answered with None, `Fingerprint`, `Sample`, `Peak`,
None."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A reader raised, or its process ended."""

    message: str
    absent: bool = False
    """Whether it cannot take part here, which is no fault."""


Answer = Fingerprint | Sample | Peak | Failure | None


class Child:
    """The process of one reader."""

    def __init__(self, reader_name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, reader_name), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, command: Command) -> Answer:
        """Send a request and wait for its answer."""
        try:
            self._connection.send(command)
            if not self._connection.poll(_ANSWER_SECONDS):
                self.stop()
                return Failure(message=f"no answer in {_ANSWER_SECONDS} s")
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return Failure(message=f"its process ended with exit status {self._process.exitcode}")
        return answer

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._connection.close()


def serve(connection: Connection, reader_name: str) -> None:
    """Answer requests until the parent closes the connection."""
    warnings.simplefilter("ignore")
    reader = READERS[reader_name]
    zarr.config.set(dict(reader.settings))
    opened: Opened | None = None
    nbytes = 0
    while True:
        try:
            command: Command = connection.recv()
        except EOFError:
            return
        answer: Answer = None
        try:
            if isinstance(command, Task):
                opened, nbytes = reader.open(command), _most_nbytes(command)
            elif command == "close":
                opened = None
                gc.collect()
            else:
                assert opened is not None
                if command == "sample":
                    _back_memory(nbytes)
                answer = _ANSWERS[command](opened)
        except ReaderAbsentError as err:
            answer = Failure(message=str(err), absent=True)
        except Exception as err:  # noqa: BLE001 - peers raise anything; the report names it
            answer = Failure(message=f"{type(err).__name__}: {err}")
        connection.send(answer)


def _sample(opened: Opened) -> Sample:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = opened.run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    del result
    return Sample(wall_s=wall_s, cpu_s=cpu_s)


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


def _fingerprint(opened: Opened) -> Fingerprint:
    result = opened.values()
    scalar = float(result) if result.ndim == 0 else 0.0
    number = 0 if result.ndim == 0 else checksum(result)
    return Fingerprint(dtype=result.dtype.str, shape=result.shape, checksum=number, scalar=scalar)


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


_ANSWERS: dict[str, Callable[[Opened], Answer]] = {
    "fingerprint": _fingerprint,
    "sample": _sample,
    "peak": lambda opened: allocated_nbytes(opened.run),
}
