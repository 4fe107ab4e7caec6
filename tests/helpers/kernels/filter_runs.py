"""Chunks of elements through the kernels that decode filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.kernels.blosc_runs import Target, placed
from helpers.kernels.on_host import HostLaunches
from xarray_gpuzarr.cuda.filters import Filter, FilterChunks


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """What a kernel makes of one chunk."""

    flagged: bool
    content: bytes


def run_filter(
    codec: Filter, chunks: Sequence[bytes], n_elements: int, itemsize: int, offsets: Sequence[int] = (0,)
) -> list[Filtered]:
    """Decode chunks, all in one launch, from and to addresses that are `offsets` in turn, modulo 64."""
    n = len(chunks)
    at = [offsets[i % len(offsets)] for i in range(n)]
    sources = [placed(chunk, offset) for chunk, offset in zip(chunks, at, strict=True)]
    targets = [Target(n_elements * itemsize, offset) for offset in at]
    table = np.array([[s.ctypes.data for s in sources], [t.address for t in targets]], np.uint64)
    flags, words = np.zeros(n, np.uint64), codec.words.copy()
    places = FilterChunks(
        table=table.ctypes.data, n=n, n_elements=n_elements, flags=flags.ctypes.data, words=words.ctypes.data
    )
    codec.launch(HostLaunches(), None, places)
    return [
        Filtered(flagged=bool(flag), content=target.content())
        for flag, target in zip(flags.tolist(), targets, strict=True)
    ]
