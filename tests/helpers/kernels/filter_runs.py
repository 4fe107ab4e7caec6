"""Chunks of elements through the kernels that decode filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.kernels import memory as memories
from helpers.kernels.memory import columns
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
    memory, n, nbytes = memories.make(), len(chunks), n_elements * itemsize
    targets = [memory.reserve(nbytes, offsets[i % len(offsets)]) for i in range(n)]
    sources = [memory.place(chunk, offsets[i % len(offsets)]) for i, chunk in enumerate(chunks)]
    table = memory.place(columns(list(zip(sources, targets, strict=True)), 2))
    flags, words = memory.reserve(8 * n, byte=0), memory.place(codec.words)
    places = FilterChunks(table=table, n=n, n_elements=n_elements, flags=flags, words=words)
    memory.run(lambda api, stream: codec.launch(api, stream, places))
    flagged = memory.content(flags, 8 * n).view(np.uint64).tolist()
    contents = [memory.content(target, nbytes).tobytes() for target in targets]
    return [Filtered(flagged=bool(f), content=c) for f, c in zip(flagged, contents, strict=True)]
