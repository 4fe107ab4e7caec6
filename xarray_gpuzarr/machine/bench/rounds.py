"""``gpuzarr bench``: the readers that are installed, on a user's own store, in turns.

The first read of each warms up and is compared with the first reader's; those that follow are timed. Files of a local
store are in the page cache by then, so that decoding and copying are measured, not a disk.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

from xarray_gpuzarr.errors import OptionError, masked
from xarray_gpuzarr.machine.bench.child import Reference, first_read, sample
from xarray_gpuzarr.machine.bench.crew import ReaderProcesses
from xarray_gpuzarr.machine.bench.readers import AbsentError, ArrayReader, Box, Location, Operation
from xarray_gpuzarr.machine.bench.results import CaseRows, Results, Row
from xarray_gpuzarr.machine.bench.session import Case, Contestant, Progress, Ready, Session

_PACKAGES = (
    *("xarray-gpuzarr", "zarr", "numcodecs", "zarrs", "tensorstore", "zarrista", "xarray", "dask", "numpy"),
    "imagecodecs",
)


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
    cases: Mapping[Operation, CaseRows]
    """Of the operations that readers were asked for."""

    @property
    def failed(self) -> bool:
        """Whether a reader could take part, but raised or gave other values than the first one."""
        return any(row.status == "failed" for case in self.cases.values() for row in case.rows)

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
            "versions": {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}},
            "rows": [_row_json(operation, row) for operation, case in self.cases.items() for row in case.rows],
        }


def _row_json(operation: Operation, row: Row) -> dict[str, Any]:
    return {
        "reader": row.name,
        "operation": operation,
        "ours": row.side == "ours",
        "samples": [asdict(each) for each in row.samples],
        "extra_nbytes": row.peak.extra_nbytes if row.peak else None,
        "note": masked(row.note),
        "failed": row.status == "failed",
    }


def version_of(package: str) -> str:
    """Return the version of a distribution that is installed, or "absent"."""
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
    progress: Progress = lambda _: None,
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
    stored_nbytes = math.prod(part.stop - part.start for part in box) * array.dtype.itemsize
    crew, session = ReaderProcesses(), Session(Results({}, None), n_rounds=n_rounds, progress=progress)
    cases: dict[Operation, CaseRows] = {}
    try:
        for operation in get_args(Operation):
            if chosen := [reader for reader in readers if reader.operation == operation]:
                contestants = _Comparison(crew, location, box, stored_nbytes).contestants
                cases[operation] = session.run(Case(name=operation, contestants=partial(contestants, chosen)))
    finally:
        crew.stop()
    return BenchResult(
        location=location,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        box=box,
        stored_nbytes=stored_nbytes,
        cases=cases,
    )


class _Comparison:
    """Readers of one operation, each of which must give what the first one has given."""

    def __init__(self, crew: ReaderProcesses, location: Location, box: Box, nbytes: int) -> None:
        self._crew = crew
        self._what = location, box
        self._nbytes = nbytes
        self._reference = Reference()

    def contestants(self, readers: Sequence[ArrayReader]) -> list[Contestant]:
        """Return the readers; their processes start."""
        self._crew.start(reader.name for reader in readers if not reader.why_absent())
        return [
            Contestant(
                name=reader.name,
                side="ours" if reader.ours else "peer",
                nbytes=self._nbytes,
                prepare=partial(self._prepare, reader),
            )
            for reader in readers
        ]

    def _prepare(self, reader: ArrayReader) -> Ready:
        if absent := reader.why_absent():
            raise AbsentError(absent)
        found, peak = self._crew.ask(first_read, reader.name, *self._what)
        self._reference.check(reader.name, found)
        return Ready(measure=partial(self._crew.ask, sample, reader.name), peak=lambda: peak)


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
