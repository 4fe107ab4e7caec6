"""Buffers of the calling thread that are kept for the next chunk: fresh memory costs a page fault per 4 KiB."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

_KEPT_NBYTES = 8 * 1024 * 1024
"""A thread keeps buffers up to this size."""

_kept = threading.local()


def buffer(name: str, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return scratch of this thread, contents undefined, valid until `name` is asked for again.

    Returns
    -------
    uint8, shape (nbytes,), host memory
    """
    kept: npt.NDArray[np.uint8] | None = getattr(_kept, name, None)
    if kept is None or len(kept) < nbytes:
        kept = np.empty(nbytes, np.uint8)
        if nbytes <= _KEPT_NBYTES:
            setattr(_kept, name, kept)
    return kept[:nbytes]
