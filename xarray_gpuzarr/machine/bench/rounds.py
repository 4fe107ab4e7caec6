"""Rounds of reads: the readers that are installed, on a user's own store, in turns.

One process per reader: codec pipelines and thread pools are global to one, and so is the peak of its memory. The first
read of each warms up and is compared with the first reader's; those that follow are timed. Files of a local store are
in the page cache by then, so that decoding and copying are measured, not a disk.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from typing import Any, get_args

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.machine.bench.child import FirstRead, Sample, first_read, sample
from xarray_gpuzarr.machine.bench.readers import ArrayReader, Box, Location, Operation, ReaderAbsentError

_PACKAGES = (
    *(
        "xarray-gpuzarr",
        "zarr",
        "numcodecs",
        "zarrs",
        "tensorstore",
        "zarrista",
        "xarray",
        "dask",
        "numpy",
        "imagecodecs",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one reader did."""

    reader: str
    operation: Operation
    ours: bool
    samples: tuple[Sample, ...] = ()
    extra_nbytes: int | None = None
    """Host memory beyond the result."""
    note: str = ""
    """Why there are no samples."""
    failed: bool = False
    """Whether it could take part, but raised or gave other values than the first reader."""

    @property
    def wall_s(self) -> float:
        """Median of the wall times."""
        return statistics.median(s.wall_s for s in self.samples)

    @property
    def cpu_s(self) -> float:
        """Median of the CPU times."""
        return statistics.median(s.cpu_s for s in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What was read, and all rows."""

    location: Location
    shape: tuple[int, ...]
    """Of the array."""
    dtype: str
    """As stored."""
    box: Box
    stored_nbytes: int
    """Of the box in its stored dtype, without compression."""
    rows: tuple[Row, ...]

    def of(self, operation: Operation) -> list[Row]:
        """Return the rows of one operation."""
        return [row for row in self.rows if row.operation == operation]

    def best_peer(self, operation: Operation) -> Row | None:
        """Return the quickest reader that is not ours."""
        peers = [row for row in self.of(operation) if row.samples and not row.ours]
        return min(peers, key=lambda row: row.wall_s, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured, with versions and machine; names no host."""
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "array": self.location.array_path,
            "shape": self.shape,
            "dtype": self.dtype,
            "box": [[part.start, part.stop] for part in self.box],
            "nbytes": self.stored_nbytes,
            "machine": {"n_cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "rows": [asdict(row) for row in self.rows],
        }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def bench_array(
    location: Location,
    *,
    most_nbytes: int,
    n_rounds: int,
    readers: Sequence[ArrayReader],
    progress: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Let readers take turns at a corner of an array.

    Parameters
    ----------
    location : Location
    most_nbytes : int
        Bytes to read, without compression; more only if one shard alone is larger.
    n_rounds : int
        Timed reads of each reader.
    readers : sequence of ArrayReader
    progress : callable
        Is told what is done next, and for how long it will go on.

    Raises
    ------
    OptionError
        `n_rounds` or `most_nbytes` is less than 1.
    """
    for name, value in (("rounds", n_rounds), ("nbytes", most_nbytes)):
        if value < 1:
            raise OptionError(f"--{name} must be at least 1", tried=f"{value}", found="less than 1", do="give more")
    array = location.open_array()
    box = corner_box(array.shape, array.shards or array.chunks, array.dtype.itemsize, most_nbytes)
    with _processes() as crew:
        rows = [_row(reader, reader.why_absent() or "") for reader in readers]
        for operation in get_args(Operation):
            rows = _checked(rows, operation, location, box, crew, progress)
        told = _Rounds(n_rounds, progress)
        for n in range(n_rounds):
            first = n % len(rows)
            order = [*range(first, len(rows)), *range(first)]
            told.begin(n, sum(not row.note for row in rows))
            for i in order:
                told.tell(rows[i])
                rows[i] = _timed(rows[i], crew)
    return BenchResult(
        location=location,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        box=box,
        stored_nbytes=math.prod(part.stop - part.start for part in box) * array.dtype.itemsize,
        rows=tuple(rows),
    )


def corner_box(shape: Sequence[int], whole: Sequence[int], itemsize: int, most_nbytes: int) -> Box:
    """Return whole shards from the first one on that hold at most `most_nbytes`, at least one shard.

    Parameters
    ----------
    shape : sequence of int
        Of the array, in elements.
    whole : sequence of int
        Shape of a shard, or of a chunk where there are none, in elements.
    itemsize : int
        Bytes of an element.
    most_nbytes : int
    """
    counts = [max(1, math.ceil(n / w)) for n, w in zip(shape, whole, strict=True)]

    def box() -> Box:
        return tuple(slice(0, min(n, c * w)) for n, c, w in zip(shape, counts, whole, strict=True))

    def nbytes() -> int:
        return itemsize * math.prod(min(n, c * w) for n, c, w in zip(shape, counts, whole, strict=True))

    while max(counts, default=1) > 1 and nbytes() > most_nbytes:
        longest = counts.index(max(counts))
        # Never below what fits, but at least by half: few steps, and the box stays compact.
        fits = int(counts[longest] * most_nbytes / nbytes())
        counts[longest] = max(1, fits, counts[longest] // 2)
    return box()


class _Rounds:
    """Says which round it is, and how long all will take, going by what is done.

    Parameters
    ----------
    n_rounds : int
    progress : callable
    """

    def __init__(self, n_rounds: int, progress: Callable[[str], None]) -> None:
        self._n_rounds, self._progress = n_rounds, progress
        self._start, self._n_done, self._n_left, self._round = time.monotonic(), 0, 0, 0

    def begin(self, n: int, n_readers: int) -> None:
        """Begin a round, counted from 0."""
        self._round, self._n_left = n, (self._n_rounds - n) * n_readers

    def tell(self, row: Row) -> None:
        """Say what is read next, unless the reader has dropped out."""
        if row.note:
            return
        left = ""
        if self._n_done:
            left_s = (time.monotonic() - self._start) / self._n_done * self._n_left
            left = f", {f'{left_s / 60:.0f} min' if left_s >= 90 else f'{max(1, left_s):.0f} s'} left"
        self._progress(f"round {self._round + 1} of {self._n_rounds}{left}: {row.reader}")
        self._n_done, self._n_left = self._n_done + 1, self._n_left - 1


Crew = dict[str, ProcessPoolExecutor]


@contextmanager
def _processes() -> Iterator[Crew]:
    """Yield the processes of readers by name, one each, and end them."""
    crew: Crew = {}
    try:
        yield crew
    finally:
        for process in crew.values():
            process.shutdown(cancel_futures=True)


def _row(reader: ArrayReader, note: str) -> Row:
    return Row(reader=reader.name, operation=reader.operation, ours=reader.ours, note=note)


def _checked(
    rows: list[Row], operation: Operation, location: Location, box: Box, crew: Crew, progress: Callable[[str], None]
) -> list[Row]:
    """Let every reader of an operation read once; note why those that fail or disagree drop out."""
    # Spawned: a fork would share threads' locks, and CUDA does not survive one.
    waiting = {}
    found, reference = list(rows), None
    for i, row in enumerate(rows):
        if row.operation == operation and not row.note:
            crew[row.reader] = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            waiting[i] = crew[row.reader].submit(os.getpid)  # they import side by side
    for n, (i, ready) in enumerate(waiting.items(), 1):
        row = rows[i]
        progress(f"first {operation}, reader {n} of {len(waiting)}: {row.reader}")
        try:
            ready.result()
            first: FirstRead = crew[row.reader].submit(first_read, row.reader, location, box).result()
        except ReaderAbsentError as error:
            found[i] = replace(row, note=str(error))
            continue
        except Exception as error:  # noqa: BLE001  # peers raise anything; the table names it
            found[i] = replace(row, note=_said(error), failed=True)
            continue
        reference = reference or (row.reader, first)
        agrees = first.agrees_with(reference[1])
        note = "" if agrees else f"other values than {reference[0]}: {first.dtype} {first.shape}"
        found[i] = replace(row, extra_nbytes=first.extra_nbytes, note=note, failed=not agrees)
    return found


def _timed(row: Row, crew: Crew) -> Row:
    if row.note:
        return row
    try:
        return replace(row, samples=(*row.samples, crew[row.reader].submit(sample).result()))
    except Exception as error:  # noqa: BLE001  # as above
        return replace(row, samples=(), note=_said(error), failed=True)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
