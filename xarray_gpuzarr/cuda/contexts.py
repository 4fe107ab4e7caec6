"""Switch the calling thread to another CUDA context or device, and back.

Resources of a device may be freed on any thread, with any current device, so they remember their context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy

from xarray_gpuzarr.cuda.failures import cuda_call


@contextmanager
def in_context(context: int) -> Iterator[None]:
    """Make `context` the calling thread's CUDA context inside a ``with`` block; the previous one is restored."""
    before = cupy.cuda.driver.ctxGetCurrent()
    cupy.cuda.driver.ctxSetCurrent(context)
    try:
        yield
    finally:
        cupy.cuda.driver.ctxSetCurrent(before)


@cuda_call("cudaSetDevice")
def enter_device(index: int) -> int:
    """Make a device the current one of the calling thread. Return the context to restore afterwards.

    Return 0 if the thread had no context, or had that of this device already.
    """
    cupy.cuda.runtime.getDevice()  # starts the driver, without which the next call fails
    before = int(cupy.cuda.driver.ctxGetCurrent())
    cupy.cuda.runtime.setDevice(index)
    return 0 if before == cupy.cuda.driver.ctxGetCurrent() else before


@cuda_call("cuCtxSetCurrent")
def restore_context(context: int) -> None:
    """Make `context`, the result of `enter_device`, the calling thread's context again.

    The context is set, not the device, because a device may have several contexts. If `context` is 0, nothing is done:
    either the thread had the context already, or it had none. A thread that had none keeps the device of
    `enter_device`, because going back to its initial device would create a context there, which takes some 500 MiB.
    """
    if context:
        cupy.cuda.driver.ctxSetCurrent(context)
