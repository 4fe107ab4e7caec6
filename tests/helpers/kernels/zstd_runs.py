"""zstd frames through the kernel that looks at their blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.kernels.blosc_runs import placed
from helpers.kernels.on_host import HostLaunches
from xarray_gpuzarr.cuda.zstd import SPARE_FRAME, check_zstd

TARGET = 12345
"""Stands for an address that the kernel has no business with."""


def run_check(frames: Sequence[bytes], expected: int) -> list[bool]:
    """Return which frames pass, in one launch."""
    homes = [placed(frame, 1) for frame in frames]
    spare, refused = SPARE_FRAME.copy(), np.zeros(len(frames), np.uint64)
    table = np.array([(h.ctypes.data, len(h), TARGET, expected) for h in homes], np.uint64).reshape(-1, 4).T.copy()
    before = table.copy()
    places = {"spare": spare.ctypes.data, "refused": refused.ctypes.data}
    check_zstd(HostLaunches(), None, table=table.ctypes.data, n=len(frames), **places)
    return as_told(before, table, refused, spare.ctypes.data)


def as_told(before: np.ndarray, after: np.ndarray, refused: np.ndarray, spare: int) -> list[bool]:
    """Return which frames passed; the others have given their place to the spare one."""
    before = before.copy()
    before[:2, refused == 1] = [[spare], [10]]
    np.testing.assert_array_equal(after, before)
    assert set(refused.tolist()) <= {0, 1}
    return (refused == 0).tolist()
