"""Messages through the kernels that compute checksums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.kernels import memory as memories
from helpers.kernels.memory import columns
from xarray_gpuzarr.cuda.checksum import Kind, checksum, finish


def checksums(kind: Kind, *messages: bytes | tuple[bytes, int]) -> list[int]:
    """Return what one launch finds; a message may have an offset, modulo 256, at which it begins."""
    memory, n = memories.make(), len(messages)
    pairs: Sequence[tuple[bytes, int]] = [m if isinstance(m, tuple) else (m, 0) for m in messages]
    table = memory.place(columns([(memory.place(*pair), len(pair[0])) for pair in pairs], 2))
    result, longest = memory.reserve(8 * n, byte=0), max((len(content) for content, _ in pairs), default=0)
    memory.run(lambda api, stream: checksum(api, stream, kind, table=table, n=n, max_nbytes=longest, result=result))
    found = finish(kind, memory.content(result, 8 * n).view(np.uint64))
    assert found.dtype == np.uint32
    return found.tolist()
