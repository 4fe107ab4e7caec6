"""What is done in the process of one writer: write an array, whole or in part, and say how long that took."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.arrays.stores import layout_of
from benchmarks.arrays.workloads import Workload
from benchmarks.host.child import allocated_nbytes
from benchmarks.runner.fingerprint import Fingerprint, timed
from benchmarks.runner.readers import PIPELINES
from benchmarks.runner.results import Peak, Sample
from xarray_gpuzarr import zarr_pipeline

Write = Callable[[], Any]
"""Writes what a task says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is written, and where."""

    workload: Workload
    path: Path
    """Of the array; it is made anew for each write."""
    part: tuple[slice, ...] | None = None
    """What is written to an array that is there; None: all of an array that is not."""


def _by_zarr(task: Task, data: Any) -> Write:
    array = zarr.open_array(task.path)
    where = ... if task.part is None else task.part
    return lambda: array.__setitem__(where, data)


def _by_pipeline(name: str) -> Callable[[Task, Any], Write]:
    def opened(task: Task, data: Any) -> Write:
        with zarr.config.set({"codec_pipeline.path": PIPELINES[name]}):
            return _by_zarr(task, data)

    return opened


def _by_gpuzarr(task: Task, data: Any) -> Write:
    with zarr_pipeline():
        return _by_zarr(task, data)


def _by_tensorstore(task: Task, data: Any) -> Write:
    import tensorstore  # noqa: PLC0415  # in its own process only

    # As the others do: nobody waits for the disk.
    context = tensorstore.Context({"file_io_sync": False})
    kvstore = {"driver": "file", "path": str(task.path)}
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, context=context).result()
    target = array if task.part is None else array[task.part]
    return lambda: target.write(data).result()


def _by_zarrista(task: Task, data: Any) -> Write:
    import zarrista  # noqa: PLC0415  # likewise
    from zarrista.store import FilesystemStore  # noqa: PLC0415

    array = zarrista.Array.open(FilesystemStore(task.path))
    where = ... if task.part is None else task.part
    return lambda: array.__setitem__(where, data)


WRITERS: Mapping[str, Callable[[Task, Any], Write]] = {
    "zarr default": _by_pipeline("default"),
    "zarr Fused": _by_pipeline("Fused"),
    "zarrs": _by_pipeline("zarrs"),
    "zarrista": _by_zarrista,
    "TensorStore": _by_tensorstore,
    "gpuzarr": _by_gpuzarr,
}

_data: dict[Workload, Any] = {}


def _prepared(writer: str, task: Task) -> Write:
    """Return what writes once, to an array that has been made for it."""
    workload = task.workload
    if workload not in _data:
        _data.clear()
        _data[workload] = workload.values()
    shutil.rmtree(task.path, ignore_errors=True)
    array = zarr.create_array(task.path, **layout_of(workload))
    if task.part is None:
        return WRITERS[writer](task, _data[workload])
    array[...] = _data[workload]
    return WRITERS[writer](task, np.ascontiguousarray(_data[workload][task.part][..., ::-1]))


def first(writer: str, task: Task) -> Fingerprint:
    """Write once; return what zarr-python reads then."""
    warnings.simplefilter("ignore")
    _prepared(writer, task)()
    return Fingerprint.of(np.asarray(zarr.open_array(task.path)[...]))


def sample(writer: str, task: Task) -> Sample:
    """Write on the clock, as one more write of this process."""
    return timed(_prepared(writer, task))[1]


def peak(writer: str, task: Task) -> Peak:
    """Return what a write allocates; for a process that has written before."""
    return allocated_nbytes(_prepared(writer, task))


def clear(task: Task) -> None:
    """Remove what was written."""
    _data.clear()
    shutil.rmtree(task.path, ignore_errors=True)
