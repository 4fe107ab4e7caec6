"""Switch to another CUDA context for a moment: resources of a device are freed on any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """Make `context` the calling thread's CUDA context inside a ``with`` block, and restore its own one afterwards."""
    before = cupy.cuda.driver.ctxGetCurrent()
    cupy.cuda.driver.ctxSetCurrent(context)
    try:
        yield
    finally:
        cupy.cuda.driver.ctxSetCurrent(before)
