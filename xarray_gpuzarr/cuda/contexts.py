"""Another CUDA context for a moment: things of a device are dropped on any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """Work in a context inside a ``with`` block, on whatever thread drops things; its own device stays what it is."""
    before = cupy.cuda.driver.ctxGetCurrent()
    cupy.cuda.driver.ctxSetCurrent(context)
    try:
        yield
    finally:
        cupy.cuda.driver.ctxSetCurrent(before)
