"""What every reader is given, and what it gives back: a function to time, and one to check its values by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.arrays.workloads import Operation, Regime, Workload
from benchmarks.runner.readers import Box

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A store, and what is to be done with it."""

    workload: Workload
    path: Path
    """Of the store: a group that holds `workload.variable`."""
    operation: Operation
    concurrency: int = 1
    """Chunks or shards that are read at once, where they are read one by one."""
    regime: Regime | None = None
    """None: the process reads on and drops each result, into memory that the machine has (`child.sample`)."""
    boxes: tuple[Box, ...] = ()
    """What is read one after another; of the operations on the whole array none."""

    @property
    def nbytes(self) -> int:
        """Bytes that are delivered, as stored without compression."""
        if not self.boxes:
            return self.workload.nbytes
        return sum(prod(axis.stop - axis.start for axis in box) for box in self.boxes) * self.workload.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An opened store, ready to be read again and again."""

    run: Callable[[], Any]
    """The timed part. Every call starts from the stored bytes."""
    check: Callable[[], Array] | None = None
    """Read once more; return values in the order that all readers are compared in. If left out, `run` does."""

    def values(self) -> Array:
        """Read once more, and return what readers are compared by."""
        return (self.check or self.run)()
