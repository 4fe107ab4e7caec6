"""The benchmark of files that are not in the page cache, on tiny arrays."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.codec_pipeline import settings_taken_back
from helpers.here_and_now import HereAndNow

from benchmarks import page_cache
from benchmarks.arrays.stores import object_files, write_workload
from benchmarks.arrays.workloads import SHARDED_VOLUME, VOLUME
from benchmarks.cold import cases
from benchmarks.page.tables import cold_table
from benchmarks.runner.crew import ReaderProcesses
from benchmarks.runner.results import Results
from benchmarks.runner.session import Session

LAYOUTS = (
    replace(SHARDED_VOLUME, summary="shards", shape=(12, 8, 20), chunks=(3, 4, 10), shards=(6, 4, 20)),
    replace(VOLUME, name="files-raw", summary="files", shape=(6, 8, 20), chunks=(3, 4, 10), codec="none"),
)


@pytest.fixture
def tiny(monkeypatch):
    """Two layouts and two readers, in this process."""
    monkeypatch.setattr("benchmarks.runner.crew.process", HereAndNow)
    monkeypatch.setattr(cases, "WORKLOADS", LAYOUTS)
    monkeypatch.setattr(cases, "_READERS", ("zarr default", "gpuzarr"))
    with settings_taken_back():
        yield


@pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated:RuntimeWarning")
@pytest.mark.usefixtures("tiny")
def test_every_layout_is_read_in_every_pattern(tmp_path):
    found = [Session(Results({}, None), n_rounds=1).run(case) for case in cases.cases(1, tmp_path, ReaderProcesses())]

    assert [case.name for case in found] == [
        f"cold/{name}/{pattern}" for name in ("shards-blosclz", "files-raw") for pattern in ("whole", "planes", "boxes")
    ]
    assert {(row.name, row.status) for case in found for row in case.rows} == {
        ("zarr default", "measured"),
        ("gpuzarr", "measured"),
    }
    table = cold_table(found).splitlines()
    assert table[0] == "| peer / ours | whole | planes | boxes |"
    assert [line.split(" | ")[0] for line in table[2:]] == ["| shards", "| files"]


@pytest.mark.parametrize("workload", LAYOUTS, ids=lambda workload: workload.name)
def test_planes_meet_every_object_and_boxes_are_half_as_long_as_chunks(workload):
    met = np.zeros(workload.shape, bool)
    for box in cases.boxes_of(workload, "planes"):
        met[box] = True

    for first in np.ndindex(*(n // w for n, w in zip(workload.shape, workload.whole, strict=True))):
        whole = tuple(slice(i * w, (i + 1) * w) for i, w in zip(first, workload.whole, strict=True))
        assert met[whole].any()
    boxes = cases.boxes_of(workload, "boxes")
    assert {tuple(axis.stop - axis.start for axis in box) for box in boxes} == {(1, 2, 5)}
    assert all(axis.start >= 0 and axis.stop <= n for box in boxes for axis, n in zip(box, workload.shape, strict=True))


def test_files_are_dropped_and_read_again(tmp_path):
    path = write_workload(LAYOUTS[0], tmp_path)
    files = object_files(LAYOUTS[0], path)
    contents = [file.read_bytes() for file in files]
    assert page_cache.share_in_memory(files) == 1

    page_cache.drop(files)

    assert 0 <= page_cache.share_in_memory(files) <= 1  # a file system may keep them
    assert [file.read_bytes() for file in files] == contents
