"""A pool of the driver for reads alone, with settings that RMM's own resource over such a pool does not have.

References
----------
CUDA runtime API, "Stream Ordered Memory Allocator": ``cudaMemPoolCreate``, ``cudaMemPoolSetAttribute``.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

import cupy
import rmm
from cuda.bindings import driver, runtime

from xarray_gpuzarr.cuda.contexts import in_context
from xarray_gpuzarr.cuda.failures import FAILURES
from xarray_gpuzarr.process.settings import numbers_from_environment

_KEPT = 4
"""An idle pool keeps up to that part of the device's memory, beside what is in use."""
_SWITCHES = ("pool_waits", "pool_kept_nbytes")
"""For measurements: 1 lets streams wait as CUDA's default does, and the bytes that a pool keeps, what is in use
included."""


def private_pool(index: int, total_nbytes: int) -> PrivatePool:
    """Return a new pool of a device that has so much memory; the device is the calling thread's."""
    properties = runtime.cudaMemPoolProps()
    properties.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
    properties.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
    properties.location.id = index
    pool = PrivatePool(_checked("cudaMemPoolCreate", runtime.cudaMemPoolCreate(properties)))
    pool.set_up(total_nbytes // _KEPT)
    return pool


class PrivatePool(rmm.mr.CudaAsyncViewMemoryResource):  # type: ignore[misc]  # RMM has no types here
    """RMM's resource over a pool of the driver, which it owns.

    A stream that takes memory is not made to wait for the kernels of whoever freed it, as CUDA's default is, unless
    there is no other memory left. What idles is given back to the device only beyond a share of all memory; CUDA counts
    what is in use, too, so the limit moves with that.
    """

    _process = 0
    """Until there is a pool to be destroyed."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._context = cupy.cuda.driver.ctxGetCurrent()
        self._process = os.getpid()
        self._waiting = threading.Lock()
        self._kept_nbytes = 0
        switches = numbers_from_environment(_SWITCHES, os.environ)
        self._waits = bool(switches.get("pool_waits"))
        self._fixed_nbytes = switches.get("pool_kept_nbytes")

    def set_up(self, kept_nbytes: int) -> None:
        """Let the pool keep so many bytes beside those that are in use."""
        self._kept_nbytes = kept_nbytes
        self._let_wait(waits=self._waits)
        self._keep()

    def allocate(self, nbytes: int, stream: Any) -> int:
        """Return the address of new memory; only where there is none left, `stream` waits for others."""
        try:
            address = super().allocate(nbytes, stream)
        except MemoryError:
            if self._waits:
                raise
            with self._waiting:
                self._let_wait(waits=True)
                try:
                    address = super().allocate(nbytes, stream)
                finally:
                    self._let_wait(waits=False)
        self._keep()
        return int(address)

    def deallocate(self, address: int, nbytes: int, stream: Any) -> None:
        """Take memory back, behind what `stream` has been given."""
        super().deallocate(address, nbytes, stream)
        self._keep()

    def __del__(self) -> None:
        """Let the pool go; CUDA keeps it until the last memory of it is back."""
        if self._process == os.getpid() and not sys.is_finalizing():
            with suppress(*FAILURES), in_context(self._context):
                _checked("cudaMemPoolDestroy", runtime.cudaMemPoolDestroy(self._handle))

    def _let_wait(self, *, waits: bool) -> None:
        """Choose whether a stream may be made to wait for one that has freed the memory that it takes."""
        self._set("cudaMemPoolReuseAllowInternalDependencies", int(waits))

    def _keep(self) -> None:
        """Let the pool keep its share beside what is in use now."""
        nbytes = self._fixed_nbytes
        if nbytes is None:
            attribute = runtime.cudaMemPoolAttr.cudaMemPoolAttrUsedMemCurrent
            in_use = _checked("cudaMemPoolGetAttribute", runtime.cudaMemPoolGetAttribute(self._handle, attribute))
            nbytes = int(in_use) + self._kept_nbytes
        self._set("cudaMemPoolAttrReleaseThreshold", driver.cuuint64_t(nbytes))

    def _set(self, name: str, value: Any) -> None:
        attribute = getattr(runtime.cudaMemPoolAttr, name)
        _checked(f"cudaMemPoolSetAttribute of {name}", runtime.cudaMemPoolSetAttribute(self._handle, attribute, value))


def _checked(call: str, answer: tuple[Any, ...]) -> Any:
    """Return what a call has given; raise RuntimeError, as CuPy and RMM do, if it failed."""
    error, *values = answer
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"{error.name}, by {call}")
    return values[0] if values else None
