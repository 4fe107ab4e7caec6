"""zstd frames through the kernel that looks at their blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.kernels import memory as memories
from helpers.kernels.memory import columns
from xarray_gpuzarr.cuda.launch import SPARE_FRAME, check_zstd

TARGET = 12345
"""Stands for an address that the kernel has no business with."""


def run_check(frames: Sequence[bytes], expected: int) -> list[bool]:
    """Return which frames pass, in one launch."""
    memory, n = memories.make(), len(frames)
    table, refused = memory.reserve(32 * n), memory.reserve(8 * n, byte=0)
    spare = memory.place(SPARE_FRAME)
    before = columns([(memory.place(frame, 1), len(frame), TARGET, expected) for frame in frames], 4)
    memory.fill(table, before)
    memory.run(lambda api, stream: check_zstd(api, stream, table=table, n=n, spare=spare, refused=refused))
    told = memory.content(refused, 8 * n).view(np.uint64)
    before[:2, told == 1] = [[spare], [10]]  # those have given their place to the spare one
    np.testing.assert_array_equal(memory.content(table, 32 * n).view(np.uint64).reshape(4, n), before)
    assert set(told.tolist()) <= {0, 1}
    return (told == 0).tolist()
