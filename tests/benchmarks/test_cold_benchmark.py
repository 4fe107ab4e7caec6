"""The benchmark of files that are not in the page cache, on tiny arrays."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.arrays.workloads import SHARDED_VOLUME, VOLUME
from benchmarks.cold import cases

LAYOUTS = (
    replace(SHARDED_VOLUME, summary="shards", shape=(12, 8, 20), chunks=(3, 4, 10), shards=(6, 4, 20)),
    replace(VOLUME, name="files-raw", summary="files", shape=(6, 8, 20), chunks=(3, 4, 10), codec="none"),
)


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
