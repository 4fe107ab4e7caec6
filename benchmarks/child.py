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
from typing import Literal

import google_crc32c
import numpy as np

from benchmarks.readers import READERS
from benchmarks.session import Array, Session
from benchmarks.workloads import Operation, Workload

_ANSWER_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Request: open a store; answered with None."""

    workload: Workload
    path: Path
    operation: Operation


Command = Open | Literal["fingerprint", "sample", "peak", "close"]
"""Requests; answered with None, `Fingerprint`, `Sample`, `Peak`, None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a result is compared by."""

    dtype: str
    shape: tuple[int, ...]
    checksum: int
    """CRC-32C of the values, all NaN alike; 0 for a scalar."""
    scalar: float
    """The value of a scalar, else 0."""

    def agrees_with(self, other: Fingerprint) -> bool:
        """Say whether two results are the same; means may differ by the order of summation."""
        same_form = (self.dtype, self.shape, self.checksum) == (other.dtype, other.shape, other.checksum)
        return same_form and bool(np.isclose(self.scalar, other.scalar, rtol=1e-9, atol=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed read."""

    wall_s: float
    cpu_s: float
    """Of all threads of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory of the first read of a fresh process."""

    peak_nbytes: int
    """Most that was allocated at once since the read began, the result included."""
    result_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A reader raised, or its process ended."""

    message: str


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
    session: Session | None = None
    reader.configure()
    while True:
        try:
            command: Command = connection.recv()
        except EOFError:
            return
        try:
            answer: Answer = None
            if isinstance(command, Open):
                session = reader.open(command.workload, command.path, command.operation)
            elif command == "close":
                session = None
            else:
                assert session is not None
                answer = _ANSWERS[command](session)
        except Exception as err:  # noqa: BLE001 - peers raise anything; the report names it
            answer = Failure(message=f"{type(err).__name__}: {err}")
        gc.collect()
        connection.send(answer)


def _sample(session: Session) -> Sample:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    result = session.run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    del result
    return Sample(wall_s=wall_s, cpu_s=cpu_s)


def _fingerprint(session: Session) -> Fingerprint:
    result = session.restore(session.run())
    scalar = float(result) if result.ndim == 0 else 0.0
    checksum = 0 if result.ndim == 0 else _checksum(result)
    return Fingerprint(dtype=result.dtype.str, shape=result.shape, checksum=checksum, scalar=scalar)


def _checksum(values: Array) -> int:
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values)
    return int(google_crc32c.value(np.ascontiguousarray(values).reshape(-1).view(np.uint8)))


def _peak(session: Session) -> Peak:
    import memray  # noqa: PLC0415 - only here, it is slow to import

    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "record"
        destination = memray.FileDestination(record)
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            result = session.run()
        return Peak(peak_nbytes=memray.FileReader(record).metadata.peak_memory, result_nbytes=result.nbytes)


_ANSWERS: dict[str, Callable[[Session], Answer]] = {"fingerprint": _fingerprint, "sample": _sample, "peak": _peak}
